"""Logs made by hand, for tests of what becomes of them."""

from __future__ import annotations

import io

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import LastWords, Log, LogFile, LogFrame, LoggedException, LogLine, ProcessExit, SignMatch
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs


def read(text: str) -> Log:
    """What the engine makes of a text, as if it came from standard input."""
    return read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue()))


def line(
    number: int, text: str = "", *, rank: int | None = None, host: str = "", time: float | None = None, file: int = 0
) -> LogLine:
    """Of several files the order is that of their places."""
    return LogLine(
        file=file, number=number, text=text, order=1_000_000 * file + number, rank=rank, host=host, time=time
    )


def seen(
    slug: str,
    *,
    number: int = 1,
    text: str = "words",
    role: SignRole = SignRole.NAMES,
    sign: str = "",
    rank: int | None = None,
    host: str = "",
    time: float | None = None,
    file: int = 0,
    quoted: bool = False,
) -> SignMatch:
    """A sign of an illness."""
    where = line(number, text, rank=rank, host=host, time=time, file=file)
    return SignMatch(slug=slug, sign=sign or f"the sign of {slug}", role=role, line=where, quoted=quoted)


def raised(
    exception: str,
    message: str = "",
    *,
    number: int = 10,
    rank: int | None = None,
    time: float | None = None,
    file: int = 0,
    chained: bool = False,
    library: bool = False,
    caught: bool = False,
) -> LoggedException:
    """An exception of four lines. library: it came from below torch.distributed. caught: not from the script's first line."""
    own = LogFrame("/home/ada/train.py", 7, "step" if caught else "<module>", "run()")
    inner = LogFrame("/opt/conda/lib/python3.11/site-packages/torch/distributed/c10d.py", 99, "wait")
    return LoggedException(
        exception=exception,
        message=message,
        line=line(number, f"{exception}: {message}", rank=rank, time=time, file=file),
        began=line(number - 3, "Traceback (most recent call last):", rank=rank, time=time, file=file),
        frames=(own, inner) if library else (own,),
        own=own,
        chained=chained,
    )


def exited(
    rank: int | None, code: int | None, *, number: int = 900, first: bool = False, told_to: bool = False, pid: int = 0
) -> ProcessExit:
    """An end in torchrun's words."""
    return ProcessExit(
        line=line(number, "exitcode"), said_by="torchrun", exit_code=code, rank=rank, first=first, told_to=told_to, pid=pid or None
    )  # fmt: skip


def log(
    *parts: SignMatch | LoggedException | ProcessExit,
    files: int = 1,
    ranks: tuple[int, ...] = (),
    hosts: tuple[str, ...] = (),
    world_size: int | None = None,
    last: tuple[LogLine, ...] = (),
    errors: tuple[LogLine, ...] = (),
    launcher: str = "",
) -> Log:
    """A log with these facts in it; its files are run.log, run1.log ..."""
    said = [part.line.rank for part in parts if part.line.rank is not None]
    return Log(
        files=tuple(LogFile(name=f"run{number or ''}.log", lines=10_000) for number in range(files)),
        launcher=launcher,
        world_size=world_size,
        ranks=ranks or tuple(sorted(set(said))),
        hosts=hosts,
        sightings=tuple(part for part in parts if isinstance(part, SignMatch)),
        raised=tuple(part for part in parts if isinstance(part, LoggedException)),
        exited=tuple(part for part in parts if isinstance(part, ProcessExit)),
        errors=errors,
        last=tuple(LastWords(rank=one.rank, line=one) for one in last),
    )
