"""Reads the stacks that a rank has told itself, as Python's faulthandler writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ddpdoctor.base.text import masked
from ddpdoctor.facts.hang import Frame
from ddpdoctor.knowledge.torch_frames import PARENTS_FRAMES, name_of, pythons

MAX_FRAMES: Final = 100
"""faulthandler itself writes no more."""
MAX_OTHERS: Final = 32
MAX_TEXT_BYTES: Final = 1 << 20
"""A hundred threads with a hundred frames each, which is as many as faulthandler writes, are less."""

_THREAD: Final = re.compile(
    r"^(?:Current thread|Thread) (0x[0-9a-f]{1,16})(?: \[([^\n\]]{0,100})\])? \(most recent call first\):$",
    re.MULTILINE,
)
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$', re.MULTILINE)
_CUT: Final = re.compile(r"^\.\.\.$", re.MULTILINE)
"""It wrote of a hundred threads, and left out the oldest: the main thread is the last of all."""


class ToldStack(NamedTuple):
    """A rank's stacks, the innermost frame first."""

    frames: tuple[Frame, ...] = ()
    """Of the main thread."""
    others: tuple[tuple[str, tuple[Frame, ...]], ...] = ()
    """(name, frames) of other threads that are in more than Python's own code."""


def parse_stacks(text: bytes) -> ToldStack:
    """Parse what `faulthandler.dump_traceback` wrote of all threads; without frames where the main thread isn't among them."""
    told = text[:MAX_TEXT_BYTES].decode("utf-8", "replace").replace("\r\n", "\n")
    parts = _THREAD.split(told)
    threads = [(parts[at + 1] or parts[at], tuple(_frames(parts[at + 2]))) for at in range(1, len(parts) - 2, 3)]
    if not threads:
        return ToldStack()
    main: int | None = len(threads) - 1
    if len(text) > MAX_TEXT_BYTES or _CUT.search(parts[-1]):
        begun = [at for at, (_, frames) in enumerate(threads) if frames and name_of(frames[-1]) == "<module>"]
        main = begun[0] if len(begun) == 1 else None
    others = tuple(
        (masked(name), frames)
        for at, (name, frames) in enumerate(threads)
        if at != main and frames and not all(map(pythons, frames))
    )
    return ToldStack(() if main is None else threads[main][1], others[:MAX_OTHERS])


def _frames(text: str) -> Iterator[Frame]:
    for found, _ in zip(_FRAME.finditer(text), range(MAX_FRAMES), strict=False):
        path, line, name = found.groups()
        if path.endswith(PARENTS_FRAMES):
            return
        yield Frame(masked(name)[:200], masked(path)[:1000], int(line) if line.isdecimal() else 0)
