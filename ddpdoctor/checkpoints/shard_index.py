"""The index of a sharded model: the files that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

INDEX_ENDING = ".index.json"
_MAX_INDEX_BYTES = 1 << 26
_DIGITS = re.compile(r"(\d+)")


def by_number(name: str) -> list[tuple[int, str]]:
    """Sort key by which numbers are sorted by their size: rank 2 before rank 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(name)]


def shards_of(index: Path) -> tuple[Path, ...]:
    """The files that an index of a sharded model names, present or not; none if it isn't one or leads out of its folder."""
    names = index_names(index)
    if any(map(leads_out, names)):
        return ()
    return tuple(index.parent / name for name in sorted(names, key=by_number))


def index_names(index: Path) -> frozenset[str]:
    """The names in the weight_map, unchecked; none if there is no such map."""
    try:
        if not index.is_file() or index.stat().st_size > _MAX_INDEX_BYTES:
            return frozenset()
        content: Any = msgspec.json.decode(index.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return frozenset()
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    values = weight_map.values() if isinstance(weight_map, dict) else ()
    return frozenset(name for name in values if isinstance(name, str))


def leads_out(name: str) -> bool:
    """Whether a name in an index isn't of a file in the index's own folder or below."""
    return not name or name.startswith("/") or "\0" in name or ".." in name.split("/")
