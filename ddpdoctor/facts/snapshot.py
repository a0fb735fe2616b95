"""A Snapshot: all the facts of one host, serialisable, with a schema version."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.accelerate import Accelerate as Accelerate
from ddpdoctor.facts.cgroup import Cgroup as Cgroup
from ddpdoctor.facts.checkpoints import Checkpoints as Checkpoints
from ddpdoctor.facts.container import Container as Container
from ddpdoctor.facts.disks import Disks as Disks
from ddpdoctor.facts.driver import Driver as Driver
from ddpdoctor.facts.environment import Environment as Environment
from ddpdoctor.facts.extensions import Extensions as Extensions
from ddpdoctor.facts.firewall import Firewall as Firewall
from ddpdoctor.facts.fleet import Fleet as Fleet
from ddpdoctor.facts.gpus import Gpus as Gpus
from ddpdoctor.facts.hang import Hang as Hang
from ddpdoctor.facts.kernel_log import KernelLog as KernelLog
from ddpdoctor.facts.libraries import Libraries as Libraries
from ddpdoctor.facts.limits import Limits as Limits
from ddpdoctor.facts.log import Log as Log
from ddpdoctor.facts.machine import Machine as Machine
from ddpdoctor.facts.meeting import Meeting as Meeting
from ddpdoctor.facts.nccl import Nccl as Nccl
from ddpdoctor.facts.network import Network as Network
from ddpdoctor.facts.packages import Packages as Packages
from ddpdoctor.facts.pci import Pci as Pci
from ddpdoctor.facts.preflight import Preflight as Preflight
from ddpdoctor.facts.processes import Processes as Processes
from ddpdoctor.facts.rdma import Rdma as Rdma
from ddpdoctor.facts.script import Script as Script
from ddpdoctor.facts.shared_memory import SharedMemory as SharedMemory
from ddpdoctor.facts.smoke import Smoke as Smoke
from ddpdoctor.facts.target_python import TargetPython as TargetPython
from ddpdoctor.facts.toolchain import Toolchain as Toolchain
from ddpdoctor.facts.torch import Torch as Torch

SCHEMA = 1
"""Raised when a field changes its meaning; a new field doesn't raise it."""

NOT_PROBED = Unknown("not looked at: no chosen check needs it")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one host at one moment. A group that could not be learned is `Unknown`."""

    ddpdoctor_snapshot: int = SCHEMA
    """The schema's version; a file without it isn't a snapshot."""
    tool_version: str = ""
    taken_at: str = ""
    """UTC, ISO 8601."""
    host: str = ""
    """The host's name."""

    # Called so since the first snapshots, which are still read.
    target_python: Maybe[TargetPython] = msgspec.field(default=NOT_PROBED, name="patient")
    torch: Maybe[Torch] = NOT_PROBED
    packages: Maybe[Packages] = NOT_PROBED
    libraries: Maybe[Libraries] = NOT_PROBED
    extensions: Maybe[Extensions] = NOT_PROBED
    toolchain: Maybe[Toolchain] = NOT_PROBED
    driver: Maybe[Driver] = NOT_PROBED
    gpus: Maybe[Gpus] = NOT_PROBED
    pci: Maybe[Pci] = NOT_PROBED
    kernel_log: Maybe[KernelLog] = NOT_PROBED
    container: Maybe[Container] = NOT_PROBED
    machine: Maybe[Machine] = NOT_PROBED
    shared_memory: Maybe[SharedMemory] = NOT_PROBED
    limits: Maybe[Limits] = NOT_PROBED
    disks: Maybe[Disks] = NOT_PROBED
    cgroup: Maybe[Cgroup] = NOT_PROBED
    environment: Maybe[Environment] = NOT_PROBED
    network: Maybe[Network] = NOT_PROBED
    accelerate: Maybe[Accelerate] = NOT_PROBED
    nccl: Maybe[Nccl] = NOT_PROBED
    firewall: Maybe[Firewall] = NOT_PROBED
    rdma: Maybe[Rdma] = NOT_PROBED
    processes: Maybe[Processes] = NOT_PROBED
    checkpoints: Maybe[Checkpoints] = Checkpoints(files=())
    """Without any file where nobody named one: unlike the host, checkpoints are looked at only where that is asked for."""
    meeting: Maybe[Meeting] = Meeting()
    fleet: Maybe[Fleet] = Fleet()
    """As long as nobody tried anything between hosts, both are empty."""
    smoke: Maybe[Smoke] = Smoke()
    """Without any rank where no smoke training was run."""
    hang: Maybe[Hang] = Hang()
    """Without any rank where no running job was looked at."""
    log: Maybe[Log] = Log()
    """Without any file where no log was read."""
    preflight: Maybe[Preflight] = Preflight()
    """Without any rank where no job was looked at from within."""
    script: Maybe[Script] = Script()
    """Without a path where no training script was read."""


HEADER = ("ddpdoctor_snapshot", "tool_version", "taken_at", "host")

GROUPS = tuple(name for name in Snapshot.__struct_fields__ if name not in HEADER)
"""Names of the groups of facts; a probe and a check's parameter go by the same name."""

EXPERIMENTS = ("meeting", "fleet", "smoke", "hang", "log", "preflight", "script")
"""Groups that no look at a host can fill in: `netcheck` and `smoke` do, by trying things out, `jobs --hang`, `diagnose-log`, `preflight()` and
`lint`."""

_BLANK = Snapshot()
UNTRIED = {name: facts for name in GROUPS if not isinstance(facts := getattr(_BLANK, name), Unknown)}
"""Groups that are looked into only where somebody asks for it, as they are as long as nobody did."""
