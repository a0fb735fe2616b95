"""The stages of a training, the seconds that each may take, and those that --stages chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ddpdoctor.engine.registry import nearest_names

STAGES: Final = (
    "import",
    "device",
    "rendezvous",
    "process group",
    "barrier",
    "all_reduce",
    "broadcast",
    "all_gather",
    "sampler",
    "training",
    "one process",
    "accumulation",
    "parameters",
    "sync_batchnorm",
    "amp",
    "checkpoint",
    "model split",
    "p2p",
    "apex",
    "shutdown",
)
"""All stages of every run, in their order; `smoke_training/trainer/ddpdoctor_smoke/stages` has the code. A test compares the two."""

BURN_IN: Final = "burn-in"
"""Before the shutdown, where --duration asks for it: what it may take is what was asked for, and each step of it as much as any stage."""

STAGE_SECONDS: Final = 30.0
IMPORT_SECONDS: Final = 90.0
"""For the first stage: over a network file system torch takes long. Both are overruled by --timeout."""
MIN_IMPORT_SECONDS: Final = 30.0
"""Whatever --timeout says: on a busy host a healthy import takes ten."""


def import_seconds(timeout: float | None) -> float:
    """The seconds that the import of torch may take, where the user gives each stage so many."""
    return IMPORT_SECONDS if timeout is None else max(timeout, MIN_IMPORT_SECONDS)


ALWAYS_RUN: Final = ("import", "device", "rendezvous", "process group", "shutdown")
"""Part of every run."""

PREREQUISITES: Final[Mapping[str, tuple[str, ...]]] = {
    "one process": ("training",),
    "accumulation": ("training",),
    "parameters": ("training",),
    "checkpoint": ("training",),
}
"""By stage: those whose results it takes up."""


def with_burn_in(stages: Sequence[str]) -> tuple[str, ...]:
    """The stages, with the burn-in before the shutdown."""
    return (*stages[:-1], BURN_IN, *stages[-1:])


class UnknownStageError(ValueError):
    """There is no such stage; the message names the nearest."""

    def __init__(self, name: str) -> None:
        known = {_written(stage): stage for stage in STAGES}
        nearest = [known[nearest_name] for nearest_name in nearest_names(_written(name), known)]
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"there are {', '.join(STAGES)}"
        super().__init__(f"there is no stage called {name!r}; {hint}")


def chosen_stages(names: Iterable[str]) -> tuple[str, ...]:
    """The stages to run, in their order; all, if none is named. "process-group" and "process_group" are names, too.

    Raises:
        UnknownStageError: a name is none.
    """
    known = {_written(stage): stage for stage in STAGES}
    wanted: set[str] = set()
    for name in names:
        if _written(name) not in known:
            raise UnknownStageError(name)
        wanted.add(known[_written(name)])
    if not wanted:
        return STAGES
    todo = [*wanted, *ALWAYS_RUN]
    wanted = set()
    while todo:
        stage = todo.pop()
        if stage not in wanted:
            wanted.add(stage)
            todo += PREREQUISITES.get(stage, ())
    return tuple(stage for stage in STAGES if stage in wanted)


def _written(name: str) -> str:
    """A stage's name as one word for a shell, whatever its case."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())
