"""Reads the tables that lie beside a module as JSON."""

from __future__ import annotations

import threading
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

_ONE_AT_A_TIME: Final = threading.Lock()
"""msgspec 0.22 lets other threads use what it knows of a class while it still gathers that: the process dies by SIGSEGV where two of them
decode a class for the first time at once, as probes do."""


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

    written = get_data(module, file) or b""
    with _ONE_AT_A_TIME:
        return msgspec.json.decode(written, type=content)
