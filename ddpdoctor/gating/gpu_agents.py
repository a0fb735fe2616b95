"""Tells programs that look after a host's GPUs, and hold them, from what a job has left: they belong to no job, wherever they were started."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ddpdoctor.facts.processes import Process
from ddpdoctor.gating.name_files import NameFile, NameFileError, read_names

FILE: Final = "/etc/ddpdoctor/gpu-agents"
"""Names more programs, one a line."""
FIRST_PERSONS_UID: Final = 1000
"""Below are the accounts of the system: a user who calls a program as an agent is called makes none of it."""
KERNELS_NAME_BYTES: Final = 15
"""So many of a program's name the kernel keeps."""
USUAL_AGENTS: Final = frozenset(
    {
        "Xorg",
        "Xwayland",
        "amd-metrics-exporter",
        "amd_smi_exporter",
        "dcgm-exporter",
        "dcgmi",
        "dynolog",
        "gpuagent",
        "gpud",
        "nv-fabricmanager",
        "nv-hostengine",
        "nvidia-cuda-mps-control",
        "nvidia-cuda-mps-server",
        "nvidia-fabricmanager",
        "nvidia-persistenced",
        "nvidia-smi",
        "nvidia_gpu_exporter",
        "nvsm_core",
        "rdcd",
        "telegraf",
    }
)


def read_agents() -> NameFile:
    """Read the administrator's own names of agents; what can't be read, or is not believed, is said and names none."""
    try:
        return read_names(FILE, "the list of GPU agents", may_be_missing=True)
    except NameFileError as error:
        return NameFile(remarks=(str(error),))


def is_agent(process: Process, names: Collection[str] = ()) -> bool:
    """Whether it looks after the host's GPUs: one of the system's accounts runs it, as a service or under such a program's name.

    Args:
        process: whose it may be said of.
        names: of programs, beside the usual ones.
    """
    if process.uid >= FIRST_PERSONS_UID:
        return False
    known = {name[:KERNELS_NAME_BYTES] for name in (*USUAL_AGENTS, *names)}
    program = process.executable.rpartition("/")[2] if isinstance(process.executable, str) else ""
    return process.unit.endswith(".service") or bool({process.name, program[:KERNELS_NAME_BYTES]} & known)
