"""Worker processes whose end their own traceback explains. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.log import LoggedException, SignMatch
from ddpdoctor.logs.analyze.exceptions import with_slashes

WORKER_DIED: Final = "dataloader-worker-killed"
NEAR: Final = 400
"""Lines from a worker's traceback to its parent's word on its end; several workers may write theirs between."""


def without_ends_that_are_told(seen: Iterable[SignMatch], raised: Iterable[LoggedException]) -> list[SignMatch]:
    """The sightings without the ends of workers that no signal ended, and that raised something as they were started."""
    started = [one for one in raised if any(_starts(frame.path, frame.function) for frame in one.frames)]
    return [one for one in seen if not any(_tells(each, one) for each in started)]


def _starts(path: str, function: str) -> bool:
    return function == "spawn_main" and with_slashes(path).endswith("multiprocessing/spawn.py")


def _tells(raised: LoggedException, seen: SignMatch) -> bool:
    if seen.slug != WORKER_DIED or seen.words.get("signal") or raised.line.file != seen.line.file:
        return False
    return 0 < seen.line.number - raised.line.number <= NEAR
