"""Programs that connect to the hub and don't belong there, in words."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final

from ddpdoctor.network_check.protocol.bounded_lines import plain

MAX_KINDS_LISTED: Final = 20

SILENT: Final = "connected and went away without a word (a port scan or a health check)"

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE|PRI) \S+ HTTP/")
_STORE_CLIENT = b"\x00\xce\xf7\x85\x3c"
"""What a client of torch's TCPStore says first (since 2.1): a query of type 0 with the magic number 0x3C85F7CE."""


def describe_first_bytes(first_bytes: bytes) -> str:
    """Say what program the first bytes of a connection look like."""
    if not first_bytes:
        return SILENT
    line = first_bytes.split(b"\n", 1)[0][:256]
    first = plain(line.decode("ascii", "replace").replace("\ufffd", "?").rstrip("\r"), 60)
    if _HTTP.match(first_bytes):
        return f"an HTTP request: {first}"
    if first_bytes[:2] == b"\x16\x03":
        return "a TLS handshake"
    if first_bytes[:4] == b"SSH-":
        return f"an SSH client: {first}"
    if first_bytes[:5] == _STORE_CLIENT:
        return "a rank of a PyTorch job that looks for its TCPStore"
    if first_bytes[:1] in b"{[":
        return f"JSON that isn't ours: {first}"
    if sum(32 <= letter < 127 for letter in line) * 4 >= len(line) * 3:
        return f"text that isn't ours: {first}"
    return f"bytes that aren't ours: {first_bytes[:16].hex(' ')}"


class RejectedConnections:
    """Records who was rejected, at most MAX_KINDS_LISTED different ones."""

    def __init__(self) -> None:
        self._rejected: dict[tuple[str, str], tuple[str, int]] = {}
        self._others = 0

    def note(self, address: str, what: str) -> None:
        """Record one. Those from one address that look alike are kept as one."""
        key = (address, what.split(":", 1)[0])
        if key in self._rejected or len(self._rejected) < MAX_KINDS_LISTED:
            first, times = self._rejected.get(key, (what, 0))
            self._rejected[key] = (first, times + 1)
        else:
            self._others += 1

    def listed(self, ours: Container[str]) -> tuple[str, ...]:
        """Give a sentence each. A node's address may well connect and go away again without a word."""
        kept = [
            f"{address}: {what}" + (f", {times} times" if times > 1 else "")
            for (address, _), (what, times) in self._rejected.items()
            if what != SILENT or address not in ours
        ]
        return (*kept, *([f"and {self._others} more"] if self._others else []))
