"""Shared memory: what ranks and DataLoader workers hand each other."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from signal import Signals

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix, Owner
from ddpdoctor.base.text import GIB, MIB, human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Container, Gpus, Machine, Processes, SharedMemory
from ddpdoctor.knowledge.evidence import planned, told
from ddpdoctor.knowledge.privileges import by_root, runtime_of
from ddpdoctor.processes.leftovers.leftover import MAX_NAMED, kill_command
from ddpdoctor.processes.leftovers.segments import left_segments, why_use_is_unknown
from ddpdoctor.report.reported_leftovers import LeftoverKind

LIKE_DOCKER = ("docker", "podman", "containerd")
"""Runtimes with Docker's options."""

SHM_NCCL = 64 * MIB
"""NCCL's shared memory transport: a segment of up to 32 MiB for sending and one for receiving, a rank."""
SHM_LOADER = 256 * MIB
"""NCCL, and four DataLoader workers that each have two batches of 32 float images of 224 x 224 (19 MiB) on the way."""


@check("shm-too-small", severity=FAIL, owner=Owner.USER, stands_for=(Signals.SIGBUS,))
def shm_too_small(
    shared_memory: SharedMemory, container: Maybe[Container], gpus: Maybe[Gpus], machine: Maybe[Machine], plan: Plan
) -> Iterator[Finding]:
    """Shared memory has too little room for these ranks and their DataLoader workers.

    ## What breaks
    NCCL cannot create its segments and init fails, or a DataLoader worker dies with "Bus error" in the middle of an
    epoch, and its rank takes the others down.

    ## Why
    Containers get 64 MiB of /dev/shm unless told otherwise. NCCL needs about 64 MiB per rank there when GPUs can't reach
    each other directly, and every batch that a DataLoader worker hands over lies there too: some 200 MiB per rank for
    images. Outside of containers Linux gives half of the memory, which is enough, unless something has filled it.

    ## Fix
    Docker and Podman: `--ipc=host`, or `--shm-size=16g`. Kubernetes: an emptyDir with `medium: Memory` on /dev/shm. As
    root: `mount -o remount,size=16g /dev/shm`. Until then `num_workers=0` keeps the DataLoader out of it.
    """
    if not shared_memory.exists:
        yield Finding.of(
            "/dev/shm doesn't exist: NCCL and DataLoader workers can't share memory",
            told(shared_memory, "exists", "there is no /dev/shm"),
            _more_shared_memory(container, machine, plan),
            cause=_too_little_memory(machine, plan),
            owner=_owner(container),
        )
        return
    if shared_memory.writable is False:
        yield _not_writable(shared_memory, container)
        return
    size = shared_memory.size
    wanted = plan.nproc * SHM_LOADER
    # What is free is at most the whole.
    small = isinstance(size, int) and size < wanted and isinstance(shared_memory.free, Unknown)
    free = known(size if small else shared_memory.free)
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
    yield Finding.of(
        summary,
        told(shared_memory, "size", f"size of /dev/shm: {human(size)}") if isinstance(size, int) else None,
        told(shared_memory, "free", f"free in /dev/shm: {human(free)}") if shared_memory.free == free else None,
        planned(plan),
        fixes,
        cause=cause,
        severity=severity,
        owner=_owner(container),
    )


def _not_writable(shared_memory: SharedMemory, container: Maybe[Container]) -> Finding:
    if shared_memory.read_only:
        reason, fix = "/dev/shm is mounted read-only", _mounted_writable(container)
    else:
        reason, fix = "/dev/shm is not writable", by_root("Restore its permissions", ("sudo chmod 1777 /dev/shm",))
    return Finding.of(
        "This user may not write to /dev/shm: NCCL and DataLoader workers can't share memory",
        told(shared_memory, "read_only" if shared_memory.read_only else "writable", reason),
        fix,
        cause=f"{reason}." if shared_memory.read_only else "",
        owner=_owner(container),
    )


def _owner(container: Maybe[Container]) -> Owner:
    """Who starts a container says how large its shared memory is."""
    if isinstance(container, Unknown):
        return Owner.UNKNOWN
    return Owner.NODE if runtime_of(container) is None else Owner.USER


def _mounted_writable(container: Maybe[Container]) -> Fix:
    runtime = runtime_of(container)
    if runtime in LIKE_DOCKER:
        return Fix("Start the container without `:ro` on /dev/shm, or with `--ipc=host`, or with `--shm-size=16g`")
    if runtime == "kubernetes":
        return Fix("Take `readOnly: true` out of the `volumeMounts` entry of /dev/shm in the pod")
    if runtime is not None:
        return Fix("Start the container with the host's /dev/shm mounted writable into it (`--bind /dev/shm`)")
    return by_root("Mount it writable", ("sudo mount -o remount,rw /dev/shm",))


def _enough(machine: Maybe[Machine], plan: Plan) -> int:
    """A size in GiB: twice what the ranks may need, within the machine's memory."""
    memory = _memory(machine)
    wanted = max(2, math.ceil(2 * plan.nproc * SHM_LOADER / GIB))
    return wanted if memory is None else max(1, min(wanted, memory // GIB))


def _memory(machine: Maybe[Machine]) -> int | None:
    return None if isinstance(machine, Unknown) else known_or(machine.memory_total, None)


def _too_little_memory(machine: Maybe[Machine], plan: Plan) -> str:
    """Why no /dev/shm would be large enough on this host; "" where one would, or that isn't known."""
    memory = _memory(machine)
    if memory is None or memory >= plan.nproc * SHM_LOADER:
        return ""
    ranks = plural(plan.nproc, "rank")
    return (
        f"/dev/shm lies in memory, of which this host has {human(memory)} in all: too little for the DataLoader workers"
        f" of {ranks}, however large /dev/shm is."
    )


def _more_shared_memory(
    container: Maybe[Container], machine: Maybe[Machine], plan: Plan, size: int | None = None
) -> tuple[Fix, ...]:
    """Fixes for a /dev/shm that has this size in bytes, which is too small, or None: that is missing."""
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
    if runtime in LIKE_DOCKER:
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
    text = f"{'Enlarge' if has_size else 'Make'} it, until the next start of the host"
    return (by_root(text, tuple(f"sudo {command}" for command in commands)),)


@check("shm-stale-segments", severity=INFO, owner=Owner.NODE, stands_for=(LeftoverKind.SEGMENT,))
def shm_stale_segments(shared_memory: SharedMemory, processes: Maybe[Processes]) -> Iterator[Finding]:
    """Segments of jobs that died lie in shared memory.

    ## What breaks
    Nothing at first. They take memory that no process uses, and once /dev/shm is full the next job dies with "Bus
    error" or "No space left on device".

    ## Why
    NCCL, torch and Python's multiprocessing remove their segments when they end normally. After `kill -9`, a crash
    or the OOM killer no process removes them, and they stay until the next start of the host.

    ## Fix
    `ddpdoctor zombies --kill` checks again, and removes those of yours that no process can open any more; or `rm` with exactly
    these names. Those of a running job must stay, and what Python's shared_memory made may be there on purpose. Without root not
    all processes can be examined: then nothing is sure, and `ddpdoctor zombies` lists what may be left over.
    """
    stale = known(shared_memory.stale)
    if not stale:
        return
    if reason := why_use_is_unknown(shared_memory, f"the {plural(len(stale), 'segment')} that nobody else uses"):
        known(Unknown(reason))
    size = shared_memory.size
    heavy = isinstance(size, int) and shared_memory.stale_size > size // 4
    verb = "takes" if len(stale) == 1 else "take"
    yield Finding.of(
        f"{plural(len(stale), 'segment')} that no process uses {verb} {human(shared_memory.stale_size)} of /dev/shm",
        told(shared_memory, "stale", f"no process uses {listed(stale)}"),
        _without_them(shared_memory, processes),
        severity=WARN if heavy else INFO,
    )
    known(size)


def _without_them(shared_memory: SharedMemory, processes: Maybe[Processes]) -> Iterator[Fix]:
    """First for those that no process can come back for, which ddpdoctor itself may remove."""
    left = tuple(left_segments(shared_memory, processes))
    proven = [segment for segment in left if segment.proven]
    others = [segment.path for segment in left if not segment.proven]
    if proven:
        some = f"Remove {len(proven)} that are yours, and that no process can open any more"
        yield Fix(_first(some if others else "Remove them", len(proven)), (kill_command(proven),), appliable=True)
    if others:
        text = "Remove them" if not proven else "Remove the others, if no program is to use them later"
        yield Fix(_first(text, len(others)), (shlex.join(["rm", "-f", *others[:MAX_NAMED]]),))


def _first(text: str, count: int) -> str:
    return text if count <= MAX_NAMED else f"Remove the first {MAX_NAMED}, then check again"
