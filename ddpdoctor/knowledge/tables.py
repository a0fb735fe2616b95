"""Reads the tables that lie beside this file as JSON."""

from __future__ import annotations

from pkgutil import get_data
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_table(file: str, kind: type[T]) -> T:
    """Read a table of rows of that kind."""
    content = get_data(__name__, file)
    assert content is not None
    return msgspec.json.decode(content, type=kind)
