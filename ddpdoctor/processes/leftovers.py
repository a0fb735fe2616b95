"""What earlier runs left behind on this host, and how sure that is. In doubt it is named, and left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.unknown import Maybe
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Processes
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.processes.leftover import Leftover
from ddpdoctor.processes.leftover_memory import left_memory
from ddpdoctor.processes.leftover_processes import left_by_processes
from ddpdoctor.processes.leftover_segments import left_segments
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind


def leftovers_of(
    processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]
) -> tuple[Leftover, ...]:
    """All that is left over as far as these facts tell, what is proven first. A group that is Unknown tells nothing."""
    found = tuple(_found(processes, gpus, shared_memory))
    order = list(Certainty)
    return tuple(
        sorted(found, key=lambda one: (order.index(one.certainty), list(LeftoverKind).index(one.kind), one.pid))
    )


def _found(processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]) -> Iterator[Leftover]:
    yield from left_by_processes(processes, gpus)
    if isinstance(gpus, Gpus):
        yield from left_memory(gpus, processes)
    if isinstance(shared_memory, SharedMemory):
        yield from left_segments(shared_memory, processes)
