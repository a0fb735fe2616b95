"""Lists what earlier runs left behind on this host, memory of GPUs that nobody holds too, and where a look could not reach. In doubt it
is named, and left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.processes import Processes
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.processes.gpu_holders import held_by_nobody, unowned
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.leftovers.processes import left_by_processes
from ddpdoctor.processes.leftovers.segments import left_segments
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind


def leftovers_of(
    processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]
) -> tuple[Leftover, ...]:
    """List all that is left over as far as these facts tell, what is proven first. A group that is Unknown tells nothing."""
    found = list(left_by_processes(processes, gpus))
    if isinstance(gpus, Gpus):
        found += _left_memory(gpus, processes)
    if isinstance(shared_memory, SharedMemory):
        found += left_segments(shared_memory, processes)
    order, kinds = list(Certainty), list(LeftoverKind)
    found.sort(key=lambda leftover: (order.index(leftover.certainty), kinds.index(leftover.kind), leftover.pid))
    return tuple(found)


def _left_memory(gpus: Gpus, processes: Maybe[Processes]) -> Iterator[Leftover]:
    """List each GPU on which more is used than all who are listed hold, and each holder that this host doesn't have."""
    for gpu in gpus.devices:
        size = unowned(gpu)
        if isinstance(size, int) and size:
            why = "more of its memory is in use than all processes hold that NVML lists"
            yield _left_on(gpu, size, why, _doubt(processes), f"sudo fuser -v /dev/nvidia{gpu.index}")
    for held in held_by_nobody(gpus, processes) if isinstance(processes, Processes) else ():
        why = f"pid {held.holder.pid} holds it by the driver's account, and is no process of this host"
        doubt = "the process may just have ended; else it was killed, and the driver could not take its memory back"
        yield _left_on(held.gpu, held.memory, why, doubt, "ddpdoctor check --select processes")


def _left_on(gpu: Gpu, size: int, why: str, doubt: str, command: str) -> Leftover:
    return Leftover(
        kind=LeftoverKind.MEMORY,
        certainty=Certainty.DOUBT,
        what=f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else ""),
        why=why,
        doubts=(doubt,),
        command=command,
        size=size,
        gpus=(gpu.index,),
    )


def _doubt(processes: Maybe[Processes]) -> str:
    if isinstance(processes, Unknown):
        return f"who holds it can't be told: {processes.reason}"
    if processes.unseen:
        return f"it may belong to somebody who can't be seen from here: {processes.unseen}"
    return "a process that is just ending, or a driver that lost count, may hold it"


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
