"""Garbage collection while many trees are made: by itself Python would go through all of them again and again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 1
"""Generations that are collected: what is new since the last time, in which what a followed script leaves behind is found."""
SCRIPTS_BETWEEN: Final = 32
"""Scripts followed between two collections."""


@contextmanager
def collecting_between_scripts() -> Iterator[Callable[[], None]]:
    """Collect garbage when what is given is called, after each script, and not by Python's own count."""
    was_collecting = gc.isenabled()
    gc.disable()
    done = 0

    def collect() -> None:
        nonlocal done
        done += 1
        if done % SCRIPTS_BETWEEN == 0:
            gc.collect(YOUNG)

    try:
        yield collect
    finally:
        if was_collecting:
            gc.enable()
