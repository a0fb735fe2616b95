"""The host's cores: enough for these ranks, their threads and their DataLoader workers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from ddpdoctor.base.findings import INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.engine.registry import Subject, check, judged_apart, requires
from ddpdoctor.facts.environment import value_of
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.facts.snapshot import Cgroup, Container, Environment, Gpus, Machine
from ddpdoctor.knowledge.evidence import planned, told
from ddpdoctor.knowledge.launchers import number
from ddpdoctor.knowledge.privileges import runtime_of
from ddpdoctor.processes.gpu_holders import NO_OWN_JOB, own_jobs, require_known_settings
from ddpdoctor.processes.job_words import who
from ddpdoctor.processes.jobs import SOURCES_BY_LIGHTNING, setting

BY_SRUN_OR_MPIRUN = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LAUNCHED = (*BY_SRUN_OR_MPIRUN, "LOCAL_RANK")
"""Set by a launcher for each rank: then what we see are one rank's own cores, if the launcher binds ranks to cores."""


class CoreShare(msgspec.Struct, frozen=True):
    """The cores of one rank. `own`: bound to this rank alone. `limited`: fewer than the machine has. `job`: of all ranks."""

    cores: float
    job: float
    own: bool
    limited: bool
    evidence: tuple[Evidence, ...]


def share_of(machine: Maybe[Machine], cgroup: Maybe[Cgroup], environment: Maybe[Environment], plan: Plan) -> CoreShare:
    """Share the cores that this process may use among the ranks: an upper bound where not all that limits them is known.

    Leaves the check untested where nobody said how many there are.
    """
    evidence = []
    own, job = False, math.inf
    usable = machine if isinstance(machine, Unknown) else machine.usable_cores
    cpuset = cgroup if isinstance(cgroup, Unknown) else cgroup.cpuset_cores
    if isinstance(machine, Machine) and isinstance(usable, int):
        evidence = [told(machine, "usable_cores", f"cores that this process may use: {usable}")]
    elif isinstance(cgroup, Cgroup) and isinstance(cpuset, int):
        usable = cpuset  # No process in it may use more.
        evidence = [told(cgroup, "cpuset_cores", f"cores of the container or job: {cpuset}")]
    if isinstance(usable, int):
        own = _is_bound(usable, machine, environment)
        job = float(usable * plan.nproc if own else usable)
    if isinstance(cgroup, Cgroup):
        if isinstance(cpuset, int) and not own:
            job = min(job, cpuset)
        if isinstance(cgroup.cpu_limit, (int, float)) and cgroup.cpu_limit < job:
            job = cgroup.cpu_limit
            evidence.append(told(cgroup, "cpu_limit", f"limit of the container or job: {_cores(cgroup.cpu_limit)}"))
    if job == math.inf:
        known(known(machine).usable_cores)
    total = machine.logical_cores if isinstance(machine, Machine) else None
    bounds = (cgroup.cpu_limit, cpuset) if isinstance(cgroup, Cgroup) else ()
    limited = job < total if isinstance(total, int) else job in bounds
    evidence.append(planned(plan))
    return CoreShare(job / plan.nproc, job, own, limited, tuple(evidence))


def _bounds_are_known(machine: Maybe[Machine], cgroup: Maybe[Cgroup]) -> None:
    """Leave a check untested that would call the cores enough, although there may be fewer, or a quota that couldn't be read."""
    known(known(machine).usable_cores)
    known(known(cgroup).cpu_limit)


def _cores(count: float) -> str:
    return f"{count:g} {'core' if count == 1 else 'cores'}"


def _is_bound(usable: int, machine: Maybe[Machine], environment: Maybe[Environment]) -> bool:
    """Whether a launcher bound this process, as one of its ranks, to cores of its own."""
    if isinstance(environment, Unknown) or not any(name in environment for name in LAUNCHED):
        return False
    total = machine if isinstance(machine, Unknown) else machine.logical_cores
    on_node = number(environment.get("SLURM_CPUS_ON_NODE"))
    return usable < (known_or(total, 0) if on_node is None else on_node)


@check("cgroup-cpu-limit", severity=WARN, owner=Owner.USER)
def cgroup_cpu_limit(
    machine: Maybe[Machine],
    cgroup: Maybe[Cgroup],
    container: Maybe[Container],
    environment: Maybe[Environment],
    plan: Plan,
) -> Iterator[Finding]:
    """This container or job may use fewer cores than it has ranks.

    ## What breaks
    Ranks take turns: steps get several times slower, collectives wait for the rank that is not running, and
    timeouts follow that look like network trouble.

    ## Why
    A container's CPU quota, a cpuset, or Slurm's `--cpus-per-task` (1 by default) bounds the cores of all ranks together.
    Even with GPUs a rank keeps one core busy, which launches kernels, and needs more for its data.

    ## Fix
    Docker: `--cpus`, `--cpuset-cpus`. Kubernetes: `resources.limits.cpu`. Slurm: `--cpus-per-task` in sbatch and srun.
    """
    share = share_of(machine, cgroup, environment, plan)
    total = machine if isinstance(machine, Unknown) else machine.logical_cores
    of_all = "" if isinstance(total, Unknown) else f", though the machine has {total}"
    if share.limited and share.cores < 1:
        yield Finding.of(
            f"{plural(plan.nproc, 'rank')} {'gets' if plan.nproc == 1 else 'share'} only {_cores(share.job)}{of_all}",
            share.evidence,
            _more_cores(container, environment, plan),
        )
    else:
        _bounds_are_known(machine, cgroup)
        known(total)


def _more_cores(container: Maybe[Container], environment: Maybe[Environment], plan: Plan) -> Fix:
    if value_of(environment, "SLURM_JOB_ID"):
        return Fix(
            "Ask Slurm for 4 or more cores per rank: `#SBATCH --cpus-per-task` in the batch script, and this before srun",
            ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",),
        )
    if runtime_of(container) == "kubernetes":
        return Fix(f"Set `resources.limits.cpu: {4 * plan.nproc}` or more in the pod")
    if runtime_of(container):
        return Fix(f"Start the container without a CPU limit, or with `--cpus={4 * plan.nproc}`")
    return Fix("See what limits the cores (taskset, numactl, or a cpuset), and lift it", ("taskset -pc $$", "nproc"))


@check("omp-threads", severity=WARN, owner=Owner.USER, judges=(Subject.RUNNING_JOB,))
def omp_threads(
    machine: Maybe[Machine], cgroup: Maybe[Cgroup], environment: Environment, plan: Plan, processes: Maybe[Processes]
) -> Iterator[Finding]:
    """The ranks start more OpenMP threads than there are cores.

    ## What breaks
    Everything on the CPU (loading, augmentation, gloo, the optimizer of a CPU run) gets many times slower, although all
    cores are busy.

    ## Why
    Each rank starts OMP_NUM_THREADS threads. torchrun sets it to 1 where it isn't set; srun, mpirun and mp.spawn don't, and
    then each rank takes all the cores that it sees.

    ## Fix
    Set it to cores divided by ranks: on 96 cores with 8 ranks `export OMP_NUM_THREADS=12`.
    """
    yield from judged_apart((_running(processes), _planned(machine, cgroup, environment, plan, processes)))


def _planned(
    machine: Maybe[Machine], cgroup: Maybe[Cgroup], environment: Environment, plan: Plan, processes: Maybe[Processes]
) -> Iterator[Finding]:
    """Findings on the ranks that are to be started."""
    if not plan.nproc:
        requires(own_jobs(known(processes)), NO_OWN_JOB)
        return
    value = environment.get("OMP_NUM_THREADS").split(",")[0].strip()
    requires(plan.nproc > 1 or value, "a single rank has the cores to itself")
    share = share_of(machine, cgroup, environment, plan)
    if value:
        requires(number(value) is not None, "OMP_NUM_THREADS is not a number")
        threads, said = number(value) or 0, f"OMP_NUM_THREADS={value}"
    else:
        requires(_other_launcher(environment), "OMP_NUM_THREADS is not set, and torchrun sets it to 1 itself")
        threads, said = known(known(machine).usable_cores), "OMP_NUM_THREADS is not set"
    if threads > max(1.0, share.cores):
        good = max(1, int(share.cores))
        yield Finding.of(
            _too_many(plan.nproc, threads, _cores(share.job)),
            Evidence(said, "environment"),
            share.evidence,
            Fix("Divide the cores between the ranks", (f"export OMP_NUM_THREADS={good}",), appliable=True),
            cause="" if value else "torchrun, which would set OMP_NUM_THREADS, didn't start these ranks.",
        )
    else:
        _bounds_are_known(machine, cgroup)
        known(processes)


def _running(processes: Maybe[Processes]) -> Iterator[Finding]:
    """Findings on running jobs whose ranks have really started so many threads."""
    processes = known(processes)
    jobs = own_jobs(processes)
    for job in jobs:
        ranks = [rank for rank in job.ranks if not rank.has_ended]
        share = max(1.0, processes.cores / max(1, len(ranks)))
        greedy = [rank for rank in ranks if rank.threads >= _threads_of(rank, processes.cores) > share]
        if len(ranks) > 1 and processes.cores and greedy:
            threads = f"{plural(len(greedy), 'rank')} of {_threads_of(greedy[0], processes.cores)} OpenMP threads each"
            said = [setting(rank, "OMP_NUM_THREADS") or "not set" for rank in greedy[:8]]
            yield Finding.of(
                f"Job {job.name} runs with {threads}, on {_cores(processes.cores)}",
                (
                    Evidence(f"{who([rank])}: OMP_NUM_THREADS is {value}, {rank.threads} threads", "/proc")
                    for rank, value in zip(greedy, said, strict=False)
                ),
                Fix(
                    "Divide the cores between the ranks, and start the job again",
                    (f"export OMP_NUM_THREADS={max(1, int(share))}",),
                ),
                cause="OMP_NUM_THREADS is not set in them, and torchrun, which would set it, didn't start them."
                if said[0] == "not set"
                else "",
            )
    require_known_settings(jobs)


def _threads_of(rank: Process, cores: int) -> int:
    """OpenMP's, of one rank; 0 where that can't be told: a forked one shows its parent's settings, and Lightning divides the
    cores between the ranks that it starts."""
    if isinstance(rank.settings, Unknown) or rank.forked:
        return 0
    value = setting(rank, "OMP_NUM_THREADS").split(",")[0].strip()
    if value:
        return number(value) or 0
    return 0 if rank.place and rank.place.source in SOURCES_BY_LIGHTNING else cores


def _too_many(ranks: int, threads: int, cores: str) -> str:
    if ranks == 1:
        return f"OMP_NUM_THREADS has each rank start {threads} OpenMP threads, on {cores}"
    return f"{plural(ranks, 'rank')} with {threads} OpenMP threads each are {ranks * threads} threads on {cores}"


def _other_launcher(environment: Environment) -> bool:
    """Ranks were started by srun or mpirun themselves, without torchrun."""
    return any(name in environment for name in BY_SRUN_OR_MPIRUN) and "TORCHELASTIC_RUN_ID" not in environment


@check("dataloader-oversubscribed", severity=WARN, owner=Owner.USER)
def dataloader_oversubscribed(
    machine: Maybe[Machine], cgroup: Maybe[Cgroup], environment: Maybe[Environment], gpus: Maybe[Gpus], plan: Plan
) -> Iterator[Finding]:
    """There are too few cores for DataLoader workers.

    ## What breaks
    GPUs wait for data. With more workers than cores it gets worse, and the DataLoader warns "This DataLoader will create N
    worker processes in total". With `timeout=` it ends by "DataLoader timed out after N seconds".

    ## Why
    `num_workers` counts for each rank: with 8 ranks, `num_workers=8` is 64 processes. A rank needs a core for itself; only
    the rest is for workers.

    ## Fix
    Use at most cores / ranks - 1 workers. More cores: Slurm `--cpus-per-task`, Docker `--cpus`, Kubernetes `limits.cpu`.
    """
    share = share_of(machine, cgroup, environment, plan)
    requires(share.cores >= 1 or not share.limited, "there are fewer cores than ranks: see cgroup-cpu-limit")
    if share.cores >= 2:
        _bounds_are_known(machine, cgroup)
        return
    verb = "leaves" if plan.nproc == 1 else "leave"
    yield Finding.of(
        f"{plural(plan.nproc, 'rank')} on {_cores(share.job)} {verb} no core for DataLoader workers",
        share.evidence,
        Fix("Use `num_workers=0` in every rank's DataLoader, or ask for more cores"),
        severity=WARN if isinstance(gpus, Gpus) and gpus.devices else INFO,
    )
    known(gpus)
