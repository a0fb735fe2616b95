"""The host's memory: enough for these ranks, not limited too much, and no process killed because it ran out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from signal import Signals
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import GIB, MIB, ago, capital, human, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, SignRole, Subject, check, leave_untested
from ddpdoctor.facts.environment import value_of
from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Cgroup, Container, Environment, Gpus, KernelLog, Machine
from ddpdoctor.knowledge.evidence import planned, told
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.knowledge.privileges import runtime_of
from ddpdoctor.logs.analyze.sightings import job_of_slurm, word
from ddpdoctor.logs.exceptions import with_slashes

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


_ENDED_BY: Final = {
    "TERM_MEMLIMIT: job killed": ("LSF", ("bsub -M 256GB -R 'rusage[mem=256GB]' < job.sh",)),
    "PBS: job killed: ": ("PBS", ("qsub -l mem=256gb job.sh   # PBS Pro, OpenPBS: -l select=1:mem=256gb",)),
    'exceeds job hard limit "': ("Grid Engine", ("qsub -l h_vmem=16G job.sh   # for each slot",)),
    "Job has gone over ": ("HTCondor", ("request_memory = 256GB   # in the submit file",)),
    "exceeded memory limit (": ("Slurm", ("sbatch --mem=0 job.sh   # all that the node has",)),
    "Exceeded job memory limit": ("Slurm", ("sbatch --mem=0 job.sh   # all that the node has",)),
}
"""Schedulers that say themselves that they ended a job at its limit, by their sign, and how to ask each for more."""


def _who_limits(seen: Sequence[SignMatch], _: Log) -> Particulars:
    """Where a scheduler says that it was the job's limit, nothing is left open but how to ask for more."""
    scheduler, commands = next((_ENDED_BY[match.sign] for match in seen if match.sign in _ENDED_BY), ("", ()))
    if not scheduler:
        return Particulars()
    return Particulars(
        summary=f"{scheduler} ended the job: it took more memory than it had asked for",
        cause="All processes of the job count together: the ranks, their DataLoader workers, what each of them loads.",
        fixes=(
            Fix(f"Ask {scheduler} for more memory", commands),
            Fix("Or let the job take less: fewer DataLoader workers, data loaded lazily (`mmap=True`)"),
        ),
        of_everybody=True,
        decided=True,
    )


@check(
    "cgroup-memory-limit",
    severity=FAIL,
    owner=Owner.USER,
    stands_for=(LogTopic.KILLED_FOR_MEMORY,),
    log=LogTraits(particulars=_who_limits),
)
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
    `--mem-per-gpu`. LSF: `-M` and `-R "rusage[mem=...]"`. PBS: `-l mem=...`.
    """
    limit = known(cgroup.memory_limit)
    if limit is None:
        return
    floor, wanted = _need(gpus, plan)
    if limit >= wanted:  # a smaller one is too small whoever uses it
        known(cgroup.memory_used)
        known(cgroup.memory_reclaimable)
    used, cache = known_or(cgroup.memory_used, None) or 0, known_or(cgroup.memory_reclaimable, None) or 0
    room = limit - max(0, used - cache)
    if room < wanted:
        yield Finding.of(
            f"The memory limit here leaves only {human(room)} of {human(limit)}; {plural(plan.nproc, 'rank')} may need {human(wanted)}",
            told(cgroup, "memory_limit", f"memory limit of the container or job: {human(limit)}"),
            told(cgroup, "memory_used", f"in use: {human(used)}, of which {human(cache)} can be reclaimed"),
            planned(plan),
            _raise_limit(container, environment, wanted),
            severity=FAIL if room < floor else WARN,
        )
        known(cgroup.memory_used)


def _raise_limit(container: Maybe[Container], environment: Maybe[Environment], wanted: int) -> Fix:
    gibibytes = -(-wanted * 5 // 4 // GIB)
    if value_of(environment, "SLURM_JOB_ID"):
        return Fix(f"Ask Slurm for more memory: `--mem={gibibytes}G`, or `--mem=0` for all that the node has")
    if runtime_of(container) == "kubernetes":
        return Fix(f"Set `resources.limits.memory: {gibibytes}Gi` or more in the pod")
    if runtime_of(container):
        return Fix(f"Start the container without a memory limit, or with `--memory={gibibytes}g` or more")
    scope = f"systemd-run --user --scope -p MemoryMax={gibibytes}G bash"
    return Fix("Run in a scope of your own with a higher limit", (scope,))


_HARDLY_ANY_HOST_HAS: Final = 1024 * GIB
_UNITS: Final = {"KiB": 1024, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB, "PiB": 1024**2 * GIB, "EiB": 1024**3 * GIB}
_IN_PIECES: Final = Fix(
    "If it is to be so large: map the file in the place of reading it (np.load(file, mmap_mode='r')), work on pieces, or take a smaller type; and "
    "see how much is free on that host, and whether there is a limit",
    ("free -g; ulimit -v",),
)


def _one_request(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell how much was asked for at once: one array of many GiB is mostly one of a wrong shape, or data that were to be read piece by piece."""
    size, _, unit = word(seen, "size").partition(" ")
    wanted = int(float(size) * _UNITS[unit]) if size else int(word(seen, "bytes") or 0)
    if wanted < GIB:
        return Particulars()
    shape = word(seen, "shape")
    what = f"one array of {human(wanted)}{f', shape {shape}' if shape else ''}"
    absurd = wanted >= _HARDLY_ANY_HOST_HAS
    return Particulars(
        f"{capital(what)}, was asked for" + (", which hardly any host has: most likely its shape is wrong" if absurd else ", more than the host had left"),
        (
            Fix(
                "Look at the line of the script that makes it, and compare its shape with what you expect: a size, a box or an index that was read "
                "or computed wrongly, or a damaged file, gives such a one"
            ),
            *(() if absurd else (_IN_PIECES,)),
        ),
        "An array is made whole, in one piece: it needs that much beside everything else that is in memory, and many operations (a copy, "
        "concatenate, a cast to float64) make a second one.",
        of_everybody=True,
    )  # fmt: skip


@check(
    "memory-low",
    severity=FAIL,
    owner=Owner.UNKNOWN,
    judges=(Subject.NEXT_JOB,),
    log=LogTraits(particulars=_one_request),
)
def memory_low(machine: Machine, gpus: Maybe[Gpus], plan: Plan) -> Iterator[Finding]:
    """The host has too little free memory for these ranks.

    ## What breaks
    The kernel kills a rank while the others wait for it, or the host swaps and every step takes seconds.

    ## Why
    A rank with CUDA takes about 1 GiB of the host's memory before anything is trained, and about 3 GiB with pinned
    buffers and DataLoader workers. Other processes hold the rest, or there are more ranks than this host was made for. A
    `MemoryError` in Python may also come from a limit on the process's addresses (`ulimit -v`), or from an array of a wrong size.

    ## Fix
    See who holds it: `ps -eo rss,user,pid,comm --sort=-rss | head`. Fewer ranks, fewer DataLoader workers, weights loaded
    by `torch.load(..., mmap=True)`. `ulimit -v` must say "unlimited".
    """
    available = known(machine.memory_available)
    of_all = "" if isinstance(machine.memory_total, Unknown) else f" of {human(machine.memory_total)}"
    floor, wanted = _need(gpus, plan)
    if available < wanted:
        yield Finding.of(
            f"Only {human(available)}{of_all} of memory is free; {plural(plan.nproc, 'rank')} may need {human(wanted)}",
            machine.seen("memory_available", human(available)),
            None if not of_all else machine.seen("memory_total", human(known(machine.memory_total))),
            planned(plan),
            Fix("See who holds the memory, and stop what is yours, or start fewer ranks", (BIGGEST,)),
            severity=FAIL if available < floor else WARN,
        )


DAY_SECONDS = 24 * 3600.0
_KILLED = compile_lazily(r"[Oo]ut of memory: Kill(?:ed)? process (\d+) \(([^)]{0,64})\)")
TRAINING = r"(?:\S*python|pt_|torchrun|ray::|deepspeed|accelerate|srun|slurmstepd)"
"""How the names of processes begin that train, or start those that do."""


_SLURM: Final = "srun"
_OF_SLURM: Final = compile_lazily(r"\b(?:srun|slurmstepd\S*): error: ")
_WHOEVER_RUNS_IT: Final = {
    "kubernetes": Fix(
        "Ask Kubernetes: OOMKilled is the container's limit, Evicted the node's memory", ("kubectl describe pod POD",)
    ),
    "docker": Fix(
        "Ask Docker: true is the container's limit", ("docker inspect --format '{{.State.OOMKilled}}' CONTAINER",)
    ),
}
"""By who tells of a process that SIGKILL ended, what knows whether memory was why, or somebody."""


def _who_killed(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Of a mere signal ask who may have sent it: a scheduler has its own limits, and ends what goes on for too long."""
    tellers = (log.launcher, *(end.said_by for end in log.exited))
    of_slurm = _SLURM in tellers or any(_OF_SLURM.search(match.line.text) for match in seen)
    named = any(match.role is SignRole.NAMES for match in seen)
    if named and not of_slurm:
        return Particulars()
    job = job_of_slurm(seen, log)
    others = [fix for name, fix in _WHOEVER_RUNS_IT.items() if name in tellers]
    limit = "Slurm `--mem`" if of_slurm else "Slurm `--mem`, Docker `--memory`"
    return Particulars(
        fixes=(
            Fix(f"Load lazily (`mmap=True`, memory-mapped data), use fewer workers, or raise the limit: {limit}"),
            *([_ask_slurm(job)] if of_slurm else others),
        ),
        decided=of_slurm and bool(job),
        cause="The job took more memory than Slurm gave it, or than the node has: a data set or model that each rank loads, too many"
        " DataLoader workers, or a limit that is too small."
        if named
        else "Mostly memory ran out: the host's, or the container's or job's limit. Else somebody ended it: a person with `kill -9`,"
        " the scheduler at a limit, the container's runtime. A process that is killed so can't say a word.",
    )


def _ask_slurm(job: str) -> Fix:
    return Fix(
        "Ask Slurm what each step took (MaxRSS) and was given (ReqMem): State OUT_OF_MEMORY is the job's limit, CANCELLED or"
        " TIMEOUT somebody who ended it",
        (f"sacct -j {job or 'JOBID'} --format=JobID,MaxRSS,ReqMem,State",),
    )


@check(
    "host-oom-killed",
    severity=WARN,
    owner=Owner.USER,
    stands_for=(Signals.SIGKILL, LogTopic.KILLED_FOR_MEMORY),
    log=LogTraits(particulars=_who_killed),
)
def host_oom_killed(kernel_log: Maybe[KernelLog], cgroup: Maybe[Cgroup]) -> Iterator[Finding]:
    """The kernel killed processes because memory ran out.

    ## What breaks
    A rank or DataLoader worker vanishes with exit code -9 and no message of its own; the others wait for it until the
    timeout.

    ## Why
    The host, the container or the Slurm job ran out of memory: a data set or model that each rank loads, too many
    DataLoader workers, or a limit that is too small. Where only exit code -9 or 137 is known, it may also have been a
    person with `kill -9` or PyCharm's Stop button, or the scheduler or container runtime that ended the job.

    ## Fix
    Load lazily (`mmap=True`, memory-mapped data), use fewer workers, or raise the limit: Slurm `--mem`, Docker `--memory`.
    """
    if isinstance(kernel_log, KernelLog):
        yield from _killed_by_log(kernel_log)
    kills = cgroup.oom_kills if isinstance(cgroup, Cgroup) else None
    if isinstance(cgroup, Cgroup) and isinstance(kills, int) and kills > 0:
        # Without a limit this is a login session, in which anything may have been killed.
        limit = known_or(cgroup.memory_limit, None)
        where = "session" if limit is None else "container or job"
        yield Finding.of(
            f"The kernel killed {plural(kills, 'process', 'processes')} of this {where} because memory ran out",
            told(cgroup, "oom_kills", f"processes killed by the kernel: {kills}"),
            None if limit is None else told(cgroup, "memory_limit", f"memory limit: {human(limit)}"),
            Fix(
                "Raise the limit (Slurm `--mem`, Docker `--memory`), use fewer DataLoader workers, or load data lazily"
            ),
            severity=INFO if limit is None else WARN,
        )
        known(cgroup.memory_limit)
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
    yield Finding.of(
        f"The kernel killed {name} (process {pid}){more}{ago(line.age)}, because memory ran out",
        Evidence(line.text[:300], kernel_log.source),
        Fix("See who holds the memory now", (BIGGEST,)),
        Fix(
            "Use fewer DataLoader workers, load lazily (`torch.load` with `mmap=True`), or raise the job's memory limit"
        ),
        severity=WARN if 0 <= line.age < DAY_SECONDS and training else INFO,
    )


RESET, REFUSED = "ConnectionResetError: [Errno 104]", "ConnectionRefusedError: [Errno 111]"
HANDING_OVER = (RESET, REFUSED, "FileNotFoundError: [Errno 2]", "EOFError")
"""Signs of a rank that fetches a batch from a worker that is gone."""


MAX_LINES_TO_PARENT: Final = 400
"""Lines from a worker's traceback to its parent's word on its end; several workers may write theirs between."""


def _is_end_told(seen: SignMatch, log: Log) -> bool:
    """Whether it is the end of a worker that no signal ended, and that raised something as it was started."""
    started = [
        raised for raised in log.raised if any(_spawns_worker(frame.path, frame.function) for frame in raised.frames)
    ]
    return any(_explains_end(raised, seen) for raised in started)


def _spawns_worker(path: str, function: str) -> bool:
    return function == "spawn_main" and with_slashes(path).endswith("multiprocessing/spawn.py")


def _explains_end(raised: LoggedException, seen: SignMatch) -> bool:
    if seen.words.get("signal") or raised.line.file != seen.line.file:
        return False
    return 0 < seen.line.number - raised.line.number <= MAX_LINES_TO_PARENT


@log_check(
    "dataloader-worker-killed", severity=FAIL, owner=Owner.USER, of_rank=True, log=LogTraits(refuted=_is_end_told)
)
def dataloader_worker_killed(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A DataLoader's worker process died.

    ## What breaks
    Its rank stops with "DataLoader worker ... is killed by signal" or "exited unexpectedly", or with a ConnectionResetError in
    `rebuild_storage_fd`, and takes the others down.

    ## Why
    By the signal. Killed: the host or the job's limit ran out of memory, and the kernel chose the worker. Segmentation fault,
    Aborted: a library that the data set uses (an image or video decoder, OpenCV, h5py) crashed, or can't be used after a fork. An
    exit code: something in the worker called exit, often a library after an error.

    ## Fix
    Killed: fewer workers, a smaller `prefetch_factor`, more memory for the job. Else `num_workers=0` in one run shows the
    error where it happens, and `multiprocessing_context="spawn"` helps libraries that can't be used after a fork.
    """
    signal, code = word(seen, "signal"), word(seen, "code")
    how = f"by signal: {signal}" if signal else f"with exit code {code}" if code else "and the log doesn't say why"
    show_it = Fix("Run once with num_workers=0: the error then has a traceback of its own")
    memory = Fix(
        "See whether the kernel killed it because memory ran out, and what the limit is",
        ("ddpdoctor check --select host-oom-killed,cgroup-memory-limit,memory-low",),
    )
    fewer = Fix("Then use fewer workers and a smaller prefetch_factor, or ask for more memory")
    fixes = [show_it, Fix('Or don\'t fork the workers: DataLoader(..., multiprocessing_context="spawn")'), memory]
    if signal == "Terminated":
        return Finding.of(
            "A DataLoader's worker was told to end from outside (SIGTERM)",
            Fix(
                "Look for who did that: the scheduler at a limit or a cancelled job, a person with kill or pkill, or its own rank, which was ended first"
            ),
            Fix(
                "Under Slurm see how the job ended", ("sacct -j JOBID --format=JobID,State,ExitCode,Elapsed,Timelimit",)
            ),
            cause="SIGTERM is how a process is asked to end: nothing in the worker failed, and no memory ran out.",
        )
    if signal == "Killed":
        fixes = [memory, fewer]
    elif not signal and code:
        fixes = [show_it]
    elif not signal and any(match.sign in HANDING_OVER for match in seen):
        fixes = [memory, fewer, show_it]
    return Finding.of(f"A DataLoader's worker died {how}", fixes)
