"""Made-up jobs for unit tests: ranks, their launcher, and GPUs that NVML says they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddpdoctor.facts.container import Container
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessRole, RankPlace
from ddpdoctor.facts.snapshot import Snapshot

GIB = 1 << 30
LAUNCHER = 4711


def rank(number: int, size: int = 4, **facts: Any) -> Process:
    """Rank N of a torchrun job of alice's, pid 4720 + N, that works on its own GPU."""
    settings = {
        "RANK": number,
        "WORLD_SIZE": size,
        "LOCAL_RANK": number,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "none",
    }
    usual: dict[str, Any] = {
        "pid": 4720 + number,
        "start": 90_000 + number,
        "parent": LAUNCHER,
        "uid": 1000,
        "user": "alice",
        "name": "python",
        "command": "python train.py",
        "age": 7500.0,
        "recent_cpu": 1.0,
        "recent_bytes": 4096,
        "recent_switches": 40,
        "memory": 3 * GIB,
        "waits_in": "futex_wait_queue",
        "role": ProcessRole.RANK,
        "place": RankPlace(rank=number, world_size=size, local_rank=number, local_world_size=size, source="RANK"),
        "settings": tuple(Setting(name, str(value)) for name, value in settings.items()),
        "devices": (number,),
    }
    return Process(**usual | facts)


def launcher(**facts: Any) -> Process:
    """The torchrun of these ranks, started in alice's shell."""
    usual: dict[str, Any] = {
        "pid": LAUNCHER,
        "start": 89_000,
        "parent": 4000,
        "uid": 1000,
        "user": "alice",
        "name": "torchrun",
        "command": "python torchrun --nproc-per-node=4 train.py",
        "age": 7510.0,
        "role": ProcessRole.LAUNCHER,
    }
    return Process(**usual | facts)


SHELL = Process(pid=4000, start=100, parent=1, uid=1000, user="alice", name="bash", command="bash run.sh", age=9000.0)


def processes(*listed: Process, **facts: Any) -> Processes:
    """With the shell from which all was started; alice looks."""
    usual: dict[str, Any] = {"count": 412, "watched": 0.25, "cores": 64, "uid": 1000}
    return Processes(listed=tuple(sorted((SHELL, *listed), key=lambda one: one.pid)), **usual | facts)


def gpus(held: Mapping[int, Sequence[GpuHolder]] = {}, count: int = 4) -> Gpus:
    """GPUs, and who is on them by index."""
    devices = tuple(
        Gpu(
            index=index,
            name="NVIDIA H100 80GB HBM3",
            memory_total=80 * GIB,
            memory_used=sum(one.memory for one in held.get(index, ()) if isinstance(one.memory, int)),
            mig_enabled=False,
            holders=tuple(held.get(index, ())),
        )
        for index in range(count)
    )
    return Gpus(devices=devices, vendor="nvidia")


def on_their_gpus(ranks: Sequence[Process], memory: int = 31 * GIB) -> dict[int, list[GpuHolder]]:
    """Each on the GPU of its local rank."""
    held: dict[int, list[GpuHolder]] = {}
    for process in ranks:
        assert process.place is not None
        assert process.place.local_rank is not None
        held.setdefault(process.place.local_rank, []).append(GpuHolder(pid=process.pid, memory=memory))
    return held


def running(looked: Processes, seen: Gpus | None = None) -> Snapshot:
    """The host with these processes; without GPUs unless some are given."""
    return Snapshot(
        host="node07",
        processes=looked,
        gpus=Gpus(devices=()) if seen is None else seen,
        environment=Environment(settings=()),
        container=Container(runtime=None),
    )
