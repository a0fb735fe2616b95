"""The host's memory: enough for these ranks, limited by nobody, and no process killed for want of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from signal import Signals

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import human, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.shared_fixes import runtime_of
from ddpdoctor.engine.registry import check, leave_untested
from ddpdoctor.facts.cgroup import Cgroup
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.plan import Plan
from ddpdoctor.knowledge.evidence import planned, told
from ddpdoctor.knowledge.log_topics import LogTopic

MIB = 1024**2
GIB = 1024**3

CUDA_FLOOR, CUDA_WANTED = GIB, 3 * GIB
"""Host memory a rank: torch with its CUDA libraries and a context take about 1 GiB before anything is trained; pinned
buffers, NCCL, the data set's index and DataLoader workers bring it to about 3."""
CPU_FLOOR, CPU_WANTED = 256 * MIB, 512 * MIB
"""The same on a host without GPUs: `import torch` takes 220 MiB, DDP some more."""


BIGGEST = "ps -eo rss,user,pid,comm --sort=-rss | head -n 15"
"""Lists the processes that hold the most memory."""


def _need(gpus: Maybe[Gpus], plan: Plan) -> tuple[int, int]:
    """Bytes that all ranks take at the very least, and bytes that they want."""
    if isinstance(gpus, Gpus) and not gpus.devices:
        return plan.nproc * CPU_FLOOR, plan.nproc * CPU_WANTED
    return plan.nproc * CUDA_FLOOR, plan.nproc * CUDA_WANTED


@check("cgroup-memory-limit", severity=FAIL, stands_for=(LogTopic.KILLED_FOR_MEMORY,))
def cgroup_memory_limit(
    cgroup: Cgroup, container: Maybe[Container], environment: Maybe[Environment], gpus: Maybe[Gpus], plan: Plan
) -> Iterator[Finding]:
    """This container or job may use too little memory for these ranks.

    ## What breaks
    The kernel kills a rank or a DataLoader worker (exit code -9, "Killed", "OOMKilled"), although the host has memory.

    ## Why
    A container, a Slurm job or systemd may limit memory for all its processes together. A rank with CUDA takes about
    1 GiB on the host before anything is trained, and about 3 GiB with pinned buffers and DataLoader workers. Slurm gives a
    job that doesn't ask a default for each core, often 2 to 4 GiB. Page cache doesn't count: the kernel drops it first.

    ## Fix
    Docker: `--memory`. Kubernetes: `resources.limits.memory`. Slurm: `--mem=0` (all of the node's memory) or
    `--mem-per-gpu`.
    """
    limit = known(cgroup.memory_limit)
    if limit is None:
        return
    if limit >= _need(gpus, plan)[1]:  # a smaller one is too small whoever uses it
        known(cgroup.memory_used)
        known(cgroup.memory_reclaimable)
    used = cgroup.memory_used if isinstance(cgroup.memory_used, int) else 0
    cache = cgroup.memory_reclaimable if isinstance(cgroup.memory_reclaimable, int) else 0
    room = limit - max(0, used - cache)
    floor, wanted = _need(gpus, plan)
    if room < wanted:
        yield Finding(
            summary=f"The memory limit here leaves only {human(room)} of {human(limit)}; {plural(plan.nproc, 'rank')} "
            f"may need {human(wanted)}",
            evidence=(
                told(cgroup, "memory_limit", f"memory limit of the container or job: {human(limit)}"),
                told(cgroup, "memory_used", f"in use: {human(used)}, of which {human(cache)} can be reclaimed"),
                planned(plan),
            ),
            fixes=(_raise_limit(container, environment, wanted),),
            severity=FAIL if room < floor else WARN,
        )


def _raise_limit(container: Maybe[Container], environment: Maybe[Environment], wanted: int) -> Fix:
    gibibytes = -(-wanted * 5 // 4 // GIB)
    if isinstance(environment, Environment) and "SLURM_JOB_ID" in environment:
        return Fix(f"Ask Slurm for more memory: `--mem={gibibytes}G`, or `--mem=0` for all that the node has")
    runtime = runtime_of(container)
    if runtime == "kubernetes":
        return Fix(f"Set `resources.limits.memory: {gibibytes}Gi` or more in the pod")
    if runtime is not None:
        return Fix(f"Start the container without a memory limit, or with `--memory={gibibytes}g` or more")
    return Fix(
        "Run in a scope of your own with a higher limit",
        (f"systemd-run --user --scope -p MemoryMax={gibibytes}G bash",),
    )


@check("memory-low", severity=FAIL)
def memory_low(machine: Machine, gpus: Maybe[Gpus], plan: Plan) -> Iterator[Finding]:
    """The host has too little free memory for these ranks.

    ## What breaks
    The kernel kills a rank while the others wait for it, or the host swaps and every step takes seconds.

    ## Why
    A rank with CUDA takes about 1 GiB of the host's memory before anything is trained, and about 3 GiB with pinned
    buffers and DataLoader workers. Other processes hold the rest, or there are more ranks than this host was made for. A
    `MemoryError` in Python may also come of a limit on the process's addresses (`ulimit -v`), or of an array of a wrong size.

    ## Fix
    See who holds it: `ps -eo rss,user,pid,comm --sort=-rss | head`. Fewer ranks, fewer DataLoader workers, weights loaded
    by `torch.load(..., mmap=True)`. `ulimit -v` must say "unlimited".
    """
    available = known(machine.memory_available)
    of_all = "" if isinstance(machine.memory_total, Unknown) else f" of {human(machine.memory_total)}"
    floor, wanted = _need(gpus, plan)
    if available < wanted:
        yield Finding(
            summary=f"Only {human(available)}{of_all} of memory is free; {plural(plan.nproc, 'rank')} may need "
            f"{human(wanted)}",
            evidence=(
                machine.seen("memory_available", human(available)),
                *([] if not of_all else [machine.seen("memory_total", human(known(machine.memory_total)))]),
                planned(plan),
            ),
            fixes=(Fix("See who holds the memory, and stop what is yours, or start fewer ranks", (BIGGEST,)),),
            severity=FAIL if available < floor else WARN,
        )


DAY_SECONDS = 24 * 3600.0
_KILLED = compile_lazily(r"[Oo]ut of memory: Kill(?:ed)? process (\d+) \(([^)]{0,64})\)")
TRAINING = r"(?:\S*python|pt_|torchrun|ray::|deepspeed|accelerate|srun|slurmstepd)"
"""How the names of processes begin that train, or start those that do."""


@check("host-oom-killed", severity=WARN, stands_for=(Signals.SIGKILL, LogTopic.KILLED_FOR_MEMORY))
def host_oom_killed(kernel_log: Maybe[KernelLog], cgroup: Maybe[Cgroup]) -> Iterator[Finding]:
    """The kernel killed processes because memory ran out.

    ## What breaks
    A rank or DataLoader worker vanishes with exit code -9 and no message of its own; the others wait for it until their
    time is up.

    ## Why
    The host, the container or the Slurm job ran out of memory: a data set or model loaded once a rank, too many
    DataLoader workers, or a limit that is too small. Where only exit code -9 or 137 is known, it may as well have been a
    person with `kill -9` or PyCharm's Stop button, or the scheduler or container runtime as it ended the job.

    ## Fix
    Load lazily (`mmap=True`, memory-mapped data), use fewer workers, or raise the limit: Slurm `--mem`, Docker `--memory`.
    """
    if isinstance(kernel_log, KernelLog):
        yield from _killed_by_log(kernel_log)
    kills = cgroup.oom_kills if isinstance(cgroup, Cgroup) else None
    if isinstance(cgroup, Cgroup) and isinstance(kills, int) and kills > 0:
        text = (
            "Raise the limit (Slurm `--mem`, Docker `--memory`), or use fewer DataLoader workers and load data lazily"
        )
        # Without a limit this is a login session, in which anything may have been killed.
        limit = cgroup.memory_limit
        limited = isinstance(limit, int)
        yield Finding(
            summary=f"The kernel killed {plural(kills, 'process', 'processes')} of this "
            f"{'container or job' if limited else 'session'} because memory ran out",
            evidence=(
                told(cgroup, "oom_kills", f"processes killed by the kernel: {kills}"),
                *([told(cgroup, "memory_limit", f"memory limit: {human(limit)}")] if isinstance(limit, int) else []),
            ),
            fixes=(Fix(text),),
            severity=WARN if limited else INFO,
        )
    elif isinstance(kernel_log, Unknown):
        counted = "the counter of this session, container or job shows none, but the kernel log: " if kills == 0 else ""
        leave_untested(counted + kernel_log.reason)


def _killed_by_log(kernel_log: KernelLog) -> Iterator[Finding]:
    killed = [(line, found[2], found[1]) for line in kernel_log.lines if (found := _KILLED.search(line.text))]
    training = [kill for kill in killed if re.match(TRAINING, kill[1])]
    recent = [kill for kill in killed if 0 <= kill[0].age < DAY_SECONDS]
    telling = training or recent
    if not telling:
        return
    line, name, pid = min(telling, key=lambda kill: kill[0].age if kill[0].age >= 0 else float("inf"))
    more = f", and {len(telling) - 1} more" if len(telling) > 1 else ""
    yield Finding(
        summary=f"The kernel killed {name} (process {pid}){more}{_ago(line)}, because memory ran out",
        evidence=(Evidence(line.text[:300], kernel_log.source),),
        fixes=(
            Fix("See who holds the memory now", (BIGGEST,)),
            Fix(
                "Use fewer DataLoader workers, load lazily (`torch.load` with `mmap=True`), or raise the job's memory limit"
            ),
        ),
        severity=WARN if line.age < DAY_SECONDS and line.age >= 0 and training else INFO,
    )


def _ago(line: KernelLine) -> str:
    if line.age < 0:
        return ""
    if line.age < 3600:
        return f" {plural(max(1, round(line.age / 60)), 'minute')} ago"
    if line.age < 2 * DAY_SECONDS:
        return f" {plural(round(line.age / 3600), 'hour')} ago"
    return f" {plural(round(line.age / DAY_SECONDS), 'day')} ago"
