"""Garbage collection while many trees are made: by itself Python would go through all of them again and again, and hardly ever find any."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 1
"""Generations that are collected: what is new since the last time, in which what a followed script leaves behind is found."""
MAX_NEW_OBJECTS: Final = 1_000_000
"""Made since the last collection and still there: more than the trees of the modules that are kept."""


@contextmanager
def collecting_between_scripts() -> Iterator[Callable[[], None]]:
    """Collect garbage when what is given is called, after each script, and not by Python's own count."""
    was_collecting = gc.isenabled()
    gc.disable()

    def collect() -> None:
        if gc.get_count()[0] > MAX_NEW_OBJECTS:
            gc.collect(YOUNG)

    try:
        yield collect
    finally:
        if was_collecting:
            gc.enable()
