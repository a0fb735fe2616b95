"""How the ranks of a run ended, as their launchers say. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from ddpdoctor.facts.log import Log, ProcessExit

ABORT: Final = 6
CRASHES: Final = (4, 7, 8, ABORT, 11)
"""Signals by which a process ends through its own doing."""
KILL: Final = 9
_STOPPED: Final = "DUE TO "
"""The reason of Slurm's that ends a job from outside."""
TERMINATIONS: Final = (1, 2, 15)
"""Signals by which it is told to end."""


def signal_of(exited: ProcessExit) -> int:
    """Return the signal that ended a process, as the launcher or a shell counts it; 0 where none did."""
    code = exited.exit_code
    if code is None:
        return 0
    if code < 0:
        return -code
    # Of -9, as subprocess has it, exit() makes 247.
    return 256 - code if 256 - code in (*CRASHES, 9) else code - 128 if 128 < code < 160 else 0


def endings(log: Log) -> list[ProcessExit]:
    """List each process once, although torchrun speaks of it in a line and in its table; those that ended well are
    left out."""
    found: list[ProcessExit] = []
    places: dict[tuple[str, int], list[int]] = {}
    stopped = min(
        (process_exit.line.order for process_exit in log.exited if process_exit.error.startswith(_STOPPED)),
        default=None,
    )
    for process_exit in log.exited:
        if process_exit.exit_code == 0:
            continue
        if (
            stopped is not None
            and process_exit.said_by == "srun"
            and signal_of(process_exit) == KILL
            and process_exit.line.order > stopped
        ):
            # What doesn't heed its SIGTERM, Slurm kills.
            process_exit = msgspec.structs.replace(process_exit, told_to=True)
        maybe = sorted({place for key in _keys(process_exit) for place in places.get(key, ())})
        known = next((place for place in maybe if same_process(process_exit, found[place])), len(found))
        if known == len(found):
            found.append(process_exit)
        else:
            found[known] = _merged(found[known], process_exit)
        for key in _keys(found[known]):
            if known not in (mine := places.setdefault(key, [])):
                mine.append(known)
    return found


def _keys(exited: ProcessExit) -> list[tuple[str, int]]:
    """List the keys of which another message on the same process has one, too."""
    return [(name, number) for name, number in (("pid", exited.pid), ("rank", exited.rank)) if number is not None]


def same_process(one: ProcessExit, other: ProcessExit) -> bool:
    """Whether two of a launcher's messages are about one process."""
    if one is other:
        return True
    if one.pid is not None and other.pid is not None:
        return one.pid == other.pid and (_agree(one.host, other.host) or _beside(one, other))
    if one.rank is not None and other.rank is not None:
        return one.rank == other.rank and one.exit_code == other.exit_code
    return False


def _agree(one: str, other: str) -> bool:
    return not one or not other or one == other


def _beside(one: ProcessExit, other: ProcessExit) -> bool:
    """Whether one host's launcher says both: its table has the host's own name, or localhost, its lines that of a label or file."""
    return one.line.file == other.line.file and one.line.host == other.line.host != ""


def _merged(old: ProcessExit, new: ProcessExit) -> ProcessExit:
    """Join the words of the first with what the second adds."""
    fields = ("exit_code", "rank", "local_rank", "pid", "time")
    added = {name: getattr(new, name) for name in fields if getattr(old, name) is None}
    return msgspec.structs.replace(
        old,
        **added,
        host=old.host or new.host,
        error=old.error or new.error,
        first=old.first or new.first,
        told_to=old.told_to or new.told_to,
    )


def only(exits: Iterable[ProcessExit]) -> ProcessExit | None:
    """Return the one that there is, if there is one."""
    some = list(exits)
    return some[0] if len(some) == 1 else None
