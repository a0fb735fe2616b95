"""Worker processes whose end their own traceback explains. Pure."""

from __future__ import annotations

from typing import Final

from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.logs.analyze.exceptions import with_slashes

NEAR: Final = 400
"""Lines from a worker's traceback to its parent's word on its end; several workers may write theirs between."""


def is_end_told(seen: SignMatch, log: Log) -> bool:
    """Whether it is the end of a worker that no signal ended, and that raised something as it was started."""
    started = [raised for raised in log.raised if any(_starts(frame.path, frame.function) for frame in raised.frames)]
    return any(_tells(raised, seen) for raised in started)


def _starts(path: str, function: str) -> bool:
    return function == "spawn_main" and with_slashes(path).endswith("multiprocessing/spawn.py")


def _tells(raised: LoggedException, seen: SignMatch) -> bool:
    if seen.words.get("signal") or raised.line.file != seen.line.file:
        return False
    return 0 < seen.line.number - raised.line.number <= NEAR
