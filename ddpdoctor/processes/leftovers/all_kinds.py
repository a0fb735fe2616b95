"""Lists what earlier runs left behind on this host, and where a look could not reach. In doubt it is named, and left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Processes
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.processes.gpu_holders import unowned
from ddpdoctor.processes.leftovers.gpu_memory import left_memory
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.processes.leftovers.segments import left_segments
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind


def leftovers_of(
    processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]
) -> tuple[Leftover, ...]:
    """List all that is left over as far as these facts tell, what is proven first. A group that is Unknown tells nothing."""
    found = tuple(_found(processes, gpus, shared_memory))
    order = list(Certainty)
    kinds = list(LeftoverKind)
    return tuple(
        sorted(found, key=lambda leftover: (order.index(leftover.certainty), kinds.index(leftover.kind), leftover.pid))
    )


def _found(processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]) -> Iterator[Leftover]:
    yield from left_by_processes(processes, gpus)
    if isinstance(gpus, Gpus):
        yield from left_memory(gpus, processes)
    if isinstance(shared_memory, SharedMemory):
        yield from left_segments(shared_memory, processes)


def blind_spots(processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]) -> tuple[str, ...]:
    """Say where leftovers may lie that the look could not reach, a sentence each: what was not seen is never called clean."""
    return tuple(dict.fromkeys(_unseen(processes, gpus, shared_memory)))


def _unseen(processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]) -> Iterator[str]:
    if isinstance(processes, Unknown):
        yield f"Processes: not seen: {processes.reason}"
    else:
        if processes.unseen:
            yield f"Processes: {processes.unseen}"
        yield from (f"Processes: {spared.words}" for spared in processes.spared)
        if processes.closed and processes.uid != 0:
            yield f"Processes: {plural(processes.closed, 'process', 'processes')} of others can't be looked into without root"
    if isinstance(gpus, Unknown):
        yield f"GPUs: not seen: {gpus.reason}"
    else:
        for gpu in gpus.devices:
            if isinstance(gpu.holders, Unknown):
                yield f"GPU {gpu.index}: who holds its memory isn't told: {gpu.holders.reason}"
            elif isinstance(rest := unowned(gpu), Unknown):
                yield f"GPU {gpu.index}: whether memory without an owner is in use isn't known: {rest.reason}"
    if isinstance(shared_memory, Unknown):
        yield f"/dev/shm: not seen: {shared_memory.reason}"
        return
    if isinstance(shared_memory.stale, Unknown):
        yield f"/dev/shm: {shared_memory.stale.reason}"
    yield from (f"/dev/shm: {words}" for words in shared_memory.left_out)
