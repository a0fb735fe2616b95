"""The shape of a line: what stays of it from run to run, without its figures, paths, hashes, times and addresses."""

from __future__ import annotations

import hashlib
import re
import string
from typing import Final

MAX_SHAPED_TEXT: Final = 300
"""Characters of a line, behind its labels, that make its shape."""
_KEPT: Final = frozenset(string.ascii_letters) - frozenset(string.hexdigits)
_DROPPED: Final = bytes(byte for byte in range(128) if chr(byte) not in _KEPT and chr(byte) != "\n")
"""Figures, signs, and the letters of hashes: lines that differ in nothing else are told apart nowhere."""
_VARYING: Final = re.compile(
    r"""
      [a-z][a-z0-9+.-]{1,15}://[^\s'"<>)\]]+                 # addresses of pages, stores and servers
    | [~.]{0,2}/[^\s'":;,<>()\[\]|=]+                         # paths
    | (?<![^\W\d_])(?=[^\W\d_]{0,64}\d)[\w.@-]+              # figures, and words that hold some: hashes, hosts, units
    | \b[0-9a-fA-F]{8,}\b
    """,
    re.VERBOSE,
)
_SIGNS: Final = re.compile(r"[\W\d_]+")


def coarse_keys(block: bytes) -> list[int]:
    """Make of each line in a block a key that lines of one shape mostly share, at a hundredth of the shape's cost."""
    return list(map(hash, block.translate(None, _DROPPED).split(b"\n")))


def shape_of(text: str) -> str:
    """Return the shape of a line without labels; "" where nothing stays of it.

    Args:
        text: as it stands behind the labels of launchers and the timestamps of collectors.
    """
    return _SIGNS.sub(" ", _VARYING.sub("0", text[:MAX_SHAPED_TEXT])).strip()


def mark_of(shape: str) -> int:
    """Return the number by which a shape is known in every process, and from which nobody reads it."""
    return int.from_bytes(hashlib.blake2b(shape.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 1
