"""Finds memory of a GPU that no process holds: nothing can be ended for it, so it is only named. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.processes import Processes
from ddpdoctor.processes.gpu_holders import held_by_nobody, unowned
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind


def left_memory(gpus: Gpus, processes: Maybe[Processes]) -> Iterator[Leftover]:
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
