"""Ends leftovers for `ddpdoctor zombies --kill` and `check --fix`: finds those that are meant, and looks at them twice."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Final

from ddpdoctor.probes.context import Context
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverLook, end
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Fate

KILL_COMMAND: Final = ("ddpdoctor", "zombies", "--kill")
GROUPS: Final = ("processes", "gpus", "shared_memory")


def look(until: float = math.inf) -> LeftoverLook:
    """Look at the processes, the GPUs and /dev/shm of this host. until: when to wait no longer, by the monotonic clock."""
    from ddpdoctor.probes.runner import take_snapshot

    snapshot = take_snapshot(Context(sys.executable, "ddpdoctor", quick=True), GROUPS, until=until)
    return LeftoverLook(
        processes=snapshot.processes,
        gpus=snapshot.gpus,
        shared_memory=snapshot.shared_memory,
        at=time.monotonic(),
    )


def targets_of(command: str) -> tuple[str, ...]:
    """The pids and paths that a `ddpdoctor zombies --kill` names; none of any other command, nor where it names none: only what a check
    has found is ended, and nothing that was found later."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    named = words[len(KILL_COMMAND) :]
    fitting = tuple(words[: len(KILL_COMMAND)]) == KILL_COMMAND and all(
        target.isdecimal() or target.startswith("/dev/shm/") for target in named
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


def why_refused(targets: Sequence[str], look: LeftoverLook) -> str:
    """Say why these can't be ended; "" where they can."""
    meant = chosen(look.leftovers, targets)
    missing = [target for target in targets if target not in {str(leftover.pid or leftover.path) for leftover in meant}]
    if missing:
        return f"{', '.join(missing)}: not left over any more"
    return next(
        (f"{leftover.what}: {leftover.doubts[0]}" for leftover in meant if not leftover.proven and leftover.doubts), ""
    )


def why_left_alone(targets: Sequence[str], ending: Endings) -> str:
    """Say why one of these is still there; "" where none is."""
    endings = {str(ended.leftover.pid or ended.leftover.path): ended for ended in ending.all}
    for target in targets:
        if target not in endings:
            return f"{target}: not left over any more, or in doubt by now; `ddpdoctor zombies {target}` tells"
        if endings[target].fate in (Fate.LEFT, Fate.STAYS):
            return f"{target}: {endings[target].reason}"
    return ""


def end_targets(targets: Sequence[str], ending: Endings) -> None:
    """Look, end what is proven of these, and enter what became of each in `ending`."""
    first = look()
    end([leftover for leftover in chosen(first.leftovers, targets) if leftover.proven], first, look, ending)
