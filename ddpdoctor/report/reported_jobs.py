"""A running job as JSON tells it. Memory in bytes, times in seconds; null is what could not be learned."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.findings import Severity


class ReportedGpu(msgspec.Struct, frozen=True):
    """Memory that a rank holds on one GPU, as NVML tells. gpu: its index."""

    gpu: int
    memory: int | None
    mig_uuid: str = ""


class ReportedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A launcher, a rank or a DataLoader worker. pid_inside: in its own container, 0 where it is the same; state: the
    kernel's letter; cpu: cores that it used while it was watched; memory: resident."""

    pid: int
    pid_inside: int
    user: str
    command: str
    age: float
    state: str
    cpu: float | None
    memory: int
    waits_in: str


class ReportedRank(msgspec.Struct, frozen=True, kw_only=True):
    """rank: null where nobody says which it is; source: who says so. gpus: most memory first. remarks: words for what stands
    out."""

    rank: int | None
    local_rank: int | None
    source: str
    process: ReportedProcess
    gpus: tuple[ReportedGpu, ...]
    workers: tuple[ReportedProcess, ...]
    remarks: tuple[str, ...]


class ReportedRemark(msgspec.Struct, frozen=True):
    """Something that stands out. ranks: which; pids: empty where a rank is missing."""

    remark: str
    severity: Severity
    text: str
    ranks: tuple[int, ...]
    pids: tuple[int, ...]


class ReportedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one job on this host. name: what `ddpdoctor jobs NAME` takes; expected: the ranks that should be here, as far
    as their settings say so; launchers: several where each container has one."""

    name: str
    launchers: tuple[ReportedProcess, ...]
    world_size: int | None
    expected: tuple[int, ...]
    missing: tuple[int, ...]
    ranks: tuple[ReportedRank, ...]
    remarks: tuple[ReportedRemark, ...]
