"""Reads the tables that lie beside a module as JSON."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_table(module: str, file: str, content: type[T]) -> T:
    """Read a table of that content.

    Args:
        module: the name of one in whose folder, or of a package in which, the file lies.
        file: its name.
        content: what it holds.

    Raises:
        OSError: there is none.
        msgspec.DecodeError: it holds something else.
    """
    # Here and not above: it brings importlib.util along, and a fix of a checkpoint may need no table.
    from pkgutil import get_data

    return msgspec.json.decode(get_data(module, file) or b"", type=content)
