"""Where leftovers may lie that a look could not reach: what was not seen is never called clean. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Processes
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.processes.unowned_memory import unowned


def blind_spots(processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]) -> tuple[str, ...]:
    """A sentence each."""
    return tuple(dict.fromkeys(_found(processes, gpus, shared_memory)))


def _found(processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]) -> Iterator[str]:
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
    yield from (f"/dev/shm: {one}" for one in shared_memory.left_out)
