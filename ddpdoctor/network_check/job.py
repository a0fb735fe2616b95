"""The job that this process belongs to: where its nodes meet, how many there are, and which of them this is.

Flags win; then torchrun, MPI, Slurm, Kubernetes and plain settings. Pure: it reads what it is given and nothing else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

import msgspec

from ddpdoctor.facts.meeting import Conflict
from ddpdoctor.knowledge import launchers
from ddpdoctor.knowledge.hostlist import HostlistError, expand
from ddpdoctor.knowledge.launchers import NNODES_FLAG, Launch, number
from ddpdoctor.knowledge.netcheck_command import quoted
from ddpdoctor.network_check.master_address import MeetingPlace, PlaceError, meeting_place

MAX_NODES = 4096

RANK_FLAG = "--node-rank"

ONE_A_NODE = {"Open MPI": "--map-by ppr:1:node", "Intel MPI": "-ppn 1", "MVAPICH": "-ppn 1"}
"""What starts one process on each node."""


class JobError(ValueError):
    """Why there is no such job, in a sentence or two for the person who typed the command."""


class Flags(msgspec.Struct, frozen=True):
    """Everything that was asked for on the command line; None where nothing was."""

    master: str | None = None
    """"n1", "10.0.0.11", "n1:29500", "fd00::1", "[fd00::1]:29500"."""
    port: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    options: tuple[str, ...] = ()
    """The others that a command for another node takes over: "--wait 300"."""


class NetcheckJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job, as this process sees it."""

    master: str
    """A name or an address, an IPv6 one without brackets."""
    port: int
    nnodes: int | None = None
    """None: nothing speaks of other nodes, so only this side can be looked at."""
    counted_by: str = ""
    """The flag or setting that says so; "" where none does."""
    node_rank: int | None = None
    """None: the hub gives one."""
    local_rank: int | None = None
    """Local rank 0 speaks for its node; None: no launcher starts several processes here, so this one does."""
    launcher: str = ""
    """"torchrun", "Open MPI", "Slurm" ...; "" by hand."""
    conflicts: tuple[Conflict, ...] = ()
    hosts: tuple[str, ...] = ()
    """The launcher's names of all nodes by node rank; () where it doesn't say, or not in that order."""
    job_id: str = ""
    """What all nodes of this job know and those of others don't; "" by hand. See `tokens` for what it is worth."""
    store_running: bool = False
    """torchrun's own store holds the master's port already."""
    launched: bool = False
    """Each of its nodes is a rank that a launcher has started, as this process is one; see `rank_job_of`."""
    machines: int | None = None
    """Of a launched one: on how many hosts its ranks are; None: it isn't known."""


class _Reading(msgspec.Struct, frozen=True):
    """A number, and the setting that says it."""

    name: str
    value: int


def job_of(flags: Flags, environ: Mapping[str, str]) -> NetcheckJob:
    """Find the job that flags and environment speak of.

    Raises:
        JobError: there is none, or there can't be one.
    """
    launch = launchers.current_launch(environ)
    conflicts: list[Conflict] = []
    if (flags.nnodes is None or flags.nnodes > 1) and flags.node_rank is None:
        _check_srun(flags, launch, environ)
    if flags.nnodes is None and _is(launch, "Slurm") and _heterogeneous(environ):
        raise JobError(
            f"This Slurm job has {environ['SLURM_HET_SIZE']} components, and each counts its own nodes only. Say where all of "
            f"them meet and how many they are: srun --het-group=... ddpdoctor netcheck --master-addr HOST {NNODES_FLAG} N"
        )
    nnodes = _settle(_node_counts(flags, launch, environ), conflicts)
    node_rank = _settle(_node_ranks(flags, launch, environ), conflicts)
    _check(nnodes, node_rank, launch)
    conflicts += _stale_ranks(launch, nnodes, environ)
    job = _job_at_master(flags, launch, _slurm_list(launch, environ), conflicts, environ)
    return msgspec.structs.replace(
        job,
        nnodes=nnodes.value if nnodes else None,
        counted_by=nnodes.name if nnodes else "",
        node_rank=node_rank.value if node_rank else None,
        hosts=_hosts(nnodes, node_rank, launch, environ),
    )


def rank_job_of(flags: Flags, environ: Mapping[str, str]) -> NetcheckJob | None:
    """The job in which this very process is one rank of several, since torchrun, MPI or Slurm has started it as that; None
    where none of them has. Its nodes are its ranks.

    Raises:
        JobError: there can't be such a job.
    """
    launch = launchers.current_launch(environ)
    if launch is None or _is(launch, "Kubernetes", "settings") or launch.rank is None or (launch.world_size or 1) < 2:
        return None
    assert launch.world_size
    if launch.rank >= launch.world_size or launch.world_size > MAX_NODES:
        raise JobError(f"{_rank_words(launch)}; at most {MAX_NODES} can be tested, and they are counted from 0")
    alone = launch.local_world_size == launch.world_size
    # Where all ranks are on this host, they can always meet at the loopback.
    hosts = _slurm_list(launch, environ) or ("127.0.0.1" if alone else "")
    job = _job_at_master(flags, launch, hosts, _stale_ranks(launch, None, environ), environ)
    machines = _settle(_node_counts(flags, launch, environ), [])
    return msgspec.structs.replace(
        job,
        nnodes=launch.world_size,
        counted_by=launch.launcher,
        node_rank=launch.rank,
        launched=True,
        machines=1 if alone else machines.value if machines else None,
    )


def _job_at_master(
    flags: Flags, launch: Launch | None, hosts: str, conflicts: list[Conflict], environ: Mapping[str, str]
) -> NetcheckJob:
    """Find what its launcher and its master tell of the job.

    Raises:
        JobError: there is no master, or there can't be one.
    """
    try:
        place = meeting_place(flags.master, flags.port, hosts, environ)
    except PlaceError as error:
        raise JobError(str(error)) from None
    return NetcheckJob(
        master=place.host,
        port=place.port,
        local_rank=launch.local_rank if launch else None,
        launcher=launch.launcher if launch and launch.launcher != "settings" else "",
        conflicts=(*conflicts, *place.conflicts),
        job_id=_job_id(launch, place, environ),
        store_running=_is(launch, "torchrun") and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _is(launch: Launch | None, *names: str) -> bool:
    return launch is not None and launch.launcher in names


def _is_mpi(launch: Launch | None) -> bool:
    return launch is not None and not _is(launch, "torchrun", "Slurm", "Kubernetes", "settings")


def _read(environ: Mapping[str, str], *names: str) -> list[_Reading]:
    """Those of the settings that are numbers."""
    values = [(name, number(environ.get(name, ""))) for name in names]
    return [_Reading(name, value) for name, value in values if value is not None]


def _settle(readings: list[_Reading], conflicts: list[Conflict]) -> _Reading | None:
    """The first; those that say otherwise are conflicts."""
    for other in readings[1:]:
        if other.value != readings[0].value:
            conflicts.append(_contradiction(readings[0], other))
    return readings[0] if readings else None


def _contradiction(first: _Reading, second: _Reading) -> Conflict:
    return Conflict(first.name, str(first.value), second.name, str(second.value))


# --- how many nodes, and which of them ---------------------------------------------------------------------------------


def _node_counts(flags: Flags, launch: Launch | None, environ: Mapping[str, str]) -> list[_Reading]:
    """The settings that say how many nodes there are, the one to believe first."""
    readings = [_Reading(NNODES_FLAG, flags.nnodes)] if flags.nnodes is not None else []
    if _is(launch, "torchrun"):
        return readings + _read(environ, "GROUP_WORLD_SIZE")
    if _is(launch, "Slurm"):
        readings += [] if _heterogeneous(environ) else _read(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES")[:1]
    elif _is(launch, "Kubernetes"):
        readings += _read(environ, "PET_NNODES", *_of_pods("WORLD_SIZE", environ))[:1]
    elif launch and launch.world_size and launch.local_world_size:
        nodes, left = divmod(launch.world_size, launch.local_world_size)
        _, size, local_size = _names(launch)
        # Fewer nodes than that: another one has more ranks than this one.
        started = number(environ.get("OMPI_MCA_orte_num_nodes", "")) or nodes
        readings += [_Reading(f"{size}/{local_size}", nodes)] if not left and nodes <= started else []
    return readings if _is_mpi(launch) else readings + _read(environ, "NNODES", "PET_NNODES")


def _node_ranks(flags: Flags, launch: Launch | None, environ: Mapping[str, str]) -> list[_Reading]:
    """The settings that say which node this is, the one to believe first. torchrun may number the nodes otherwise than Slurm does."""
    readings = [_Reading(RANK_FLAG, flags.node_rank)] if flags.node_rank is not None else []
    if _is(launch, "torchrun"):
        return readings + _read(environ, "GROUP_RANK")
    by_hand = _read(environ, "NODE_RANK", "PET_NODE_RANK")
    if _is(launch, "Slurm"):
        return readings + ([] if _heterogeneous(environ) else _read(environ, "SLURM_NODEID")) + by_hand
    if _is(launch, "Kubernetes"):
        return readings + _read(environ, "JOB_COMPLETION_INDEX", "PET_NODE_RANK", *_of_pods("RANK", environ))[:1]
    if launch is None or launch.rank is None:
        return readings + by_hand
    rank_name, _, local_size_name = _names(launch)
    if _is_mpi(launch):
        # It fills one node after the other, or deals the ranks out: with several on a node only rank 0's is sure.
        known = launch.rank == 0 or launch.local_world_size == 1
        return readings + ([_Reading(rank_name, launch.rank)] if known else [])
    if launch.local_world_size and not by_hand:
        return [*readings, _Reading(f"{rank_name}/{local_size_name}", launch.rank // launch.local_world_size)]
    return readings + by_hand


def _of_pods(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """RANK and WORLD_SIZE count pods on Kubernetes, unless somebody has set those of processes."""
    return () if "LOCAL_WORLD_SIZE" in environ or "LOCAL_RANK" in environ else (name,)


def _names(launch: Launch) -> tuple[str, str, str]:
    """The settings that hold its rank, world size and local world size."""
    for launcher, rank, size, _, local_size in launchers.MPI:
        if launch.launcher == launcher or (launch.launcher == "PMI" and rank == "PMI_RANK"):
            return rank, size, local_size
    return "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"


def _check(nnodes: _Reading | None, node_rank: _Reading | None, launch: Launch | None) -> None:
    """Check the numbers, but not a rank that is too high: node 0 waits for this node, and must learn why it isn't the one.

    Raises:
        JobError: the numbers can't be.
    """
    if nnodes and not 1 <= nnodes.value <= MAX_NODES:
        raise JobError(f"{nnodes.name} is {nnodes.value}; a job has 1 to {MAX_NODES} nodes")
    if node_rank and not 0 <= node_rank.value < MAX_NODES:
        counted = f"nodes are counted from 0, and a job has at most {MAX_NODES}"
        raise JobError(f"{node_rank.name} is {node_rank.value}; {counted}")
    several = launch is not None and _is_mpi(launch) and launch.world_size != 1
    if nnodes is None and several and launch and launch.local_world_size:
        one_each = ONE_A_NODE.get(launch.launcher, "")
        raise JobError(
            f"{launch.launcher} runs {launch.local_world_size} of its {launch.world_size} ranks here and not as many on every "
            "node, so the number of nodes isn't known. Start one on each node"
            f"{f': mpirun {one_each} ddpdoctor netcheck' if one_each else ''}; or add {NNODES_FLAG} and the number of nodes"
        )
    if nnodes is None and (node_rank or several):
        what = f"{node_rank.name} says that this is node {node_rank.value}" if node_rank else _rank_words(launch)
        raise JobError(f"{what}, but nothing says of how many: add {NNODES_FLAG} and the number of nodes")


def _rank_words(launch: Launch | None) -> str:
    assert launch
    return f"{launch.launcher} says that this is rank {launch.rank} of {launch.world_size}"


def _stale_ranks(launch: Launch | None, nnodes: _Reading | None, environ: Mapping[str, str]) -> list[Conflict]:
    """Ranks and world sizes that were set before MPI or Slurm started this process, and hold for another one."""
    if (
        launch is None
        or launch.rank is None
        or launch.world_size is None
        or not (_is_mpi(launch) or _is(launch, "Slurm"))
    ):
        return []
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS") if _is(launch, "Slurm") else _names(launch)[:2]
    rank, size = _Reading(names[0], launch.rank), _Reading(names[1], launch.world_size)
    stale = [setting for setting in _read(environ, "RANK") if setting.value != rank.value]
    # A program that finds RANK doesn't look at SLURM_PROCID.
    if _is_mpi(launch) and "RANK" not in environ and size.value > 1:
        stale += [setting for setting in _read(environ, "SLURM_PROCID") if setting.value != rank.value]
    # One process a node is enough for netcheck, however many the job itself is to have there.
    one_each = nnodes is not None and nnodes.value == size.value
    sizes = [setting for setting in _read(environ, "WORLD_SIZE") if setting.value != size.value]
    sizes = [other for other in sizes if not (one_each and other.value and other.value % size.value == 0)]
    return [_contradiction(rank, other) for other in stale] + [_contradiction(size, other) for other in sizes]


# --- what a launcher alone knows ---------------------------------------------------------------------------------------


def _check_srun(flags: Flags, launch: Launch | None, environ: Mapping[str, str]) -> None:
    """Check that srun, or whatever else, has started this process on all nodes of a Slurm job.

    Raises:
        JobError: Slurm gave several nodes, and nothing has.
    """
    nodes, job = _slurm_nodes(environ), environ.get("SLURM_JOB_ID", "")
    if nodes < 2 or not (launch is None or _is(launch, "settings")):
        return
    where = f"This shell belongs to Slurm job {job}, but runs on one machine only, and the job has {nodes} nodes"
    if launchers.in_slurm_batch_script(environ):
        where = f"This is the batch script of Slurm job {job}, which runs on the first of its {nodes} nodes only"
    # The flags that are the same on all nodes are to be typed again; those that Slurm knows are left out.
    shown = f" --master-addr {shlex.quote(flags.master)}" if flags.master else ""
    shown += f" --master-port {flags.port}" if flags.port is not None else ""
    command = " ".join([launchers.srun_netcheck(nodes) + shown, *quoted(flags.options)])
    raise JobError(f"{where}. Start it on all of them: {command}")


def _heterogeneous(environ: Mapping[str, str]) -> bool:
    """Whether this is a component of a heterogeneous Slurm job: its counts, ids and lists are those of the component."""
    return (number(environ.get("SLURM_HET_SIZE", "")) or 0) > 1


def allocated_nodes(environ: Mapping[str, str]) -> int:
    """Count the nodes on which `srun` can start something in this Slurm job; 0 outside of one, or where only a part is counted."""
    return 0 if _heterogeneous(environ) else _slurm_nodes(environ)


def _slurm_nodes(environ: Mapping[str, str]) -> int:
    """Count the nodes of the Slurm job; 0 outside of one."""
    readings = _read(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") if "SLURM_JOB_ID" in environ else []
    return readings[0].value if readings else 0


def _slurm_list(launch: Launch | None, environ: Mapping[str, str]) -> str:
    """The hosts of the step, or of the job; "" where there are others. mpirun's own step leaves out the node that it was
    started on."""
    if _heterogeneous(environ):
        return ""
    of_step = ("SLURM_STEP_NODELIST",) if _is(launch, "Slurm", "torchrun") else ()
    return next((environ[name] for name in (*of_step, "SLURM_JOB_NODELIST", "SLURM_NODELIST") if environ.get(name)), "")


def _hosts(
    nnodes: _Reading | None, node_rank: _Reading | None, launch: Launch | None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """Slurm's hosts, where it is Slurm that numbers the nodes."""
    if not _is(launch, "Slurm") or nnodes is None or node_rank is None or node_rank.name != "SLURM_NODEID":
        return ()
    try:
        hosts = expand(_slurm_list(launch, environ))
    except HostlistError:
        return ()
    return hosts if len(hosts) == nnodes.value else ()


def _job_id(launch: Launch | None, place: MeetingPlace, environ: Mapping[str, str]) -> str:
    """Only what is the same in all processes of the job, whichever node they run on."""
    if launch is None or _is(launch, "settings"):
        return ""
    if _is_mpi(launch):
        # Open MPI's key is 128 random bits; the name of a PMIx job is a number or holds mpirun's host and pid.
        return environ.get("OMPI_MCA_orte_precondition_transports") or environ.get("PMIX_NAMESPACE", "")
    run = environ.get("TORCHELASTIC_RUN_ID", "") if _is(launch, "torchrun") else ""
    if run not in ("", "none"):
        return f"torchrun {run}"
    if launchers.in_slurm_step(environ) and not _heterogeneous(environ):
        step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")
        return f"Slurm {environ.get('SLURM_JOB_ID', '')}.{step}"
    if "KUBERNETES_SERVICE_HOST" not in environ:
        return ""
    if gang := environ.get("GANG_ID"):
        return f"gang {gang}"
    # The name of the Kubernetes job, which its pods' names begin with; unless the master's doesn't say the same.
    labels = (environ.get("HOSTNAME", ""), place.host.partition(".")[0])
    pods = [re.fullmatch(r"(.+?)(?:-master|-worker)?-\d+", label) for label in labels]
    names = {pod[1] if pod else "" for pod in pods}
    return f"Kubernetes {names.pop()}" if len(names) == 1 and "" not in names else ""
