"""What a signal by which a process ended speaks for, whoever tells of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import signal_name
from ddpdoctor.engine.registry import Catalogue, Check
from ddpdoctor.facts.log import ProcessExit, SignMatch
from ddpdoctor.logs.analyze.endings import signal_of

KILL: Final = 9


def with_signal(
    within: Sequence[SignMatch], exited: ProcessExit, others: Sequence[ProcessExit], catalogue: Catalogue, *, lost: bool
) -> list[SignMatch]:
    """The signs in a launcher's words on a process, with hints at what its signal speaks for, where nothing names an illness.
    others: all ends that the log tells of. lost: other ranks say that they lost one, which has an illness of its own."""
    known = {match.slug for match in within}
    signal = signal_of(exited)
    told = exited.told_to or (signal == KILL and (lost or _cancelled(exited, others)))
    if told or any(match.role is SignRole.NAMES for match in within):
        return list(within)
    rank = exited.line.rank if exited.line.rank is not None else exited.rank
    line = msgspec.structs.replace(exited.line, rank=rank, host=exited.line.host or exited.host)
    hints = (
        SignMatch(slug=check.slug, sign=f"ended by {signal_name(signal)}", role=SignRole.HINTS, line=line)
        for check in _checks_of(signal, catalogue)
        if check.slug not in known
    )
    return [*within, *hints]


def _checks_of(signal: int, catalogue: Catalogue) -> tuple[Check, ...]:
    """Who aborts mostly says why, and is heard by that: nothing stands for SIGABRT."""
    known = next((Signal for Signal in Signals if Signal == signal), None)
    return catalogue.standing_for(known) if known else ()


def _cancelled(exited: ProcessExit, others: Sequence[ProcessExit]) -> bool:
    """Whether Slurm ended all processes: whom it kills then, it killed itself."""
    cancels = [
        process_exit
        for process_exit in others
        if process_exit.said_by == "srun" and process_exit.exit_code is None and "oom" not in process_exit.error
    ]
    return exited.said_by == "srun" and bool(cancels)
