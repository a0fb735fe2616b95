"""Results of a smoke training: every rank, stage by stage. Filled in by an experiment, `ddpdoctor smoke`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Source
from ddpdoctor.facts.burn_in import BurnIn, PaceWindow

FIRST, LAST = "import", "shutdown"
"""The stages that every run has."""

RENDEZVOUS = "rendezvous"

SWITCHED_ON = "switched on"

OWN_WORDS = "the ranks' own words"

ELASTIC = "torch.distributed.elastic"
"""The engine that starts the ranks where no launcher has."""


def stage_seconds(stage: str, seconds: float, import_seconds: float, *, apart: bool) -> float:
    """Time limit of a stage in seconds, where any other may take `seconds`.

    At the rendezvous it counts from when the last rank came that we hear of.

    Args:
        stage: which.
        seconds: for any other stage.
        import_seconds: for the import of torch.
        apart: there are ranks on another host, or in a process of a launcher's, that may still import torch.
    """
    return import_seconds if stage == FIRST or (stage == RENDEZVOUS and apart) else seconds


class StageState(str, Enum):
    """End of a stage on a rank. What wasn't run has passed nothing."""

    PASSED = "passed"
    FAILED = "failed"
    """The rank raised, or died, in it."""
    HUNG = "hung"
    """It was still in it when the stage's time was up, or when another rank failed and all were ended."""
    NOT_RUN = "not run"
    """The run ended before."""
    NOT_TESTED = "not tested"
    """It can't be run here; `words` say why."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage on one rank. seconds: how long it took, or had taken when it was ended."""

    name: str
    state: StageState
    seconds: float = 0.0
    words: str = ""
    """What the rank said of it: a figure, or why it can't be tested here."""


class RankEnding(str, Enum):
    """End of a rank."""

    FINISHED = "finished"
    RAISED = "raised"
    """An exception; `words` are its type and message."""
    WRONG = "wrong"
    """A stage ended with a wrong result, which all ranks may have noticed; `culprits` are those that caused it."""
    EXITED = "exited"
    """With an exit code and without a word."""
    KILLED = "killed"
    """By a signal that ddpdoctor didn't send."""
    HUNG = "hung"
    """Its stage's time was up; ddpdoctor ended it."""
    ENDED = "ended"
    """By the engine or by ddpdoctor, since another rank had failed or hung."""
    NEVER_CAME = "never came"
    """Nothing was heard of it."""


class CollectiveCall(msgspec.Struct, frozen=True):
    """A collective as a rank announced it: the `number`th of its stage, from 1, with type and shape. That number is the same
    on all ranks for calls that belong together, however many other steps each of them takes."""

    stage: str
    number: int
    call: str


class RankRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one rank."""

    rank: int
    local_rank: int
    host: str
    node: int = 0
    """The place of its host in the job, from 0."""
    pid: int = 0
    device: str = "cpu"
    """"cpu" or "cuda:3", as torch calls it, with the GPU's name behind it."""
    stages: tuple[Stage, ...] = ()
    """All planned ones, in their order."""
    ending: RankEnding
    ended_after: float = 0.0
    """Seconds since the run began."""
    exit_code: int | None = None
    """None: it isn't known, or it was ended by us; negative: the signal's number."""
    words: str = ""
    """Type and message of what it raised."""
    culprits: tuple[int, ...] = ()
    """Ranks that made its result wrong, by its own account."""
    step: str = ""
    """What it was about to do when it was last heard of, within its last stage: "all_reduce of 4 MiB"."""
    steps: int = 0
    """Steps that it had begun in that stage."""
    calls: str = ""
    """The collective of that step with type and shape, "all_reduce float32[1048576]"; ranks that differ wait for ever."""
    called: tuple[CollectiveCall, ...] = ()
    """The last collectives that it announced, in their order: a rank that called another one may be ahead by now."""
    last_line: str = ""
    """The last line that it printed."""
    stack: tuple[str, ...] = ()
    """Where its main thread was, the innermost call first: "all_reduce (torch/distributed/distributed_c10d.py:2810)"."""
    stack_source: str = ""
    """faulthandler, py-spy, or why there is none."""
    process_state: str = ""
    """"stopped", "in the kernel: nfs_wait_bit_killable" ...: what the kernel says of a rank that hung, where that tells more
    than the stack."""
    out_of_memory: bool = False
    """It was ended by SIGKILL, and meanwhile the kernel has killed a process of its cgroup for want of memory."""
    memory: int = 0
    """Bytes that it held at most (VmHWM); 0: not known."""
    contexts: tuple[int, ...] = ()
    """GPUs by torch's number on which it had a CUDA context, its own among them, when it had loaded the checkpoint; empty
    where it didn't come to that, or the driver can't be asked."""
    pace: tuple[PaceWindow, ...] = ()
    """The burn-in, window by window; empty where there was none."""

    @property
    def last(self) -> Stage | None:
        """The last stage that it began."""
        begun = [stage for stage in self.stages if stage.state not in (StageState.NOT_RUN, StageState.NOT_TESTED)]
        return begun[-1] if begun else None


class Leftovers(msgspec.Struct, frozen=True, kw_only=True):
    """Remains of the run that ddpdoctor could not remove: processes "pid command", listening TCP ports, names of files
    in /dev/shm and elsewhere."""

    processes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    shared_memory: tuple[str, ...] = ()
    unclaimed: tuple[str, ...] = ()
    """Names of files in /dev/shm that appeared meanwhile and are named like ours. No process of the run was seen to have
    them: another job's, of this user and perhaps in another container, look the same."""
    files: tuple[str, ...] = ()


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The same training with so many ranks. memory: bytes on the fullest GPU, 0 on CPU; way: "DDP" or "DataParallel"."""

    ranks: int
    way: str
    samples_per_second: float = 0.0
    memory: int = 0
    problem: str = ""
    """Why there is no figure, or none that counts."""
    failed: bool = False
    """It was run and did not come to its end; else what has a problem could not be run here."""


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """An all_reduce of so many bytes: bus bandwidth in bytes a second, as nccl-tests count it."""

    size: int
    bus: float


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The same training at several numbers of ranks. Without speeds where it wasn't asked for, or `problem` says why not."""

    speeds: tuple[Speed, ...] = ()
    bandwidths: tuple[Bandwidth, ...] = ()
    """At the most ranks, by size."""
    larger: str = ""
    """Why larger messages were not measured; "" where all sizes were."""
    batch: int = 0
    """Samples a rank and step."""
    cores: int = 0
    """That the ranks may run on (sched_getaffinity)."""
    problem: str = ""


class Smoke(Facts, frozen=True, kw_only=True):
    """One smoke training. Without any rank where none was run."""

    ranks: Annotated[tuple[RankRun, ...], Source(OWN_WORDS)] = ()
    """In their order."""
    world_size: Annotated[int, Source("the plan of the run")] = 0
    nnodes: Annotated[int, Source("the plan of the run")] = 1
    backend: Annotated[str, Source("the plan of the run")] = ""
    """"nccl" or "gloo"."""
    chosen: Annotated[str, Source("the plan of the run")] = ""
    """Why so many ranks and that backend, in words."""
    gpus_passed_over: Annotated[str, Source("NVML, the PCI bus and the environment")] = ""
    """GPUs that are there, or may be, and that the run wasn't planned on, though nobody had chosen the CPU: why. "" where
    there are none."""
    engine: Annotated[str, Source("the plan of the run")] = ""
    """What started the ranks: ELASTIC, or the launcher's command: "srun", "mpirun" ..."""
    stages: Annotated[tuple[str, ...], Source("the plan of the run")] = ()
    """Names of the planned stages, in their order."""
    deadline: Annotated[float, Source("the plan of the run")] = 0.0
    """Seconds that a stage may take."""
    import_seconds: Annotated[float, Source("the plan of the run")] = 0.0
    """Seconds that the first stage may take, which imports torch, and the rendezvous with ranks that we don't hear of; 0: as
    any other."""
    nccl_diagnosis: Annotated[str, Source("the plan of the run")] = ""
    """SWITCHED_ON, or why NCCL's own diagnosis was not; "" where NCCL wasn't used, or nothing tells."""
    nccl_report: Annotated[tuple[str, ...], Source("NCCL's own words")] = ()
    """The lines of its report, as a rank printed them."""
    seconds: Annotated[float, Source("ddpdoctor's clock")] = 0.0
    problem: Annotated[str, Source("the engine's own words")] = ""
    """Why the ranks could not even be started."""
    torch: Annotated[str, Source("torch.__version__")] = ""
    python: Annotated[str, Source("--python")] = ""
    folder: Annotated[str, Source("TMPDIR and the usual places")] = ""
    """Where the run had its temporary files, and why there; "" where that is the first place that is looked at."""
    leftovers: Annotated[Leftovers, Source("/proc, before and after")] = Leftovers()
    scaling: Annotated[Scaling, Source("--scaling")] = Scaling()
    burn_in: Annotated[BurnIn, Source("--duration")] = BurnIn()

    def seconds_for(self, stage: str) -> float:
        """Time limit of that stage; 0: not known."""
        apart = self.nnodes > 1 or self.engine not in ("", ELASTIC)
        return stage_seconds(stage, self.deadline, self.import_seconds or self.deadline, apart=apart)
