"""Files that are compressed in a way that isn't read here, and what unpacks them."""

from __future__ import annotations

import shlex
from typing import Final

_FORMS: Final = (
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ\0", "xz", "xz -dc"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
)
"""How such a file begins. A checkpoint of torch is a zip file, too."""


def how_to_unpack(sample: bytes, name: str) -> str:
    """ "compressed by xz: `xz -dc FILE | ddpdoctor diagnose-log -`"; "" of anything else."""
    for magic, program, command in _FORMS:
        if sample.startswith(magic) and (program != "zip" or name.endswith(".zip")):
            return f"compressed by {program}: `{command} {shlex.quote(name)} | ddpdoctor diagnose-log -`"
    return ""
