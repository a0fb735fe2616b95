"""A remark on the ranks of a running job, and how its ranks are called. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from enum import Enum

import msgspec

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed, ranks_named
from ddpdoctor.facts.processes import Process

_MOST_PIDS = 6


class Oddity(str, Enum):
    """Oddities of ranks, as the table says them."""

    MISSING = "missing"
    DOUBLED = "doubled"
    SEVERAL_RUNS = "several runs?"
    ALONE = "alone"
    BEYOND = "beyond the world"
    FEWER = "fewer than asked for"
    DEAD = "dead"
    ENDING = "ending"
    STOPPED = "stopped"
    TRACED = "in a debugger"
    ORPHANED = "orphaned"
    BY_HAND = "by hand"
    SHARED_GPU = "shared GPU"
    EXTRA_CONTEXT = "extra context"
    OTHER_GPU = "other GPU"
    ON_CPU = "on CPU"


NOT_RUNNING = (
    Oddity.MISSING,
    Oddity.FEWER,
    Oddity.ALONE,
    Oddity.BEYOND,
    Oddity.DOUBLED,
    Oddity.DEAD,
    Oddity.ENDING,
    Oddity.STOPPED,
    Oddity.TRACED,
)
"""Oddities that keep a rank from its work, or the others from theirs."""


class Remark(msgspec.Struct, frozen=True):
    """One oddity of one or several ranks of a job. text: a sentence without its full stop, that names them.

    Where a check that stands for the oddity finds something here, it says it, and how bad it is; where none does, it is no more than
    good to know.
    """

    oddity: Oddity
    severity: Severity
    text: str
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    """Pids of those that have one: a missing rank has none."""


def who(processes: Sequence[Process]) -> str:
    """ "rank 3 (pid 4711)", "ranks 0-2 (pids 4711, 4712 and 4713)"; without their places "pid 4711"."""
    pids = [process.pid for process in processes]
    named = f"pid{'' if len(pids) == 1 else 's'} {listed(pids, _MOST_PIDS)}"
    ranks = {process.place.rank for process in processes if process.place}
    return f"{ranks_named(ranks)} ({named})" if ranks else named


def places(processes: Iterable[Process]) -> tuple[int, ...]:
    """Their ranks, as far as anybody says which they are."""
    return tuple(sorted({process.place.rank for process in processes if process.place}))


def of_pid(remarks: Collection[Remark], pid: int) -> list[Remark]:
    """The remarks on that process."""
    return [remark for remark in remarks if pid in remark.pids]


_PIDS = compile_lazily(r"\b(?:pids?|jobs?) ((?:\d+(?:, | and )?)+)(?!\d| more)", re.IGNORECASE)


def pids_in(text: str) -> set[int]:
    """The pids that findings and remarks name: "pid 4711", "pids 4711, 4712 and 4713", "job 4711"."""
    return {int(pid) for found in _PIDS.findall(text) for pid in re.findall(r"\d+", found)}


def age(seconds: float) -> str:
    """ "45 s", "12 min", "3.5 h", "2.1 d"."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            amount = seconds / size
            return f"{amount:.0f} {unit}" if unit == "min" or amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s"
