"""Which stages are run where the user names some: those, and what they can't do without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ddpdoctor.engine.registry import nearest_names
from ddpdoctor.smoke_training.training_order import STAGES

ALWAYS: Final = ("import", "device", "rendezvous", "process group", "shutdown")
"""The frame of every run."""

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "one process": ("training",),
    "accumulation": ("training",),
    "parameters": ("training",),
    "checkpoint": ("training",),
}
"""A stage, to those whose results it takes up."""


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
    todo = [*wanted, *ALWAYS]
    wanted = set()
    while todo:
        one = todo.pop()
        if one not in wanted:
            wanted.add(one)
            todo += NEEDS.get(one, ())
    return tuple(stage for stage in STAGES if stage in wanted)


def _written(name: str) -> str:
    """As one word for a shell, whatever its case."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())
