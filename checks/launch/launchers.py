"""The settings that torchrun, Slurm and MPI leave in the environment of ranks, and whether they fit together."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, requires
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Container, Environment, Gpus, Pci
from ddpdoctor.knowledge.interface_choice import in_a_subnet_of
from ddpdoctor.knowledge.job_intent import address_of, is_here, no_family_in_common, way_to_the_others
from ddpdoctor.knowledge.launchers import (
    current_launch,
    in_slurm_batch_script,
    in_slurm_step,
    number,
    slurm_tasks,
    slurm_tasks_here,
)
from ddpdoctor.knowledge.network_fixes import addresses, resolved
from ddpdoctor.logs.analyze.sightings import word

ENV_INIT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RANK_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_STARTERS = {
    "SLURM_": ("srun", "srun --ntasks-per-node=2 --gpus-per-node=2 python train.py"),
    "OMPI_": ("mpirun", "mpirun -np 2 python train.py"),
    "PMI_": ("mpiexec", "mpiexec -n 2 python train.py"),
}
"""Who sets the variables that begin so, and how it starts ranks."""
NO_LAUNCHER = "no launcher's settings here"


def shown(environment: Environment, *names: str) -> tuple[Evidence, ...]:
    """Those of the variables that are set, as evidence."""
    found = (environment.setting(name) for name in names)
    return tuple(Evidence(f"{setting.name}={setting.value}", setting.origin) for setting in found if setting)


def unset(environment: Environment, *names: str) -> str:
    """The command that takes away those that are set; Slurm's own are true, and stay."""
    return "unset " + " ".join(name for name in names if name in environment and not name.startswith("SLURM_"))


def with_torchrun(plan: Plan) -> Fix:
    return Fix("Let torchrun arrange the start", (f"torchrun --nproc-per-node={plan.nproc} train.py",))


_WITHOUT_PMI = "The application appears to have been direct launched"


def _devices_and_tasks(seen: Sequence[SignMatch], log: Log) -> Particulars:
    if any(match.sign.startswith(_WITHOUT_PMI) for match in seen):
        return Particulars(
            "srun started the tasks, but this Open MPI can't find the others by Slurm: it was built without its PMI",
            (
                Fix(
                    "See by which ways srun can start MPI's tasks, and name one that Open MPI has, too",
                    ("srun --mpi=list", "ompi_info | grep -i pmi", "srun --mpi=pmix ..."),
                ),
                Fix(
                    "Or start them by Open MPI's own mpirun within the job, which needs no PMI of Slurm's",
                    ("mpirun -np $SLURM_NTASKS python train.py",),
                ),
            ),
            "Tasks of srun's learn of each other by PMI or PMIx; an Open MPI that was built without it ends in MPI_Init().",
        )
    devices, tasks = word(seen, "devices"), word(seen, "tasks")
    if not devices or not tasks:
        return Particulars()
    return Particulars(
        f"Lightning is to use {plural(int(devices), 'device')} per node, and Slurm starts {plural(int(tasks), 'task')} there",
        (
            Fix(
                "Start a task for each device, by srun's options or the batch script's #SBATCH lines",
                (f"srun --ntasks-per-node={devices} --gpus-per-node={devices} python train.py",),
            ),
            Fix(f"Or use as many devices as there are tasks: Trainer(devices={tasks})"),
        ),
    )


def _what_is_missing(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Tell whose variable is missing, or what a tcp:// address lacks, which needs none."""
    lacks, name = word(seen, "lacks"), word(seen, "name")
    starter = next((how for prefix, how in _STARTERS.items() if name.startswith(prefix)), None)
    if starter:
        whose, command = starter
        return Particulars(
            f"The script takes its place in the job from {name}, which only {whose} sets, and that didn't start it",
            (
                Fix(f"Start the ranks with {whose}, also within a batch script", (command,)),
                Fix("Or let torchrun start them, if the script can read RANK, LOCAL_RANK and WORLD_SIZE instead"),
            ),
        )
    if not lacks:
        return Particulars()
    if lacks == "port number":
        return Particulars(
            "The tcp:// address at which the ranks are to meet has no port",
            (
                Fix(
                    "Write a free port behind its last colon, the same for all ranks",
                    ('init_method="tcp://127.0.0.1:29500"',),
                ),
                Fix(
                    "If an option of the program makes the address, give it whole, as Detectron2's",
                    ("--dist-url tcp://127.0.0.1:29500",),
                ),
            ),
            "What is behind the last colon is empty: mostly a variable that isn't set, or an option's default that found no port.",
        )
    missing = "its rank" if lacks == "rank parameter" else "the number of ranks"
    return Particulars(
        f"init_process_group() was given a tcp:// address, and not {missing}",
        (
            Fix(
                "Let a launcher arrange the start, and let the ranks take what it sets",
                ('dist.init_process_group("nccl", init_method="env://")', "torchrun --nproc-per-node=2 train.py"),
            ),
            Fix(
                "Or give each process all three",
                ("dist.init_process_group(backend, init_method=address, rank=rank, world_size=world_size)",),
            ),
        ),
        "With tcp:// torch takes no variables of the environment: the call itself has to say rank= and world_size=. A script that "
        "gets them from its launcher has none where it is started by plain python, and -1 counts as none.",
    )


@check("launcher-env-missing", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=_what_is_missing))
def launcher_env_missing(environment: Environment, plan: Plan) -> Iterator[Finding]:
    """Settings that init_process_group needs are missing.

    ## What breaks
    `init_process_group()` stops with "environment variable ... expected, but not set", or the script with
    "KeyError: 'LOCAL_RANK'".

    ## Why
    With the default `env://` method torch wants RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, all four. A launcher sets
    them together; by hand one is easily forgotten, and plain `python train.py` has none.

    ## Fix
    Start the program with `torchrun`, or export what is missing.
    """
    requires(environment.get("RANK") or environment.get("WORLD_SIZE"), NO_LAUNCHER)
    launch = current_launch(environment)
    launcher = launch.launcher if launch else "settings"
    requires(launcher in ("torchrun", "settings"), f"{launcher} says which rank this is")
    given = names(environment)
    requires(not {"NODE_RANK", "PET_NODE_RANK", "PET_NNODES", "NNODES"} & given, NO_LAUNCHER)
    requires("RANK" in given or not any(name.startswith("SLURM_JOB") for name in given), NO_LAUNCHER)
    missing = [name for name in ENV_INIT if not environment.get(name)]
    if not missing:
        return
    have = [name for name in ENV_INIT if environment.get(name)]
    verbs = ["is" if len(group) == 1 else "are" for group in (have, missing)]
    size = (number(environment.get("RANK")) or 0) + 1
    examples = {"RANK": "0", "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    yield Finding.of(
        f"{listed(have)} {verbs[0]} set, but {listed(missing)} {verbs[1]} not",
        shown(environment, *ENV_INIT),
        with_torchrun(plan),
        Fix(
            "Or set the rest by hand, the same on all ranks of this host; each needs its own RANK, from 0 to WORLD_SIZE - 1",
            ("export " + " ".join(f"{name}={examples[name]}" for name in missing),),
        ),
        Fix("Or unset them, if they are left over", (unset(environment, *ENV_INIT),)),
        severity=FAIL if "RANK" in environment else WARN,
    )


def names(environment: Environment) -> set[str]:
    return {setting.name for setting in environment.settings}


def _counted_differently(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Name the two numbers of ranks, where NCCL has compared them."""
    one, other = word(seen, "one"), word(seen, "other")
    if not (one and other):
        return Particulars()
    return Particulars(
        f"The ranks don't agree on how many they are: one says {one}, another {other}",
        (
            Fix(
                "See on every node what the launcher has set, or print it in the script's first lines",
                ("env | grep -E '^(WORLD_SIZE|RANK|LOCAL_WORLD_SIZE|SLURM_NTASKS|OMPI_COMM_WORLD_SIZE)='",),
            ),
            Fix("Start each node with the same --nnodes and --nproc-per-node, and unset what a login shell or a batch script exports"),
        ),
        "WORLD_SIZE, or the numbers of nodes and of ranks on each, differ from one node to the other; or a process of another run has come to the same address and port.",
        of_everybody=True,
    )  # fmt: skip


@check("launcher-env-inconsistent", severity=FAIL, owner=Owner.USER, log=LogTraits(particulars=_counted_differently))
def launcher_env_inconsistent(
    environment: Environment, gpus: Maybe[Gpus], network: Maybe[Network], container: Maybe[Container], plan: Plan
) -> Iterator[Finding]:
    """The settings that say which rank this is contradict each other.

    ## What breaks
    The rendezvous waits for ranks that don't exist, two processes take one rank, or a rank asks for a GPU that isn't there.

    ## Why
    RANK counts from 0 to WORLD_SIZE - 1, LOCAL_RANK from 0 to LOCAL_WORLD_SIZE - 1, MASTER_PORT is a free TCP port and
    MASTER_ADDR names, for every node, the host on which rank 0 runs: without torchrun, that rank opens the store. Values
    exported in a login shell or a batch script are the same in every process that is started from it.

    ## Fix
    Let the launcher set them (`torchrun`, or `srun` with SLURM_PROCID), and unset what is exported elsewhere.
    """
    requires(names(environment) & {*RANK_NUMBERS, "MASTER_PORT", "MASTER_ADDR"}, NO_LAUNCHER)
    for text, involved, remedy in contradictions(environment):
        yield Finding.of(
            text,
            shown(environment, *involved),
            remedy if remedy else None,
            Fix("Unset what is wrong", (unset(environment, *involved),)),
            None if in_slurm_step(environment) else with_torchrun(plan),
        )
    yield from local_rank_beyond_gpus(environment, gpus)
    if opens_the_store(environment):
        yield from rank_0_elsewhere(environment, known(network), container)


def opens_the_store(environment: Environment) -> bool:
    """Whether this rank listens at MASTER_ADDR. On Kubernetes that is a service's name, and leads back to the pod."""
    launch = current_launch(environment)
    other = launch is not None and (launch.launcher in ("torchrun", "Kubernetes") or launch.rank != 0)
    pods = "KUBERNETES_SERVICE_HOST" in environment or "TORCHELASTIC_USE_AGENT_STORE" in environment
    return number(environment.get("RANK")) == 0 and bool(environment.get("MASTER_ADDR")) and not other and not pods


def rank_0_elsewhere(environment: Environment, network: Network, container: Maybe[Container]) -> Iterator[Finding]:
    """A host or a container may be known to the others by an address that isn't its own (NAT, published ports): only one
    from its own subnet is certainly another's."""
    master = known(network.master)
    # A name that doesn't resolve, and an address without a route, have checks of their own.
    if not isinstance(master, Resolution) or not master.addresses or network.master_route_error:
        return
    if is_here(master, network) or no_family_in_common(master, network):
        return
    neighbour = any(in_a_subnet_of(address, network.interfaces) for address in master.addresses)
    if not neighbour and known(container).runtime is not None:
        return
    way = way_to_the_others(network)
    own = address_of(way, network) if way else None
    first = number(environment.get("LOCAL_WORLD_SIZE")) or 1
    first_node = f"export MASTER_ADDR={shlex.quote(own or '')}"
    yield Finding.of(
        f"RANK is 0, but MASTER_ADDR={master.name[:60]} is another host: rank 0 must run where MASTER_ADDR points",
        shown(environment, "RANK", "MASTER_ADDR"),
        resolved(master),
        addresses(network),
        Fix("If this is the first node, set this on all nodes", (first_node,)) if own else None,
        Fix(
            "If it isn't, its ranks continue the numbers of the first node's; on the second node",
            (f"export RANK={first}",),
        ),
        cause="Without torchrun rank 0 itself opens the store, here, while all ranks look for it at MASTER_ADDR.",
        severity=FAIL if neighbour else WARN,
    )


Contradiction = tuple[str, tuple[str, ...], Fix | None]


def contradictions(environment: Environment) -> Iterator[Contradiction]:
    """Yield each contradiction, the variables in it, and its remedy where there is a better one than the general ones."""
    value = {name: number(environment.get(name)) for name in RANK_NUMBERS}
    for name, read in value.items():
        if name in environment and read is None:
            yield f"{name} is {environment.get(name)[:40]!r}, not a whole number from 0 up", (name,), None
    # On Kubernetes WORLD_SIZE is the number of pods until torchrun sets it anew.
    counts_pods = "KUBERNETES_SERVICE_HOST" in environment and "TORCHELASTIC_RUN_ID" not in environment
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        low, high = value[rank], value[size]
        if low is not None and high is not None and low >= high:
            yield f"{rank} is {low}, but {size} is {high}: ranks go from 0 to {high - 1}", (rank, size), None
    local, world = value["LOCAL_WORLD_SIZE"], value["WORLD_SIZE"]
    if local is not None and world is not None and local > world and not counts_pods:
        why = f"LOCAL_WORLD_SIZE is {local}, more than WORLD_SIZE, which is {world}"
        yield why, ("LOCAL_WORLD_SIZE", "WORLD_SIZE"), None
    address = environment.get("MASTER_ADDR")
    if address != address.strip() and "TORCHELASTIC_RUN_ID" not in environment:
        yield (
            f"MASTER_ADDR is {address[:60]!r}: torch takes the spaces as part of the name",
            ("MASTER_ADDR",),
            Fix("Set it without the spaces", (f"export MASTER_ADDR={shlex.quote(address.strip())}",), appliable=True),
        )
    port = environment.get("MASTER_PORT")
    if port and not 1 <= (number(port) or 0) <= 65535:
        yield (
            f"MASTER_PORT is {port[:40]!r}, not a port from 1 to 65535",
            ("MASTER_PORT",),
            Fix("Choose one", ("export MASTER_PORT=29500",), appliable=True),
        )
    yield from against_slurm(environment)


FROM_SLURM = Fix(
    "Set them in each task, not before srun",
    ("srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python train.py'",),
)


def against_slurm(environment: Environment) -> Iterator[Contradiction]:
    """RANK and WORLD_SIZE that were exported before srun, and so don't fit its tasks."""
    launch = current_launch(environment)
    if launch is None or launch.launcher != "Slurm":
        return
    rank, size = number(environment.get("RANK")), number(environment.get("WORLD_SIZE"))
    if rank is not None and launch.rank is not None and rank != launch.rank:
        yield f"RANK is {rank}, but this is task {launch.rank} of srun", ("RANK", "SLURM_PROCID"), FROM_SLURM
    elif rank is not None and size is not None and launch.world_size is not None and size != launch.world_size:
        why = f"WORLD_SIZE is {size}, but srun started {plural(launch.world_size, 'task')}"
        yield why, ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), FROM_SLURM


def local_rank_beyond_gpus(environment: Environment, gpus: Maybe[Gpus]) -> Iterator[Finding]:
    """A rank that sees a single GPU by its launcher's doing is right, so only lists of several are compared."""
    rank = number(environment.get("LOCAL_RANK"))
    listing = environment.get("CUDA_VISIBLE_DEVICES")
    visible = len([entry for entry in listing.split(",") if entry.strip()])
    has_gpus = isinstance(gpus, Unknown) or gpus.devices
    if rank is None or not has_gpus or visible < 2 or rank < visible:
        return
    yield Finding.of(
        f"LOCAL_RANK is {rank}, but CUDA_VISIBLE_DEVICES leaves {plural(visible, 'GPU')}: cuda:{rank} doesn't exist",
        shown(environment, "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"),
        Fix("Start as many ranks as there are GPUs", (f"torchrun --nproc-per-node={visible} train.py",)),
        Fix("Or show the program all GPUs", ("unset CUDA_VISIBLE_DEVICES",)),
    )


@check("slurm-launch-mismatch", severity=WARN, owner=Owner.USER, log=LogTraits(particulars=_devices_and_tasks))
def slurm_launch_mismatch(environment: Environment, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> Iterator[Finding]:
    """Slurm's tasks, the GPUs and the way the program is started don't fit together.

    ## What breaks
    One task runs and waits for the others forever; or each of eight tasks starts eight ranks; or no GPU is there.

    ## Why
    With `srun python` Slurm starts one process per task, so there must be one task per GPU. With `srun torchrun` Slurm
    must start one torchrun per node, which starts the ranks. A batch script itself runs once, on the first node.

    ## Fix
    `srun --ntasks-per-node=8 --gpus-per-node=8 python train.py`, or
    `srun --ntasks-per-node=1 --gpus-per-node=8 torchrun --nproc-per-node=8 ...`.
    """
    requires("SLURM_JOB_ID" in environment or "SLURM_JOBID" in environment, "not in a Slurm job")
    yield from several_torchruns(environment)
    yield from batch_script_alone(environment)
    yield from more_tasks_than_gpus(environment)
    yield from no_gpus_requested(environment, gpus, pci)


TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE")


def several_torchruns(environment: Environment) -> Iterator[Finding]:
    tasks, ranks = slurm_tasks_here(environment) or 0, number(environment.get("LOCAL_WORLD_SIZE")) or 0
    if in_slurm_step(environment) and "TORCHELASTIC_RUN_ID" in environment and tasks > 1 and ranks > 1:
        yield Finding.of(
            f"srun started torchrun {tasks} times on this node, each with {ranks} ranks: {tasks * ranks} in all",
            shown(environment, *TASKS_PER_NODE, "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
            Fix(
                "Start one torchrun per node", (f"srun --ntasks-per-node=1 torchrun --nproc-per-node={ranks} train.py",)
            ),
            severity=FAIL,
        )


def batch_script_alone(environment: Environment) -> Iterator[Finding]:
    tasks = slurm_tasks(environment)
    started = {"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"} & names(environment)
    if not in_slurm_batch_script(environment) or started or not tasks or tasks < 2:
        return
    yield Finding.of(
        f"This is the batch script's own shell: a program started here without srun is 1 of {tasks} tasks",
        shown(environment, "SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_NUM_NODES"),
        Fix("Start the training, and this check, through srun", ("srun python train.py",)),
        cause="The script runs once, on the first node, with SLURM_PROCID=0; only srun starts the other tasks.",
        severity=INFO,
    )


def more_tasks_than_gpus(environment: Environment) -> Iterator[Finding]:
    tasks, gpus = slurm_tasks_here(environment), number(environment.get("SLURM_GPUS_ON_NODE"))
    if not in_slurm_step(environment) or not tasks or not gpus or tasks <= gpus:
        return
    yield Finding.of(
        f"srun started {plural(tasks, 'task')} on this node, which has {plural(gpus, 'GPU')} for the job",
        shown(environment, *TASKS_PER_NODE, "SLURM_GPUS_ON_NODE"),
        Fix("Start one task per GPU", (f"srun --ntasks-per-node={gpus} --gpus-per-node={gpus} python train.py",)),
        cause="With one rank per task, two ranks share a GPU, which NCCL refuses.",
    )


GPU_REQUESTS = {
    f"SLURM_{name}" for name in ("GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GPUS_ON_NODE", "JOB_GPUS", "STEP_GPUS")
}


def no_gpus_requested(environment: Environment, gpus: Maybe[Gpus], pci: Maybe[Pci]) -> Iterator[Finding]:
    """Only where the node has GPUs and the job sees none: without Slurm's device control a job sees them all."""
    sees_some = not isinstance(gpus, Unknown) and gpus.devices
    has_none = not isinstance(pci, Unknown) and not pci.nvidia_gpus
    if GPU_REQUESTS & names(environment) or sees_some or has_none:
        return
    count = len(known(pci).nvidia_gpus)
    known(gpus)
    yield Finding.of(
        f"This node has {plural(count, 'GPU')}, but the Slurm job asked for none and sees none",
        shown(environment, "SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"),
        Evidence(f"NVIDIA GPUs on the PCI bus: {count}", "/sys/bus/pci/devices"),
        Evidence("GPUs that the job sees: 0", "NVML"),
        Fix("Ask for them", (f"srun --gpus-per-node={count} --ntasks-per-node={count} python train.py",)),
    )
