"""Identification of who listens on a port that isn't ours: torch's store, or something that has nothing to do with the job.

Everything is asked on a connection of its own, one after the other, and each is closed before the next is opened: many
small servers serve one at a time.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import Final

from ddpdoctor.base.async_work import within
from ddpdoctor.network_check.protocol.tcp_connections import Destination, connect

NOBODY: Final = ""
STORE: Final = "torch's TCPStore"
HTTP: Final = "an HTTP server"
TLS: Final = "a TLS server"
SSH: Final = "an SSH server"
SILENT: Final = "something that says nothing"
ELSE: Final = "something else"

ANSWER_SECONDS: Final = 1.0
"""Seconds to wait for an answer to one question."""

MAX_ANSWER_BYTES: Final = 1024
"""Bytes of an answer that are looked at."""

VALIDATE: Final = 0
PING: Final = 13
"""Of torch's QueryType."""
VALIDATION_MAGIC: Final = 0x3C85F7CE

TLS_HANDSHAKE: Final = b"\x16\x03"
TLS_ALERT: Final = b"\x15\x03"


async def identify(there: Destination) -> tuple[str, str]:
    """Identify what listens there, and give the first line it said. NOBODY where it can't be reached any more."""
    nonce = secrets.token_bytes(4)
    magic = VALIDATION_MAGIC.to_bytes(4, "little")
    if await _ask(there, bytes([VALIDATE]) + magic + bytes([PING]) + nonce) == nonce:
        return STORE, ""
    to_tls = await _ask(there, _client_hello())
    if to_tls and to_tls.startswith((TLS_HANDSHAKE, TLS_ALERT)):
        return TLS, ""
    # After the others: it is the one that servers of other kinds answer, too, in their own words.
    to_http = await _ask(there, b"HEAD / HTTP/1.0\r\n\r\n")
    if to_http or to_tls:
        return by_its_words(to_http or to_tls or b"")
    return (NOBODY if to_http is None else SILENT), ""


def by_its_words(said: bytes) -> tuple[str, str]:
    """Identify a server by the first bytes it said, and give the first line of them."""
    if said.startswith((TLS_HANDSHAKE, TLS_ALERT)):
        return TLS, ""
    if said.startswith(b"HTTP/"):
        return HTTP, _line(said, b"server:")
    return (SSH if said.startswith(b"SSH-") else ELSE), _line(said)


def _line(said: bytes, header: bytes = b"") -> str:
    """The first line, and that of a header, printable and short."""
    lines = said.splitlines()
    wanted = [lines[0], *(line for line in lines[1:] if header and line.lower().startswith(header))]
    text = ", ".join(literal.decode("ascii", "replace").strip() for literal in wanted)
    return "".join(letter if letter.isprintable() and letter.isascii() else "." for letter in text)[:80]


async def _ask(there: Destination, question: bytes) -> bytes | None:
    """The first bytes of its answer, b"" where it says nothing, None where it can't be reached."""
    _, connection = await connect(there, ANSWER_SECONDS)
    if connection is None:
        return None
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_ANSWER_BYTES)
    try:
        writer.write(question)
        with suppress(TimeoutError):
            return await within(ANSWER_SECONDS, _all_of(reader))
    except OSError:
        pass
    finally:
        writer.close()
    return b""


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    """Read what comes first; of text, up to its headers' end, as far as that follows at once."""
    said = await reader.read(MAX_ANSWER_BYTES)
    while said.startswith(b"HTTP/") and b"\r\n\r\n" not in said and len(said) < MAX_ANSWER_BYTES:
        more = await reader.read(MAX_ANSWER_BYTES)
        if not more:
            break
        said += more
    return said


def _client_hello() -> bytes:
    """The first message of a TLS client."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()
