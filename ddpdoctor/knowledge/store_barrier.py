"""How torch tells of the barrier of a store, in which who comes is counted by a key, each once. Pure."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.log_signs import LogSign, SignRole
from ddpdoctor.knowledge.number_patterns import more_behind

WAITING: Final = "Waiting in store based barrier to initialize process group for"
TIMED_OUT: Final = "Timed out initializing process group in store based barrier on"
SOURCE: Final = "torch 1.13.1 and 2.9.1: torch/distributed/distributed_c10d.py"
_COUNT: Final = ", (?:worker_count|num_workers_joined)="
_MORE: Final = rf"\(world_size={more_behind(_COUNT)}, "
_TOO_MANY: Final = (
    rf"(?=\(world_size=(?P<wanted>\d+){_COUNT}(?P<came>\d+), )\(world_size={more_behind(_COUNT, group=3)}, "
)


def too_few_came() -> tuple[LogSign, ...]:
    """A rank isn't there: why, the others can't know."""
    return (
        LogSign(
            WAITING,
            why="a rank has not come to init_process_group: not started, ended before, or it is late",
            role=SignRole.EFFECT,
            pattern=rf"(?!{_MORE})\(world_size=(?P<wanted>\d+){_COUNT}(?!(?P=wanted),)(?P<came>\d+), ",
            source=SOURCE,
        ),
        LogSign(
            TIMED_OUT,
            why="a rank never came to init_process_group: not started, or ended before",
            role=SignRole.EFFECT,
            pattern=rf"(?!{_MORE})\(world_size=(?P<wanted>\d+){_COUNT}(?P<came>\d+), ",
            source=SOURCE,
        ),
    )


def too_many_came(why: str, near: str = "") -> tuple[LogSign, ...]:
    """More than there are ranks. why: what that illness has to do with it."""
    return tuple(
        LogSign(text, why=why, role=SignRole.HINTS, pattern=_TOO_MANY, near=near, source=f"{SOURCE}, as it counts them")
        for text in (WAITING, TIMED_OUT)
    )
