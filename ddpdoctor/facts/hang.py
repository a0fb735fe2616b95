"""Places where the ranks of one running, or dead, job stand. Filled in by an experiment, `ddpdoctor jobs --hang`."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source, Unknown

NOT_COUNTED = Unknown("it was not counted")
ENDED_STATES = ("Z", "X")
"""Kernel letters of a process that is none any more."""
STATE_UNTOLD = "?"
"""In place of the kernel's letter, where a rank has told its stack itself and nobody has looked at its process."""
NOT_FOUND = "no process on this host is this rank"
"""Why a rank is gone that no process ever was while it was looked for: it may not have been started."""
PORT_SETTING: Final = "DDPDOCTOR_DEBUG_SERVER"
"""Setting by which `ddpdoctor run` has a rank start torch's debug server: on which port rank 0's host is asked."""


class Frame(msgspec.Struct, frozen=True):
    """A call on a stack. path: as Python knows it, absolute where it was. line: 0 where it isn't known."""

    function: str
    path: str
    line: int = 0


class RankLook(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment. seconds: after the first look began."""

    seconds: float = 0.0
    frames: tuple[Frame, ...] = ()
    """Of its main thread, the innermost first."""
    others: tuple[tuple[str, tuple[Frame, ...]], ...] = ()
    """(name, frames) of those other Python threads that matter: autograd's, a DataLoader's pin-memory thread."""
    source: str = ""
    """"py-spy", "faulthandler"; or why there are no frames."""
    state: str = "S"
    """The kernel's letter, or STATE_UNTOLD: then nothing is known of processor, wake-ups and bytes."""
    waits_in: str = ""
    """wchan."""
    cpu_seconds: float = 0.0
    """Since its start; without that of the threads which poll for a process group."""
    switches: int = 0
    """Voluntary and other context switches of all its threads since its start."""
    main_wakes: Maybe[int] = NOT_COUNTED
    """Voluntary context switches of its main thread since its start: how often it has waited, and gone on."""
    other_wakes: Maybe[int] = NOT_COUNTED
    """Context switches of its other threads since their start, without those of the threads which poll for a process group."""
    transferred: int = 0
    """rchar + wchar since its start, without what the store's server and NCCL's watchdog say to each other."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def is_own_word(self) -> bool:
        """Whether the rank has told its stack itself, as torch's debug server lets it."""
        return self.state == STATE_UNTOLD


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was looked at twice, and its stack many times in between. pid: 0 where nobody tells it."""

    pid: int
    looks: tuple[RankLook, ...] = ()
    samples: int = 0
    """How often the main thread's stack was read between the looks; 0 where it wasn't."""
    elsewhere: int = 0
    """In how many of these it stood in other calls than in most of them. A loop within one function, which calls no other, stays
    where it is: what it does there its CPU time tells."""
    moved: int = 0
    """In how many of these it was surely elsewhere: in another line of the user's code, or out of the collective it mostly is in. A
    stack that was torn while it was read, or a wait that wakes up within a library, is none of them."""
    within: tuple[Frame, ...] = ()
    """The calls in which it was all the while, the innermost first, whatever it called from there; () without samples."""

    @property
    def last(self) -> RankLook:
        return self.looks[-1] if self.looks else RankLook()

    @property
    def still(self) -> bool:
        """The main thread was in the same calls all the while (without samples: in the same frames at both looks; without frames:
        the process did nothing in between). One look tells nothing. Whoever waits in a library's loop wakes up now and then: one of
        two hundred samples may differ. A step of the training that took a single sample is none of that."""
        if len(self.looks) < 2:
            return False
        first, last = self.looks[0], self.looks[-1]
        if self.samples:
            return not self.moved and self.elsewhere <= max(1, self.samples // 200)
        if first.frames and last.frames:
            return first.frames == last.frames
        return first.switches == last.switches and first.cpu_seconds == last.cpu_seconds


class WatchedRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, with its DataLoader workers. watched: None where the rank is gone, or is on another host (only its dump is here)."""

    rank: int
    host: str = ""
    watched: Watched | None = None
    workers: tuple[Watched, ...] = ()
    gone: str = ""
    """Why there is no process: "no such process", "Z: it has ended, and its parent has not taken note" ...; "" where there is one."""
    counters: tuple[str, ...] = ()
    """torch's wait counters that it was within at the last look: "c10d.new_group". The debug server tells them."""


class RecordedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a flight recorder. Sequence numbers count from 1 within the process group."""

    number: int
    """collective_seq_id, or p2p_seq_id where `point_to_point`."""
    name: str
    """"nccl:all_reduce", "gloo:broadcast", as torch writes it."""
    state: str
    """"scheduled", "started", "completed". torch leaves gloo's "scheduled" for ever, and says otherwise that they are done."""
    point_to_point: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the inputs."""
    dtypes: tuple[str, ...] = ()
    created: float = 0.0
    """Seconds since the epoch."""
    frames: tuple[Frame, ...] = ()
    """Where it was called, the innermost first."""


class RecordedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's flight recorder about one process group."""

    group: str
    """Its name ("0" is the default group) and description: "0:default_pg"."""
    ranks: tuple[int, ...] = ()
    """The group's members by global rank; () where the dump doesn't say."""
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    entries: tuple[RecordedCollective, ...] = ()
    """The last ones, in their order."""
    places: tuple[int, ...] = ()
    """Of each entry among all calls of its rank, of whatever group; () where it isn't told."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's dump."""

    rank: int
    file: str
    host: str = ""
    written: float = 0.0
    """Modification time, seconds since the epoch; 0.0 where it is none of the writing's: the file was copied later."""
    version: str = ""
    groups: tuple[RecordedGroup, ...] = ()


class RasCount(msgspec.Struct, frozen=True, kw_only=True):
    """NCCL's RAS about one rank in one communicator: how many operations of each kind it has begun, asked twice."""

    communicator: str
    rank: int
    host: str = ""
    pid: int = 0
    first: tuple[tuple[str, int], ...] = ()
    """(operation, count): ("AllReduce", 1024)."""
    second: tuple[tuple[str, int], ...] = ()
    status: str = ""
    """RAS's own word, where it isn't well."""

    @property
    def moved(self) -> bool:
        """Whether it has begun operations between the two answers."""
        return bool(self.second) and self.first != self.second


class Hang(Facts, frozen=True, kw_only=True):
    """Two looks at the ranks of one job. Without any rank, dump or count where nobody asked for it. Times in seconds."""

    job: Annotated[str, Source("/proc")] = ""
    """As `ddpdoctor jobs` calls it; "" where there are only dumps."""
    world_size: Annotated[int, Source("the ranks' environment")] = 0
    """0: not known."""
    backend: Annotated[str, Source("names of threads")] = ""
    """"nccl", "gloo", "nccl and gloo"; "" where it can't be told."""
    server: Annotated[str, Source("--debug-server")] = ""
    """HOST:PORT of torch's debug server, where that told all this of the ranks of all hosts; "" where their processes were looked at."""
    own_server: Annotated[str, Source("the ranks' environment")] = ""
    """HOST:PORT of the debug server that the job has and that was not asked; "" without one."""
    nccl: Annotated[str, Source("the libnccl.so that a rank has mapped")] = ""
    """The version of NCCL; "" where it isn't known."""
    groups: Annotated[int, Source("names of threads")] = 0
    """The most process groups that one of its ranks is in, by what each of them starts; 0: not known."""
    ranks: Annotated[tuple[WatchedRank, ...], Source("py-spy, /proc")] = ()
    """Of this host, with a debug server of all hosts, by rank; also those that should be there and are not."""
    between: Annotated[float, Source("ddpdoctor's clock")] = 0.0
    """Of the two looks."""
    paused: Annotated[float, Source("ddpdoctor's clock")] = 0.0
    """The longest that any rank was held up; 0.0: none was."""
    recorded: Annotated[tuple[Recorded, ...], Source("flight recorder")] = ()
    """By rank; of all hosts whose dumps were given."""
    dumps: Annotated[str, Source("flight recorder")] = ""
    """The folder or pattern that was read, or why there is nothing to read."""
    refused: Annotated[tuple[str, ...], Source("flight recorder")] = ()
    """"FILE: why" of each dump that was not read."""
    counts: Annotated[tuple[RasCount, ...], Source("NCCL's RAS")] = ()
    ras: Annotated[str, Source("NCCL's RAS")] = ""
    """Why RAS was not asked, or has not answered; "" where it has."""
    py_spy: Annotated[str, Source("ddpdoctor's own environment, PATH")] = "py-spy"
    """The program by which stacks were read. Under pipx it is on nobody's PATH."""
    hidden: Annotated[tuple[str, ...], Source("py-spy, /proc")] = ()
    """What could not be seen, and why, in whole sentences."""

    @property
    def asked(self) -> bool:
        """Whether anything was looked at."""
        return bool(self.ranks or self.recorded or self.counts)

    def rank(self, number: int) -> WatchedRank | None:
        """That rank, if it is one of this host's."""
        return next((rank for rank in self.ranks if rank.rank == number), None)
