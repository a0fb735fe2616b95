"""Limits on what a rank may do: lock memory, open files, start threads."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import GIB, MIB, human, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known, known_or
from ddpdoctor.checks.shared_fixes import raised_for_new_logins
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.environment import value_of
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Cgroup, Container, Environment, Gpus, Limits, Machine, Network
from ddpdoctor.knowledge import launchers
from ddpdoctor.knowledge.evidence import planned, told
from ddpdoctor.knowledge.job_intent import several_nodes
from ddpdoctor.knowledge.nvidia import NO_GPU
from ddpdoctor.knowledge.privileges import runtime_of

RAISE = "Raise it in the shell or script that starts training"


@check("memlock-limit", severity=FAIL, owner=Owner.NODE)
def memlock_limit(
    limits: Limits, container: Maybe[Container], environment: Maybe[Environment], network: Maybe[Network], gpus: Gpus
) -> Iterator[Finding]:
    """The limit on locked memory is too small for InfiniBand or RoCE.

    ## What breaks
    NCCL finds the network card, cannot register its buffers with it, and init fails on jobs with several nodes.

    ## Why
    An RDMA card writes into memory directly, so that memory must be locked, and `ulimit -l` bounds it. The default is 64
    KiB to 8 MiB; NCCL's buffers take some ten MiB per connection and up to several hundred MiB per rank. Login shells, slurmd
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
    several_nodes = if_known(_several_nodes, environment, network, default="")
    where = "" if several_nodes else " in jobs over several nodes"
    yield Finding.of(
        f"A process may lock only {human(soft)} of memory; NCCL over {listed(limits.rdma_devices, 3)} needs it unlimited{where}",
        told(limits, "memlock_soft", f"locked memory (`ulimit -l`): {human(soft)}"),
        told(limits, "rdma_devices", f"InfiniBand or RoCE cards: {listed(limits.rdma_devices)}"),
        Evidence(several_nodes, "environment") if several_nodes else None,
        _lock_more(limits, container),
        # On one node NCCL registers nothing with the card.
        severity=INFO if not several_nodes else FAIL if soft < 64 * MIB else WARN,
    )
    _several_nodes(environment, network)


def _several_nodes(environment: Maybe[Environment], network: Maybe[Network]) -> str:
    """The sign of a job over several nodes, in words; it ends the check where nobody knows."""
    environment = known(environment)
    return launchers.several_nodes(environment) or several_nodes(environment, known(network))


def _lock_more(limits: Limits, container: Maybe[Container]) -> Iterator[Fix]:
    if limits.memlock_hard == -1:
        yield Fix(RAISE, ("ulimit -l unlimited",), appliable=True)
    elif runtime_of(container):
        kubernetes = "in Kubernetes: the capability IPC_LOCK in its securityContext"
        yield Fix(f"Start the container with `--ulimit memlock=-1` ({kubernetes})")
    else:
        yield raised_for_new_logins("memlock", "unlimited", "unlimited", "90-rdma")
        yield Fix("In Slurm jobs: ask the administrator for `LimitMEMLOCK=infinity` in the unit of slurmd")


NOFILE_WANTED = 4096


def _nofile_floor(world: int) -> int:
    """Files that the simplest job opens: CUDA and torch about 100, the tensors of a few DataLoader workers as many, and
    gloo keeps a socket to every peer for each process group, of which there may be four."""
    return max(512, 256 + 4 * world)


@check("nofile-limit", severity=WARN, owner=Owner.USER)
def nofile_limit(
    limits: Limits, container: Maybe[Container], environment: Maybe[Environment], plan: Plan
) -> Iterator[Finding]:
    """Too few files may be open at once for a job of this size.

    ## What breaks
    After minutes or hours the DataLoader fails with "Too many open files" or "received 0 items of ancdata".

    ## Why
    Every tensor that a DataLoader worker passes on is an open file in the rank until it is freed, and every peer in the
    job costs NCCL and gloo sockets. The usual limit of 1024 per process is enough for most jobs on one host; many DataLoader
    workers, many small tensors in a batch, or hundreds of ranks need more.

    ## Fix
    Raise the soft limit to the hard one in the script that starts training: `ulimit -n $(ulimit -Hn)`. Or pass tensors
    between processes by name: `torch.multiprocessing.set_sharing_strategy("file_system")`.
    """
    soft, hard = known(limits.nofile_soft), limits.nofile_hard
    world = max(plan.nproc, launchers.number(value_of(environment, "WORLD_SIZE")) or 0)
    wanted = max(_nofile_floor(world), NOFILE_WANTED if world >= 4 else 0)
    if soft == -1 or soft >= wanted:
        known(environment)
        return
    if isinstance(hard, Unknown):
        raise_it = Fix(RAISE, ("ulimit -n $(ulimit -Hn)",))
    elif hard == -1 or hard >= wanted:
        raised = 65536 if hard == -1 else min(hard, 65536)
        raise_it = Fix(RAISE, (f"ulimit -n {raised}",), appliable=True)
    elif runtime_of(container):
        raise_it = Fix("Start the container with `--ulimit nofile=65536:65536`")
    else:
        raise_it = raised_for_new_logins("nofile", "65536", "1048576", "90-nofile")
    most = f"open files at most (`ulimit -Hn`): {'unlimited' if hard == -1 else hard}"
    yield Finding.of(
        f"A process may open only {soft} files; {plural(world, 'rank')} with DataLoader workers may need {wanted}",
        told(limits, "nofile_soft", f"open files (`ulimit -n`): {soft}"),
        None if isinstance(hard, Unknown) else told(limits, "nofile_hard", most),
        planned(plan),
        raise_it,
        Fix("Or pass tensors between processes by name: `torch.multiprocessing.set_sharing_strategy('file_system')`"),
        severity=WARN if soft < _nofile_floor(world) else INFO,
    )
    known(environment)


THREADS_FLOOR = 32
THREADS_WANTED = 200
"""Processes and threads per rank: CUDA, NCCL, autograd and OpenMP about a hundred, four DataLoader workers the rest."""


@check("pids-limit", severity=WARN, owner=Owner.USER)
def pids_limit(cgroup: Maybe[Cgroup], limits: Limits, machine: Maybe[Machine], plan: Plan) -> Iterator[Finding]:
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
    wanted = plan.nproc * THREADS_WANTED
    may_need = f"{plural(plan.nproc, 'rank')} may need {wanted}"
    limit = cgroup if isinstance(cgroup, Unknown) else cgroup.pids_limit
    used = 0 if isinstance(cgroup, Unknown) else known_or(cgroup.pids_used, None) or 0
    if isinstance(cgroup, Cgroup) and isinstance(limit, int) and limit - used < wanted:
        yield Finding.of(
            f"Only {limit - used} more processes and threads are allowed here; {may_need}",
            told(cgroup, "pids_limit", f"limit of processes and threads: {limit}"),
            told(cgroup, "pids_used", f"in use: {used}"),
            planned(plan),
            Fix("Start the container or job with a higher limit (Docker, Podman: `--pids-limit=-1`)"),
            Fix("Until then use fewer threads", ("export OMP_NUM_THREADS=1",)),
            severity=FAIL if limit - used < plan.nproc * THREADS_FLOOR else WARN,
        )
    processes = known(limits.processes_soft)
    is_root = isinstance(machine, Machine) and machine.user_id == 0  # Root is exempt.
    if processes != -1 and processes < wanted and not is_root:
        yield Finding.of(
            f"This user may have only {processes} processes and threads; {may_need}",
            told(limits, "processes_soft", f"processes and threads (`ulimit -u`): {processes}"),
            planned(plan),
            Fix("Raise the limit as far as it goes", ("ulimit -u $(ulimit -Hu)",), appliable=True),
        )
    elif known(limit) is not None:
        known(known(cgroup).pids_used)
