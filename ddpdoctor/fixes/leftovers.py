"""Leftovers as `ddpdoctor zombies --kill` and `check --fix` end them: which are meant, and the looks by which they are judged."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from typing import Final

from ddpdoctor.probes.context import Context
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverLook, end
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Fate

COMMAND: Final = ("ddpdoctor", "zombies", "--kill")
GROUPS: Final = ("processes", "gpus", "shared_memory")


def look() -> LeftoverLook:
    """At the processes, the GPUs and /dev/shm of this host."""
    from ddpdoctor.probes.runner import take_snapshot

    snapshot = take_snapshot(Context(sys.executable, "ddpdoctor", quick=True), GROUPS)
    return LeftoverLook(
        processes=snapshot.processes,
        gpus=snapshot.gpus,
        shared_memory=snapshot.shared_memory,
        at=time.monotonic(),
    )


def targets_of(command: str) -> tuple[str, ...]:
    """The pids and paths that a `ddpdoctor zombies --kill` names; none of any other command, nor where it names none: what
    a check has found is ended, and nothing that came to light later."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    named = words[len(COMMAND) :]
    fitting = tuple(words[: len(COMMAND)]) == COMMAND and all(
        one.isdecimal() or one.startswith("/dev/shm/") for one in named
    )
    return tuple(named) if fitting else ()


def chosen(found: Sequence[Leftover], targets: Sequence[str]) -> tuple[Leftover, ...]:
    """The leftovers of these pids and paths; all where none are named."""
    wanted = set(targets)
    return tuple(
        leftover
        for leftover in found
        if not wanted or leftover.path in wanted or (leftover.pid and str(leftover.pid) in wanted)
    )


def refusal(targets: Sequence[str], seen: LeftoverLook) -> str:
    """Why these can't be ended, "" where they can."""
    meant = chosen(seen.leftovers, targets)
    missing = [target for target in targets if target not in {str(two.pid or two.path) for two in meant}]
    if missing:
        return f"{', '.join(missing)}: not left over any more"
    return next(
        (f"{leftover.what}: {leftover.doubts[0]}" for leftover in meant if not leftover.proven and leftover.doubts), ""
    )


def left_alone(targets: Sequence[str], ending: Endings) -> str:
    """Why one of these is still there, "" where none is."""
    told = {
        str(leftover_ending.leftover.pid or leftover_ending.leftover.path): leftover_ending
        for leftover_ending in ending.all
    }
    for target in targets:
        if target not in told:
            return f"{target}: not left over any more, or in doubt by now; `ddpdoctor zombies {target}` tells"
        if told[target].fate in (Fate.LEFT, Fate.STAYS):
            return f"{target}: {told[target].reason}"
    return ""


def end_targets(targets: Sequence[str], ending: Endings) -> None:
    """Looks, ends what is proven of these, and enters what became of each."""
    first = look()
    end([leftover for leftover in chosen(first.leftovers, targets) if leftover.proven], first, look, ending)
