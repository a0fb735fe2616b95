"""What the host gives a job besides GPUs: shared memory, limits, disks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.base import Maybe, Unknown, known
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.disks import Disk, Disks
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.limits import Limits
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.network import Network
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Severity
from ddpdoctor.knowledge import launchers
from ddpdoctor.knowledge.evidence import planned, told
from ddpdoctor.knowledge.job_intent import several_nodes
from ddpdoctor.knowledge.nvidia import NO_GPU
from ddpdoctor.knowledge.root import by_root
from ddpdoctor.registry import LogSign, check, requires
from ddpdoctor.wording import human, listed, plural

MIB = 1024**2
GIB = 1024**3

SHM_NCCL = 64 * MIB
"""NCCL's shared memory transport: a segment of up to 32 MiB for sending and one for receiving, a rank."""
SHM_LOADER = 256 * MIB
"""NCCL, and four DataLoader workers that each have two batches of 32 float images of 224 x 224 (19 MiB) on the way."""


@check(
    "shm-too-small",
    severity=FAIL,
    log_signs=(
        LogSign("Call to posix_fallocate failed : No space left on device"),
        LogSign("Error while creating shared memory segment"),
        LogSign("failed to extend /dev/shm/nccl-"),
        LogSign("killed by signal: Bus error"),
        LogSign("It is possible that dataloader's workers are out of shared memory"),
        LogSign("Unexpected bus error encountered in worker"),
    ),
)
def shm_too_small(
    shared_memory: SharedMemory, container: Maybe[Container], gpus: Maybe[Gpus], plan: Plan
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
            fixes=_more_shared_memory(container, plan, has_size=False),
        )
        return
    if shared_memory.writable is False:
        yield Finding(
            summary="This user may not write to /dev/shm: NCCL and DataLoader workers can't share memory",
            evidence=(told(shared_memory, "writable", "/dev/shm is not writable"),),
            fixes=(
                by_root(
                    "Give it its usual permissions",
                    ("sudo chmod 1777 /dev/shm",),
                ),
            ),
        )
        return
    size, free = known(shared_memory.size), known(shared_memory.free)
    wanted = plan.nproc * SHM_LOADER
    if free >= wanted:
        known(shared_memory.writable)
        return
    one_host_nccl = plan.nproc > 1 and not (isinstance(gpus, Gpus) and not gpus.devices)
    severity = FAIL if one_host_nccl and free < plan.nproc * SHM_NCCL else WARN
    evidence = (
        told(shared_memory, "size", f"size of /dev/shm: {human(size)}"),
        told(shared_memory, "free", f"free in /dev/shm: {human(free)}"),
        planned(plan),
    )
    if size < wanted:
        yield Finding(
            summary=f"/dev/shm has only {human(size)}; {plural(plan.nproc, 'rank')} with DataLoader workers may need {human(wanted)}",
            evidence=evidence,
            fixes=_more_shared_memory(container, plan, has_size=True),
            severity=severity,
        )
    else:
        yield Finding(
            summary=f"/dev/shm is nearly full: {human(free)} of {human(size)} free; "
            f"{plural(plan.nproc, 'rank')} may need {human(wanted)}",
            cause="It is large enough; other jobs, or files left behind, fill it.",
            evidence=evidence,
            fixes=(Fix("See what fills it, and remove what no job needs", ("ls -lhS /dev/shm | head -n 20",)),),
            severity=severity,
        )


def _more_shared_memory(container: Maybe[Container], plan: Plan, *, has_size: bool) -> tuple[Fix, ...]:
    runtime = container.runtime if isinstance(container, Container) else None
    gibibytes = max(8, 2 * plan.nproc)
    remount = f"mount -o remount,size={gibibytes}g /dev/shm"
    mount = f"mount -t tmpfs -o mode=1777,size={gibibytes}g tmpfs /dev/shm"
    commands = (remount,) if has_size else ("mkdir -p /dev/shm", mount)
    without_it = (Fix("Until then use `num_workers=0` in every DataLoader, which keeps it out of /dev/shm"),)
    if runtime in ("docker", "podman", "containerd"):
        return (
            Fix(f"Start the container with `--ipc=host`, or with `--shm-size={gibibytes}g`"),
            Fix("Or, as root in a privileged container, at once", commands),
            *without_it,
        )
    if runtime == "kubernetes":
        return (
            Fix(
                "Add to the pod's `volumes`: `{name: shm, emptyDir: {medium: Memory}}`, and to the container's "
                "`volumeMounts`: `{name: shm, mountPath: /dev/shm}`"
            ),
            *without_it,
        )
    if runtime is not None:
        return (Fix("Start the container with the host's /dev/shm mounted into it (`--bind /dev/shm`)"), *without_it)
    return (
        by_root(
            f"{'Enlarge' if has_size else 'Make'} it, until the next start of the host",
            tuple(f"sudo {one}" for one in commands),
        ),
        *without_it,
    )


MOST_REMOVED = 32


@check("shm-stale-segments", severity=INFO)
def shm_stale_segments(shared_memory: SharedMemory) -> Iterator[Finding]:
    """Segments of jobs that died lie in shared memory.

    ## What breaks
    Nothing at first. They take memory that no process uses, and once /dev/shm is full the next job dies with "Bus
    error" or "No space left on device".

    ## Why
    NCCL, torch and Python's multiprocessing remove their segments when they end in good order. After `kill -9`, a crash
    or the OOM killer nobody does, and they stay until the next start of the host.

    ## Fix
    Remove those that no process maps: `rm` with exactly these names. Those of a running job must stay.
    """
    stale = known(shared_memory.stale)
    if not stale:
        return
    size = shared_memory.size
    heavy = isinstance(size, int) and shared_memory.stale_size > size // 4
    count = plural(len(stale), "segment")
    yield Finding(
        summary=f"{count} of dead jobs {'takes' if len(stale) == 1 else 'take'} {human(shared_memory.stale_size)} of /dev/shm",
        evidence=(told(shared_memory, "stale", f"no process uses {listed(stale)}"),),
        fixes=(
            Fix(
                "Remove them" if len(stale) <= MOST_REMOVED else f"Remove the first {MOST_REMOVED}, then check again",
                (shlex.join(["rm", "-f", *stale[:MOST_REMOVED]]),),
            ),
        ),
        severity=WARN if heavy else INFO,
    )


@check(
    "memlock-limit",
    severity=FAIL,
    log_signs=(
        LogSign("Call to ibv_reg_mr failed"),
        LogSign("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
        LogSign("Call to ibv_create_cq failed"),
    ),
)
def memlock_limit(
    limits: Limits, container: Maybe[Container], environment: Maybe[Environment], network: Maybe[Network], gpus: Gpus
) -> Iterator[Finding]:
    """The limit on locked memory is too small for InfiniBand or RoCE.

    ## What breaks
    NCCL finds the network card, cannot register its buffers with it, and init fails on jobs with several nodes.

    ## Why
    An RDMA card writes into memory directly, so that memory must be locked, and `ulimit -l` bounds it. The default is 64
    KiB to 8 MiB; NCCL's buffers take some ten MiB a connection and up to several hundred MiB a rank. Login shells, slurmd
    and the Docker daemon each have a limit of their own. Root outside of containers is exempt (CAP_IPC_LOCK), and plain
    TCP needs none.

    ## Fix
    Docker: `--ulimit memlock=-1`. Hosts: `* soft memlock unlimited` and `* hard memlock unlimited` in
    /etc/security/limits.d. Slurm: `LimitMEMLOCK=infinity` in the unit of slurmd.
    """
    requires(gpus.devices, NO_GPU)
    requires(limits.rdma_devices, "no RDMA device on this host")
    requires(limits.may_lock_memory is not True, "this process may lock any amount of memory")
    soft = known(limits.memlock_soft)
    if soft == -1 or soft >= GIB:
        return
    known(limits.may_lock_memory)
    several_nodes = _several_nodes(environment, network)
    yield Finding(
        summary=f"A process may lock only {human(soft)} of memory; NCCL over {listed(limits.rdma_devices, 3)} needs it unlimited"
        + ("" if several_nodes else " in jobs over several nodes"),
        evidence=(
            told(limits, "memlock_soft", f"locked memory (`ulimit -l`): {human(soft)}"),
            told(limits, "rdma_devices", f"InfiniBand or RoCE cards: {listed(limits.rdma_devices)}"),
            *((Evidence(several_nodes, "environment"),) if several_nodes else ()),
        ),
        fixes=_lock_more(limits, container),
        # On one node NCCL registers nothing with the card.
        severity=INFO if not several_nodes else FAIL if soft < 64 * MIB else WARN,
    )


def _several_nodes(environment: Maybe[Environment], network: Maybe[Network]) -> str:
    """The sign of a job over several nodes, in words."""
    if isinstance(environment, Unknown):
        return ""
    if isinstance(network, Unknown):
        return launchers.several_nodes(environment) or ""
    return several_nodes(environment, network)


def _lock_more(limits: Limits, container: Maybe[Container]) -> tuple[Fix, ...]:
    if limits.memlock_hard == -1:
        return (Fix("Raise it in the shell or script that starts training", ("ulimit -l unlimited",)),)
    if isinstance(container, Container) and container.runtime is not None:
        return (
            Fix(
                "Start the container with `--ulimit memlock=-1` (in Kubernetes: the capability IPC_LOCK in its securityContext)"
            ),
        )
    line = "* soft memlock unlimited\\n* hard memlock unlimited\\n"
    return (
        by_root(
            "Raise it for new logins, then log in again",
            (f"printf '{line}' | sudo tee /etc/security/limits.d/90-rdma.conf",),
        ),
        Fix("In Slurm jobs: ask the administrator for `LimitMEMLOCK=infinity` in the unit of slurmd"),
    )


NOFILE_WANTED = 4096


def _nofile_floor(world: int) -> int:
    """Files that the simplest job opens: CUDA and torch about 100, the tensors of a few DataLoader workers as many, and
    gloo keeps a socket to every peer for each process group, of which there may be four."""
    return max(512, 256 + 4 * world)


@check(
    "nofile-limit",
    severity=WARN,
    log_signs=(
        LogSign("received 0 items of ancdata"),
        LogSign("Too many open files"),
        LogSign("unable to open shared memory object", why="also where /dev/shm is full"),
    ),
)
def nofile_limit(
    limits: Limits, container: Maybe[Container], environment: Maybe[Environment], plan: Plan
) -> Iterator[Finding]:
    """Too few files may be open at once for a job of this size.

    ## What breaks
    After minutes or hours the DataLoader fails with "Too many open files" or "received 0 items of ancdata".

    ## Why
    Every tensor that a DataLoader worker hands over is an open file in the rank until it is freed, and every peer in the
    job costs NCCL and gloo sockets. The usual limit of 1024 a process is enough for most jobs on one host; many DataLoader
    workers, many small tensors a batch, or hundreds of ranks need more.

    ## Fix
    Raise the soft limit to the hard one in the script that starts training: `ulimit -n $(ulimit -Hn)`. Or hand tensors
    over by name: `torch.multiprocessing.set_sharing_strategy("file_system")`.
    """
    soft, hard = known(limits.nofile_soft), known(limits.nofile_hard)
    named = None if isinstance(environment, Unknown) else launchers.number(environment.get("WORLD_SIZE"))
    world = max(plan.nproc, named or 0)
    wanted = max(_nofile_floor(world), NOFILE_WANTED if world >= 4 else 0)
    if soft == -1 or soft >= wanted:
        return
    sharing = Fix("Or hand tensors over by name: `torch.multiprocessing.set_sharing_strategy('file_system')`")
    if hard == -1 or hard >= wanted:
        raised = 65536 if hard == -1 else min(hard, 65536)
        raise_it = Fix("Raise it in the shell or script that starts training", (f"ulimit -n {raised}",))
    elif isinstance(container, Container) and container.runtime is not None:
        raise_it = Fix("Start the container with `--ulimit nofile=65536:65536`")
    else:
        line = "* soft nofile 65536\\n* hard nofile 1048576\\n"
        raise_it = by_root(
            "Raise it for new logins, then log in again",
            (f"printf '{line}' | sudo tee /etc/security/limits.d/90-nofile.conf",),
        )
    yield Finding(
        summary=f"A process may open only {soft} files; {plural(world, 'rank')} with DataLoader workers may need {wanted}",
        evidence=(
            told(limits, "nofile_soft", f"open files (`ulimit -n`): {soft}"),
            told(limits, "nofile_hard", f"open files at most (`ulimit -Hn`): {'unlimited' if hard == -1 else hard}"),
            planned(plan),
        ),
        fixes=(raise_it, sharing),
        severity=WARN if soft < _nofile_floor(world) else INFO,
    )


THREADS_FLOOR = 32
THREADS_WANTED = 200
"""Processes and threads a rank: CUDA, NCCL, autograd and OpenMP about a hundred, four DataLoader workers the rest."""


@check(
    "pids-limit",
    severity=WARN,
    log_signs=(
        LogSign("pthread_create failed", why="not verified against a release"),
        LogSign("can't start new thread"),
    ),
)
def pids_limit(cgroup: Cgroup, limits: Limits, machine: Maybe[Machine], plan: Plan) -> Iterator[Finding]:
    """Too few processes and threads are allowed for these ranks.

    ## What breaks
    "can't start new thread", "pthread_create failed: Resource temporarily unavailable" or a fork that fails, often
    while numpy or OpenMP is imported.

    ## Why
    Threads count as processes. A rank has about a hundred (CUDA, NCCL, autograd, OpenMP) and its DataLoader workers as many
    again. Containers, pods and login nodes limit their number.

    ## Fix
    Docker and Podman: `--pids-limit=-1`. Kubernetes: the node's podPidsLimit. Login nodes: run in a job instead. Fewer
    threads: `OMP_NUM_THREADS=1`, fewer DataLoader workers.
    """
    limit = known(cgroup.pids_limit)
    if limit is not None and limit >= plan.nproc * THREADS_WANTED:
        known(cgroup.pids_used)
    used = cgroup.pids_used if isinstance(cgroup.pids_used, int) else 0
    if limit is not None and limit - used < plan.nproc * THREADS_WANTED:
        yield Finding(
            summary=f"Only {limit - used} more processes and threads are allowed here; {plural(plan.nproc, 'rank')} may need "
            f"{plan.nproc * THREADS_WANTED}",
            evidence=(
                told(cgroup, "pids_limit", f"limit of processes and threads: {limit}"),
                told(cgroup, "pids_used", f"in use: {used}"),
                planned(plan),
            ),
            fixes=(
                Fix("Start the container or job with a higher limit (Docker, Podman: `--pids-limit=-1`)"),
                Fix("Until then use fewer threads", ("export OMP_NUM_THREADS=1",)),
            ),
            severity=FAIL if limit - used < plan.nproc * THREADS_FLOOR else WARN,
        )
    processes = known(limits.processes_soft)
    is_root = isinstance(machine, Machine) and machine.user_id == 0  # Root is exempt.
    if processes != -1 and processes < plan.nproc * THREADS_WANTED and not is_root:
        yield Finding(
            summary=f"This user may have only {processes} processes and threads; {plural(plan.nproc, 'rank')} may need "
            f"{plan.nproc * THREADS_WANTED}",
            evidence=(
                told(limits, "processes_soft", f"processes and threads (`ulimit -u`): {processes}"),
                planned(plan),
            ),
            fixes=(Fix("Raise the limit as far as it goes", ("ulimit -u $(ulimit -Hu)",)),),
        )


FLOORS: dict[str, tuple[int, int]] = {
    "working folder": (256 * MIB, 5 * GIB),
    "temporary files": (16 * MIB, 512 * MIB),
    "home": (0, 128 * MIB),
    "torch cache": (0, GIB),
    "Hugging Face cache": (0, GIB),
    "Triton cache": (0, GIB // 4),
}
"""Free bytes below which it fails, and warns. A checkpoint of a billion parameters with Adam takes 12 GB; a small one 5."""
INODES_WANTED = 1000


def _floors(disk: Disk) -> tuple[int, int]:
    return FLOORS.get(disk.purpose, (0, 0))


@check(
    "disk-full",
    severity=FAIL,
    log_signs=(
        LogSign("PytorchStreamWriter failed writing file"),
        LogSign("file write failed"),
        LogSign("unexpected pos"),
        LogSign("No space left on device", why="also where /dev/shm or the inodes are full"),
        LogSign("Disk quota exceeded", why="not verified against a release"),
        LogSign("failed with Input/output error"),
    ),
)
def disk_full(disks: Disks) -> Iterator[Finding]:
    """A file system that training writes to is full, or cannot be written to.

    ## What breaks
    The checkpoint at the end of the first epoch is cut short, torch.compile cannot write its cache, or torchrun cannot
    make its folder for logs.

    ## Why
    The working folder, $TMPDIR, the home folder and the caches of torch, Triton and Hugging Face often lie on small or
    shared file systems. Besides bytes they can run out of inodes, one of which every file takes. A quota for your user or
    project doesn't show in these figures: ask `quota -s`, `lfs quota -h`, or your cluster's own command.

    ## Fix
    Make room, keep fewer checkpoints, or move: `TMPDIR`, `HF_HOME`, `TORCH_HOME`, `TRITON_CACHE_DIR`.
    """
    requires(disks.folders, "no file system could be asked")
    by_mount: dict[tuple[str, int], list[Disk]] = {}
    for disk in disks.folders:
        by_mount.setdefault((disk.mount or disk.path, disk.total), []).append(disk)
    for group in by_mount.values():
        # Images (squashfs, snap) are full by nature; whether they can be written to is judged below.
        group = [one for one in group if one.total and not one.read_only_mount]
        short = [one for one in group if one.free < _floors(one)[1]]
        if short:
            yield _short_of("space", short, f"{human(short[0].free)} of {human(short[0].total)} free")
        scarce = [one for one in group if _counts_inodes(one) and one.inodes_free < INODES_WANTED]
        if scarce:
            yield _short_of("inodes", scarce, f"{scarce[0].inodes_free} of {scarce[0].inodes_total} inodes free")
    for disk in disks.folders:
        if not disk.writable and disk.purpose in ("working folder", "temporary files", "Triton cache"):
            yield _not_writable(disk)


def _counts_inodes(disk: Disk) -> bool:
    # Of file systems in user space many make these figures up.
    return disk.inodes_total > 0 and not disk.file_system.startswith("fuse")


def _short_of(what: str, disks: Sequence[Disk], figures: str) -> Finding:
    first = disks[0]
    fails = any(one.free < _floors(one)[0] for one in disks) if what == "space" else True
    where = first.mount or first.path
    if what == "space":
        look = f"du -xh --max-depth=2 {shlex.quote(where)} 2>/dev/null | sort -h | tail -n 20"
    else:
        look = f"du -x --inodes --max-depth=2 {shlex.quote(where)} 2>/dev/null | sort -n | tail -n 20"
    fixes = [Fix("See what takes the room, and remove what nobody needs", (look,))]
    moves = {"temporary files": "TMPDIR", "Hugging Face cache": "HF_HOME", "torch cache": "TORCH_HOME"}
    variables = [moves[one.purpose] for one in disks if one.purpose in moves]
    if variables:
        fixes.append(
            Fix(
                f"Or set {listed(variables)} to {'a folder' if len(variables) == 1 else 'folders'} on a larger file system"
            )
        )
    return Finding(
        summary=f"{where} is short of {what}: {figures}; on it: {listed([one.purpose for one in disks], 3)}"[:160],
        evidence=tuple(_seen(one, figures) for one in disks),
        fixes=tuple(fixes),
        severity=FAIL if fails else WARN,
    )


def _not_writable(disk: Disk) -> Finding:
    why = "is mounted read-only" if disk.read_only_mount else "does not belong to this user"
    variable = {"temporary files": "TMPDIR", "Triton cache": "TRITON_CACHE_DIR"}.get(disk.purpose)
    if variable:
        fix = Fix(
            f"Set {variable} to a folder that you may write to",
            (f'mkdir -p "$PWD/tmp" && export {variable}="$PWD/tmp"',),
        )
    else:
        fix = Fix("Start training in a folder that you may write to, or tell your program to write its files to one")
    severity: Severity = INFO if disk.purpose == "Triton cache" else WARN
    return Finding(
        summary=f"This user can't write to {disk.path} ({disk.purpose})"[:160],
        cause=f"It {why}.",
        evidence=(_seen(disk, "not writable"),),
        fixes=(fix,),
        severity=severity,
    )


def _seen(disk: Disk, figures: str) -> Evidence:
    return Evidence(f"{disk.purpose} {disk.path} ({disk.file_system or 'file system'}): {figures}", "statvfs")


@check("disk-unanswered", severity=FAIL)
def disk_unanswered(disks: Disks) -> Iterator[Finding]:
    """A file system does not answer.

    ## What breaks
    Whatever touches it hangs and can't even be killed: an import, a dataset, a checkpoint, the shell's prompt. The other
    ranks wait for the one that hangs until their time is up.

    ## Why
    Its server (NFS, Lustre, a FUSE process) is gone or overloaded, and the kernel waits for it without end.

    ## Fix
    Tell the administrator, with the mount point. Until then work in a folder on another file system.
    """
    for path in disks.unanswered:
        quoted = shlex.quote(path)
        yield Finding(
            summary=f"The file system of {path} doesn't answer"[:160],
            evidence=(told(disks, "unanswered", f"no answer about {path}"),),
            fixes=(
                Fix(
                    "Work in a folder on another file system, and see from time to time whether this one answers",
                    (f"timeout -s KILL 5 stat -f {quoted}",),
                ),
                Fix(
                    "Tell the administrator which server it is; these are the network file systems here",
                    ("grep -E ' (nfs|lustre|fuse|ceph|beegfs|gpfs)' /proc/mounts",),
                ),
            ),
        )
