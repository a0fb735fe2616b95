"""Shared memory: what ranks and DataLoader workers hand each other."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from signal import Signals

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix
from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.shared_fixes import runtime_of
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.processes import Processes
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.knowledge.evidence import planned, told
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.processes.leftovers.leftover import MAX_NAMED, kill_command
from ddpdoctor.processes.leftovers.segments import left_segments, why_use_is_unknown
from ddpdoctor.report.reported_leftovers import LeftoverKind

MIB = 1024**2
GIB = 1024**3

SHM_NCCL = 64 * MIB
"""NCCL's shared memory transport: a segment of up to 32 MiB for sending and one for receiving, a rank."""
SHM_LOADER = 256 * MIB
"""NCCL, and four DataLoader workers that each have two batches of 32 float images of 224 x 224 (19 MiB) on the way."""


@check("shm-too-small", severity=FAIL, stands_for=(Signals.SIGBUS,))
def shm_too_small(
    shared_memory: SharedMemory, container: Maybe[Container], gpus: Maybe[Gpus], machine: Maybe[Machine], plan: Plan
) -> Iterator[Finding]:
    """Shared memory has too little room for these ranks and their DataLoader workers.

    ## What breaks
    NCCL cannot create its segments and init fails, or a DataLoader worker dies with "Bus error" in the middle of an
    epoch, and its rank takes the others down.

    ## Why
    Containers get 64 MiB of /dev/shm unless told otherwise. NCCL needs about 64 MiB a rank there when GPUs can't reach
    each other directly, and every batch that a DataLoader worker hands over lies there too: some 200 MiB a rank for
    images. Outside of containers Linux gives half of the memory, which is enough, unless something has filled it.

    ## Fix
    Docker and Podman: `--ipc=host`, or `--shm-size=16g`. Kubernetes: an emptyDir with `medium: Memory` on /dev/shm. As
    root: `mount -o remount,size=16g /dev/shm`. Until then `num_workers=0` keeps the DataLoader out of it.
    """
    if not shared_memory.exists:
        yield Finding(
            summary="/dev/shm doesn't exist: NCCL and DataLoader workers can't share memory",
            evidence=(told(shared_memory, "exists", "there is no /dev/shm"),),
            fixes=_more_shared_memory(container, machine, plan),
            cause=_too_little_memory(machine, plan),
        )
        return
    if shared_memory.writable is False:
        yield _not_writable(shared_memory, container)
        return
    size = shared_memory.size
    wanted = plan.nproc * SHM_LOADER
    # What is free is at most the whole.
    free = size if isinstance(size, int) and size < wanted and isinstance(shared_memory.free, Unknown) else None
    free = known(shared_memory.free) if free is None else free
    if free >= wanted:
        known(shared_memory.writable)
        return
    one_host_nccl = plan.nproc > 1 and not (isinstance(gpus, Gpus) and not gpus.devices)
    severity = FAIL if one_host_nccl and free < plan.nproc * SHM_NCCL else WARN
    ranks, largest = plural(plan.nproc, "rank"), "ls -lhS /dev/shm | head -n 20"
    fixes: tuple[Fix, ...]
    if isinstance(size, Unknown):
        summary = f"/dev/shm has only {human(free)} free; {ranks} may need {human(wanted)}"
        cause = "How large it is in all could not be read."
        fixes = (Fix("See how large it is, and what fills it", ("df -h /dev/shm", largest)),)
    elif size < wanted:
        summary = f"/dev/shm has only {human(size)}; {ranks} with DataLoader workers may need {human(wanted)}"
        cause, fixes = _too_little_memory(machine, plan), _more_shared_memory(container, machine, plan, size)
    else:
        summary = f"/dev/shm is nearly full: {human(free)} of {human(size)} free; {ranks} may need {human(wanted)}"
        cause = "It is large enough; other jobs, or files left behind, fill it."
        fixes = (Fix("See what fills it, and remove what no job needs", (largest,)),)
    yield Finding(
        summary,
        cause,
        evidence=(
            *([told(shared_memory, "size", f"size of /dev/shm: {human(size)}")] if isinstance(size, int) else []),
            *([told(shared_memory, "free", f"free in /dev/shm: {human(free)}")] if shared_memory.free == free else []),
            planned(plan),
        ),
        fixes=fixes,
        severity=severity,
    )


def _not_writable(shared_memory: SharedMemory, container: Maybe[Container]) -> Finding:
    if shared_memory.read_only:
        reason, fixes = "/dev/shm is mounted read-only", _mounted_writable(container)
    else:
        reason = "/dev/shm is not writable"
        fixes = (by_root("Give it its usual permissions", ("sudo chmod 1777 /dev/shm",)),)
    return Finding(
        summary="This user may not write to /dev/shm: NCCL and DataLoader workers can't share memory",
        cause=f"{reason}." if shared_memory.read_only else "",
        evidence=(told(shared_memory, "read_only" if shared_memory.read_only else "writable", reason),),
        fixes=fixes,
    )


def _mounted_writable(container: Maybe[Container]) -> tuple[Fix, ...]:
    runtime = runtime_of(container)
    if runtime in ("docker", "podman", "containerd"):
        return (Fix("Start the container without `:ro` on /dev/shm, or with `--ipc=host`, or with `--shm-size=16g`"),)
    if runtime == "kubernetes":
        return (Fix("Take `readOnly: true` from the `volumeMounts` entry of /dev/shm in the pod"),)
    if runtime is not None:
        return (Fix("Start the container with the host's /dev/shm mounted writable into it (`--bind /dev/shm`)"),)
    return (by_root("Mount it writable", ("sudo mount -o remount,rw /dev/shm",)),)


def _enough(machine: Maybe[Machine], plan: Plan) -> int:
    """A size in GiB: twice what the ranks may need, within the machine's memory."""
    memory = machine.memory_total if isinstance(machine, Machine) else None
    wanted = max(2, math.ceil(2 * plan.nproc * SHM_LOADER / GIB))
    return max(1, min(wanted, memory // GIB)) if isinstance(memory, int) else wanted


def _too_little_memory(machine: Maybe[Machine], plan: Plan) -> str:
    """Why no /dev/shm would be large enough on this host; "" where one would, or that isn't known."""
    memory = machine.memory_total if isinstance(machine, Machine) else None
    if not isinstance(memory, int) or memory >= plan.nproc * SHM_LOADER:
        return ""
    return (
        f"What is in /dev/shm takes memory, and this host has {human(memory)} of it in all: too little for the DataLoader"
        f" workers of {plural(plan.nproc, 'rank')}, however large /dev/shm is."
    )


def _more_shared_memory(
    container: Maybe[Container], machine: Maybe[Machine], plan: Plan, size: int | None = None
) -> tuple[Fix, ...]:
    """Fixes for a /dev/shm that is too small, or missing.

    Args:
        container: whose /dev/shm it may be.
        machine: whose memory bounds it.
        plan: how many ranks are to share it.
        size: of /dev/shm as it is, in bytes; None where there is none.
    """
    gibibytes = _enough(machine, plan)
    larger = _larger(container, gibibytes, has_size=size is not None) if gibibytes * GIB > (size or 0) else ()
    if larger and not _too_little_memory(machine, plan):
        return (*larger, Fix("Until then use `num_workers=0` in every DataLoader, which keeps it out of /dev/shm"))
    fewer = "Start fewer ranks on this host, or give each DataLoader fewer workers: `num_workers=0` needs no /dev/shm"
    return (Fix(fewer), *larger)


def _larger(container: Maybe[Container], gibibytes: int, *, has_size: bool) -> tuple[Fix, ...]:
    """Fixes that bring a /dev/shm of that size."""
    runtime = runtime_of(container)
    remount = f"mount -o remount,size={gibibytes}g /dev/shm"
    mount = f"mount -t tmpfs -o mode=1777,size={gibibytes}g tmpfs /dev/shm"
    commands = (remount,) if has_size else ("mkdir -p /dev/shm", mount)
    if runtime in ("docker", "podman", "containerd"):
        return (
            Fix(f"Start the container with `--ipc=host`, or with `--shm-size={gibibytes}g`"),
            Fix("Or, as root in a privileged container, at once", commands),
        )
    if runtime == "kubernetes":
        return (
            Fix(
                "Add to the pod's `volumes`: `{name: shm, emptyDir: {medium: Memory}}`, and to the container's "
                "`volumeMounts`: `{name: shm, mountPath: /dev/shm}`"
            ),
        )
    if runtime is not None:
        return (Fix("Start the container with the host's /dev/shm mounted into it (`--bind /dev/shm`)"),)
    return (
        by_root(
            f"{'Enlarge' if has_size else 'Make'} it, until the next start of the host",
            tuple(f"sudo {command}" for command in commands),
        ),
    )


@check("shm-stale-segments", severity=INFO, stands_for=(LeftoverKind.SEGMENT,))
def shm_stale_segments(shared_memory: SharedMemory, processes: Maybe[Processes]) -> Iterator[Finding]:
    """Segments of jobs that died lie in shared memory.

    ## What breaks
    Nothing at first. They take memory that no process uses, and once /dev/shm is full the next job dies with "Bus
    error" or "No space left on device".

    ## Why
    NCCL, torch and Python's multiprocessing remove their segments when they end in good order. After `kill -9`, a crash
    or the OOM killer nobody does, and they stay until the next start of the host.

    ## Fix
    `ddpdoctor zombies --kill` looks again and removes those of yours that nobody can come for any more; or `rm` with exactly
    these names. Those of a running job must stay, and what Python's shared_memory made may be meant to stay. Without root not
    all processes can be looked into: then nothing is sure, and `ddpdoctor zombies` lists what may be left over.
    """
    stale = known(shared_memory.stale)
    if not stale:
        return
    if reason := why_use_is_unknown(shared_memory, f"the {plural(len(stale), 'segment')} that nobody else uses"):
        known(Unknown(reason))
    size = shared_memory.size
    heavy = isinstance(size, int) and shared_memory.stale_size > size // 4
    count = plural(len(stale), "segment")
    yield Finding(
        summary=f"{count} that no process uses {'takes' if len(stale) == 1 else 'take'} {human(shared_memory.stale_size)} of /dev/shm",
        evidence=(told(shared_memory, "stale", f"no process uses {listed(stale)}"),),
        fixes=tuple(_without_them(shared_memory, processes)),
        severity=WARN if heavy else INFO,
    )


def _without_them(shared_memory: SharedMemory, processes: Maybe[Processes]) -> Iterator[Fix]:
    """First those that are proven to be nobody's any more and may be removed by ddpdoctor itself."""
    left = tuple(left_segments(shared_memory, processes))
    proven = [segment for segment in left if segment.proven]
    others = [segment.path for segment in left if not segment.proven]
    if proven:
        some = f"Remove {len(proven)} that are yours, and that nobody can come for any more"
        yield Fix(_first(some if others else "Remove them", len(proven)), (kill_command(proven),), appliable=True)
    if others:
        text = "Remove them" if not proven else "Remove the others, if no program is to use them later"
        yield Fix(_first(text, len(others)), (shlex.join(["rm", "-f", *others[:MAX_NAMED]]),))


def _first(text: str, count: int) -> str:
    return text if count <= MAX_NAMED else f"Remove the first {MAX_NAMED}, then check again"
