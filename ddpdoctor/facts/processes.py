"""The processes of this host that matter to training: ranks, their launchers, their DataLoader workers, and who holds a GPU."""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum
from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source, Unknown
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.hang import ENDED_STATES, Frame

NOT_LOOKED_INTO = Unknown("it was not looked into")


class ProcessRole(str, Enum):
    """Part that a process has in a training job."""

    RANK = "rank"
    LAUNCHER = "launcher"
    """torchrun, srun, mpirun, accelerate, or the script that calls mp.spawn."""
    WORKER = "DataLoader worker"
    HELPER = "helper"
    """Of a rank: multiprocessing's resource tracker or fork server, torch's compile workers."""
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> ProcessRole:
        """A word of a later release's snapshot."""
        return cls.OTHER


class ProcessIdentity(msgspec.Struct, frozen=True, order=True):
    """A pid is used again; with the time of its start it names one process for ever. start: clock ticks since boot."""

    pid: int
    start: int


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Rank of a process, and how many there are. source: who says so: "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "the order in which
    its parent started them" ...; only the last is a guess."""

    rank: int
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    source: str


class ThreadActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of one thread while its process was watched. cpu: cores, 1.0 is one core."""

    name: str
    switches: int
    """How often it gave up the processor."""
    cpu: float = 0.0


class AskedFor(msgspec.Struct, frozen=True, kw_only=True):
    """Number of processes that a launcher was to start by its configuration file, on all its machines. source: the file and its line."""

    processes: int
    source: str


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as /proc tells of it. Memory in bytes, times in seconds. What this user may not see is `Unknown`."""

    pid: int
    start: int
    """Clock ticks since boot."""
    parent: int
    group: int = 0
    session: int = 0
    terminal: bool = False
    """It has a controlling terminal: somebody may sit in front of it."""
    uid: int = 0
    user: str = ""
    name: str = ""
    """As in /proc/PID/comm: the kernel keeps 15 letters."""
    command: str = ""
    """Its words, redacted and cut."""
    executable: Maybe[str] = NOT_LOOKED_INTO
    state: str = "S"
    """The kernel's letter: R, S, D, T, t, Z, X, I."""
    age: float = 0.0
    cpu_seconds: float = 0.0
    """Of all its threads since its start."""
    recent_cpu: Maybe[float] = NOT_LOOKED_INTO
    """Cores that it used during `Processes.watched` seconds: 1.0 is one core."""
    recent_bytes: Maybe[int] = NOT_LOOKED_INTO
    """Bytes that it read and wrote (rchar + wchar) meanwhile."""
    recent_switches: Maybe[int] = NOT_LOOKED_INTO
    """How often its threads gave up the processor meanwhile, by themselves or not."""
    recent_threads: tuple[ThreadActivity, ...] = ()
    """Of these the threads by the names of a process group or a GPU (see marks), each by itself."""
    memory: int = 0
    """Resident."""
    waits_in: str = ""
    """The kernel function in which its main thread waits (wchan); "" where it runs or none is told."""
    tracer: int = 0
    """The debugger's pid, 0 without one."""
    threads: int = 1
    marks: tuple[str, ...] = ()
    """Names of its threads that tell of a process group or a GPU: "pt_gloo_runloop", "gloo_tcp_loop", "pt_nccl_watchdg", "cuda-EvtHandlr"."""
    ended_threads: bool = False
    """Its main thread has ended and others go on, or it is being taken down."""
    role: ProcessRole = ProcessRole.OTHER
    place: RankPlace | None = None
    """None where it is no rank, or nobody says which."""
    settings: Maybe[tuple[Setting, ...]] = NOT_LOOKED_INTO
    """Of its environment, as of its exec, what matters to training; a rank that was forked shows its parent's."""
    has_torch: Maybe[bool] = NOT_LOOKED_INTO
    """It has mapped torch's libraries, or NCCL."""
    devices: Maybe[tuple[int, ...]] = NOT_LOOKED_INTO
    """N of each /dev/nvidiaN that it has open."""
    listens: Maybe[tuple[int, ...]] = NOT_LOOKED_INTO
    """TCP ports on which it listens."""
    connected: Maybe[tuple[int, ...]] = NOT_LOOKED_INTO
    """Pids of the ranks of this host to which it has a TCP connection."""
    shared_memory: Maybe[tuple[str, ...]] = NOT_LOOKED_INTO
    """Paths of files in /dev/shm that it has mapped or open; "PATH (deleted)" where there is none by that name any more."""
    writes_to: Maybe[tuple[str, ...]] = NOT_LOOKED_INTO
    """Paths of regular files that it has open for writing, but for those in /dev/shm, logs and its output: a checkpoint, perhaps."""
    stack: Maybe[tuple[Frame, ...]] = NOT_LOOKED_INTO
    """Of its main thread, the innermost first, where py-spy was asked for it: of ranks that may be left over. Unknown as well where
    another of its threads may be at work."""
    asked_for: AskedFor | None = None
    """Of accelerate's launcher: what its configuration file asks for; None where there is none, or its command line goes before it."""
    pid_inside: int = 0
    """Its pid in its own container (the last of NSpid); 0 where it is the same."""
    pid_namespace: str = ""
    """As /proc/PID/ns/pid links to; "" where that can't be read."""
    network_namespace: str = ""
    container: str = ""
    """The container's or pod's id out of its cgroup, cut to 12 letters; "" outside of any."""
    unit: str = ""
    """The systemd service, Slurm job or session scope of its cgroup: "job_4711", "user@1000.service"; "" where there is none."""
    ours: bool = False
    """ddpdoctor itself, one that it started, or one of its ancestors."""

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start)

    @property
    def has_ended(self) -> bool:
        """It is a zombie: none any more but for its line in the list."""
        return self.state in ENDED_STATES

    @property
    def forked(self) -> bool:
        """Its place is a guess."""
        return self.place is not None and self.place.source.startswith("the order")


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """Number of processes of one user that were not looked into, or not wholly: what they are was not asked to the end."""

    uid: int
    user: str
    count: int

    @property
    def words(self) -> str:
        """A sentence without its point."""
        noun, were = ("process", "was") if self.count == 1 else ("processes", "were")
        return f"{self.count} {noun} of {self.user} {were} not wholly looked into: there are too many, or too much is in them"


class Processes(Facts, frozen=True, kw_only=True):
    """Processes that matter: of a job or a GPU, or that may be left over from one, each with its ancestors and
    descendants. Times in seconds."""

    listed: Annotated[tuple[Process, ...], Source("/proc")] = ()
    """By pid."""
    count: Annotated[int, Source("/proc")] = 0
    """Of all processes that this user can see."""
    closed: Annotated[int, Source("/proc")] = 0
    """Of those, how many this user may not look into: other users' without root."""
    unseen: Annotated[str, Source("/proc")] = ""
    """Why there may be more that this user can't even list (a container, hidepid), "" where all are seen."""
    spared: Annotated[tuple[Spared, ...], Source("/proc")] = ()
    """By user, the processes that were not looked into, or not wholly, since there are too many or too much is in them."""
    watched: Annotated[float, Source("ddpdoctor's clock")] = 0.0
    """Between the two looks; 0.0 where there was only one."""
    cores: Annotated[int, Source("sched_getaffinity")] = 0
    pid_namespace: Annotated[str, Source("/proc/self/ns/pid")] = ""
    """ddpdoctor's own."""
    network_namespace: Annotated[str, Source("/proc/self/ns/net")] = ""
    uid: Annotated[int, Source("geteuid()")] = 0
    """ddpdoctor's own."""

    def get(self, pid: int) -> Process | None:
        """The process of that pid, or None."""
        if pid < 1:
            return None
        at = bisect_left(self.listed, pid, key=lambda process: process.pid)
        if at < len(self.listed) and self.listed[at].pid == pid:
            return self.listed[at]
        # Whoever wrote them down by hand may have done so in another order.
        return next((process for process in self.listed if process.pid == pid), None)
