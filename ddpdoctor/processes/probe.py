"""Looks at the processes of this host, and where ranks may be left over also at their stacks."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.hang import Frame
from ddpdoctor.facts.processes import Processes
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.processes import listing
from ddpdoctor.processes.leftovers.rank_stacks import busy_thread, ranks_to_look_at

DEADLINE = listing.DEADLINE
MAX_STACKS = 64
"""Processes, some at a time: half a minute at worst, where none of them answers."""
TOO_MANY = Unknown(f"more than {MAX_STACKS} ranks may be left over, and so many stacks are read at once")


def probe(context: Context) -> Processes | Unknown:
    """What every process is to a job; of each rank of a job with a quiet orphan also its stack."""
    found = listing.probe(context)
    return found if isinstance(found, Unknown) else with_stacks(found)


def with_stacks(processes: Processes) -> Processes:
    """Add the stacks of the ranks, where it matters."""
    wanted = [rank.pid for rank in ranks_to_look_at(processes)]
    if not wanted:
        return processes
    stacks = dict.fromkeys(wanted, TOO_MANY) | _read(wanted[:MAX_STACKS])
    listed = tuple(
        msgspec.structs.replace(process, stack=stacks[process.pid]) if process.pid in stacks else process
        for process in processes.listed
    )
    return msgspec.structs.replace(processes, listed=listed)


def _read(pids: list[int]) -> dict[int, Maybe[tuple[Frame, ...]]]:
    # Here and not above: asyncio is many modules, and hardly ever needed.
    import asyncio

    from ddpdoctor.probes.py_spy import Spied, spy

    def stack_of(spied: Spied) -> Maybe[tuple[Frame, ...]]:
        if not spied.frames:
            return Unknown(spied.trouble.value or "its main thread has no stack")
        busy = busy_thread(spied.others)
        return Unknown(busy) if busy else spied.frames

    # Each probe has a thread of its own, in which no loop runs.
    return {pid: stack_of(spied) for pid, spied in asyncio.run(spy(pids)).items()}
