"""Files that are compressed: by gzip, which is read here, or in a way that something else has to unpack."""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Iterator
from typing import Final

GZIP: Final = b"\x1f\x8b"
"""How a file of gzip's begins."""
CUT_OFF: Final = "the compressed file is cut off"
DAMAGED: Final = "the compressed file is damaged, and read as far as it goes"
CHANGED: Final = "the compressed file is damaged: its checksum is wrong, so that some of what was read may be, too"
MORE: Final = "something else stands behind what is compressed in it, and was not read"
_FORMS: Final = (
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
)
"""How such a file begins. A checkpoint of torch is a zip file, too."""
_PIECE_BYTES: Final = 1 << 20
"""Bytes that are unpacked at once."""


class DamagedArchive(Exception):
    """A compressed file doesn't come to its end."""


def how_to_unpack(sample: bytes, name: str) -> str:
    """Word how to unpack a file: "compressed by xz: `xz -dc FILE | ddpdoctor diagnose-log -`"; "" of anything else."""
    for magic, program, command in _FORMS:
        if sample.startswith(magic) and (program != "zip" or name.endswith(".zip")):
            return f"compressed by {program}: `{command} {shlex.quote(name)} | ddpdoctor diagnose-log -`"
    return ""


def unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the members one after the other, as gzip -d gives them; of what is damaged all that comes before.

    Raises:
        DamagedArchive: it is damaged or cut off, or something else stands behind it.
    """
    member, most = zlib.decompressobj(wbits=31), _PIECE_BYTES
    for piece in pieces:
        data = piece
        while data := data.lstrip(b"\0") if member.eof else data:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
                if not data.startswith(GZIP[: len(data)]):
                    raise DamagedArchive(MORE)
            # A call that meets the damage gives nothing of what it had unpacked by then: it is asked for less and less.
            before = member.copy()
            try:
                plain = member.decompress(data, most)
            except zlib.error as error:
                if most == 1:
                    raise DamagedArchive(CHANGED if "incorrect" in str(error) else DAMAGED) from None
                member, most = before, most // 2
                continue
            yield plain
            data = member.unused_data if member.eof else member.unconsumed_tail
    if not member.eof:
        raise DamagedArchive(CUT_OFF)
