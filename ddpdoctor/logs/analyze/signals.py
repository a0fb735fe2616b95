"""What a signal by which a process ended speaks for, whoever tells of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.wording import signal_name
from ddpdoctor.facts.log import ProcessExit, SignMatch
from ddpdoctor.logs.analyze.endings import signal_of

KILL: Final = 9
SPEAKS_FOR: Final = {
    4: ("process-crashed",),
    7: ("shm-too-small", "process-crashed"),
    8: ("process-crashed",),
    KILL: ("host-oom-killed",),
    11: ("process-crashed",),
}
"""The likeliest first. Who aborts mostly says why, and is heard by that. A bus error is a write into mapped memory that has no room behind it, and of training that is /dev/shm's."""


def with_signal(
    within: Sequence[SignMatch], exited: ProcessExit, others: Sequence[ProcessExit], *, lost: bool
) -> list[SignMatch]:
    """The signs in a launcher's words on a process, with hints at what its signal speaks for, where nothing names an illness.
    others: all ends that the log tells of. lost: other ranks say that they lost one, which has an illness of its own."""
    known = {one.slug for one in within}
    signal = signal_of(exited)
    told = exited.told_to or (signal == KILL and (lost or _cancelled(exited, others)))
    if told or any(one.role is SignRole.NAMES for one in within):
        return list(within)
    rank = exited.line.rank if exited.line.rank is not None else exited.rank
    line = msgspec.structs.replace(exited.line, rank=rank, host=exited.line.host or exited.host)
    hints = (
        SignMatch(slug=slug, sign=f"ended by {signal_name(signal)}", role=SignRole.HINTS, line=line)
        for slug in SPEAKS_FOR.get(signal, ())
        if slug not in known
    )
    return [*within, *hints]


def _cancelled(exited: ProcessExit, others: Sequence[ProcessExit]) -> bool:
    """Whether Slurm ended all processes: whom it kills then, it killed itself."""
    cancels = [one for one in others if one.said_by == "srun" and one.exit_code is None and "oom" not in one.error]
    return exited.said_by == "srun" and bool(cancels)
