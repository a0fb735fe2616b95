"""Contents of the logs of one run. Filled in by `ddpdoctor diagnose-log` and `ddpdoctor run`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.unknown import Facts, Source


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file that was read. name: as given, or as found in a folder; "-" is standard input."""

    name: str
    bytes: int = 0
    """Read of it; where it is compressed, after unpacking."""
    lines: int = 0
    problem: str = ""
    """Why it could not be read, or not to its end."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log, without the labels of its launcher, timestamps of a log collector and colours.

    file: place in `Log.files`. number: from 1. order: counts the lines of all files in the order in which they were read; of two files
    that says nothing.
    rank, host: as far as labels, the file's name or the line itself tell. rank is the global one.
    time: seconds; comparable within one log only, and None where the line has no timestamp and no neighbour lends it one.
    """

    file: int
    number: int
    text: str
    order: int = 0
    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    time: float | None = None
    lent: bool = False
    """Its time is that of an earlier line of the same stream: it was written then, or later."""

    @property
    def stream(self) -> tuple[int, int | None, int | None, str]:
        """What lines have in common that follow one another as one process wrote them; without labels the whole file."""
        return self.file, self.rank, self.local_rank, self.host


class SignMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of an illness, where one rank said it first. words: the named groups of the sign's pattern.

    quoted: the line only mentions it (a comment, a line of code, a commit's title, a test's name): it proves nothing.
    before, after: neighbours of the same stream, for the reader. beside: the line with the sign's second text, without which it would not count.
    """

    slug: str
    sign: str
    role: SignRole
    line: LogLine
    words: dict[str, str] = {}
    times: int = 1
    """How often this rank said it."""
    quoted: bool = False
    before: tuple[LogLine, ...] = ()
    after: tuple[LogLine, ...] = ()
    beside: LogLine | None = None


class LogFrame(msgspec.Struct, frozen=True):
    """A call of a traceback, as printed. code: the source line, or ""."""

    path: str
    line: int
    function: str
    code: str = ""


class LoggedException(msgspec.Struct, frozen=True, kw_only=True):
    """An exception with its traceback, where one rank printed it first. Of a chain ("During handling of ...") each one is an entry of its
    own.

    exception: as printed, "torch.distributed.DistNetworkError". frames: the outermost and the last ones, innermost last.
    own: the innermost frame that is in nobody's library: not in site-packages, dist-packages, Python's own or a frozen module.
    Of a traceback that the log breaks off in, exception is "", and line its last one.
    """

    exception: str
    message: str
    line: LogLine
    """The one with the exception's name."""
    began: LogLine
    """The one that says "Traceback"; its first frame, where the log begins within it."""
    frames: tuple[LogFrame, ...] = ()
    own: LogFrame | None = None
    chained: bool = False
    """Another one followed that was raised while this one was handled: the cause is this one rather."""
    times: int = 1
    below: int = 0
    """Lines behind its own that are surely its message's, or its C++ stack."""
    reason: LogLine | None = None
    """The line behind it that tells why, where one says that it does."""
    announced: str = ""
    """The line right before it, where that says that the process may go on: "Exception in thread ...", a logger's ERROR."""


class LoggedStack(msgspec.Struct, frozen=True, kw_only=True):
    """Stack of a process, as Python's fault handler or py-spy wrote it: of its threads the one that tells most.

    reason: "Fatal Python error: Aborted", "Timeout (0:00:20)!"; "" where nothing before it says why. frames: innermost last.
    own: the innermost frame that is in nobody's library.
    """

    line: LogLine
    """The first one's header."""
    reason: str = ""
    frames: tuple[LogFrame, ...] = ()
    own: LogFrame | None = None


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """A process whose end a launcher reports. exit_code: negative for a signal. said_by: "torchrun", "srun", "mpirun", "accelerate" ...

    first: the launcher says that this was the first one it saw fail ("Root Cause (first observed failure)").
    told_to: it was ended by the launcher itself, since another had failed.
    """

    line: LogLine
    said_by: str
    exit_code: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    time: float | None = None
    first: bool = False
    told_to: bool = False
    error: str = ""
    """What the launcher says of the error itself (its error file, or the table's traceback), on one line."""
    script: str = ""
    """What it ran, as the launcher was given it."""


class Noise(msgspec.Struct, frozen=True):
    """A message that healthy runs print, too: what it is, why it is harmless, how often it was seen, and where first."""

    text: str
    why: str
    times: int
    line: LogLine


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of one rank, or of all that has no rank (None); a process that the label names, as Ray's does, has one of its own."""

    rank: int | None
    line: LogLine


class Log(Facts, frozen=True, kw_only=True):
    """The logs of one run, in one pass over their bytes. What was left out of the lists, to keep the memory constant, is counted in `more`."""

    files: Annotated[tuple[LogFile, ...], Source("the files that were read")] = ()
    notes: Annotated[tuple[str, ...], Source("what lies in the folders that were named")] = ()
    """Sentences on what was left out of them."""
    launcher: Annotated[str, Source("labels and messages of launchers")] = ""
    """ "torchrun", "srun", "mpirun", "accelerate", "deepspeed" ... ; "" where nothing tells."""
    world_size: Annotated[int | None, Source("what the log says of it")] = None
    ranks: Annotated[tuple[int, ...], Source("labels and messages")] = ()
    hosts: Annotated[tuple[str, ...], Source("labels and messages")] = ()
    ahead: Annotated[float, Source("zones of timestamps")] = 0.0
    """Seconds by which the clocks are before UTC, where all that say their zone say the same."""
    sightings: Annotated[tuple[SignMatch, ...], Source("signs of illnesses in the log")] = ()
    """Each sign once for each rank, in the order in which they were read."""
    raised: Annotated[tuple[LoggedException, ...], Source("tracebacks in the log")] = ()
    stacks: Annotated[
        tuple[LoggedStack, ...], Source("stacks that Python's fault handler or py-spy wrote into the log")
    ] = ()
    exited: Annotated[tuple[ProcessExit, ...], Source("what launchers say of processes that ended")] = ()
    errors: Annotated[tuple[LogLine, ...], Source("lines of the log that speak of an error")] = ()
    """The first ones that no sign and no traceback accounts for; mentions and harmless noise aren't among them."""
    noise: Annotated[tuple[Noise, ...], Source("messages of healthy runs")] = ()
    last: Annotated[tuple[LastWords, ...], Source("the last lines of the log")] = ()
    steps: Annotated[LogLine | None, Source("the last lines of the log")] = None
    """Of the latest lines that recur with other figures, as a training's steps do, the last but two: it goes on behind this line."""
    recurs: LogLine | None = None
    """The last but one of those that read like steps, and don't all stand together as a message's do."""
    trains: LogLine | None = None
    """Of the latest steps that give a loss, the tenth from the end: nothing before it has ended the training."""
    ended: tuple[int, ...] = ()
    """Lines of the file by which a run was over, and another one follows: behind an exception that nobody caught, of the launcher if one is known."""
    more: int = 0
    attempt: int | None = None
    """Of what was said in one attempt alone, of a launcher that started the ranks again: which, from 0. None: this is all."""
