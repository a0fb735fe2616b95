"""Collects flight recorders' dumps: those that the user names, from whatever host, and those that a job's own ranks have written.

A dump is never asked for here. A rank of NCCL that reads a pipe (TORCH_NCCL_DEBUG_INFO_PIPE_FILE) writes one when it is told to,
over the one that its timeout may have left; that it harms no run can't be shown without GPUs, so the command is told instead.
"""

from __future__ import annotations

import os
import shlex
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.base.ownership import ROOT
from ddpdoctor.base.text import listed, masked, plural, ranks_named
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import Recorded
from ddpdoctor.facts.processes import Process
from ddpdoctor.hang.flight_recorder.dump_files import (
    CandidateDump,
    DumpContents,
    candidates,
    rank_in,
    read_dump_file,
)
from ddpdoctor.hang.flight_recorder.dump_format import Dump, parse_dump
from ddpdoctor.hang.flight_recorder.plain_pickles import NotRead
from ddpdoctor.probes.proc import MAX_ENVIRON, TICKS, Proc, variables
from ddpdoctor.probes.run_as import identity_of, sudo
from ddpdoctor.processes.jobs import TrainingJob

MAX_SECONDS = 300.0
"""How long all dumps together may take to be read: one of 2000 entries takes some 0.2."""
MAX_REFUSALS = 50
UNKNOWN_TIMEOUT_SECONDS = 3 * 3600.0
"""Taken for that of a collective whose dump doesn't tell it."""

PREFIX_SETTINGS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""torch appends the rank; the first that is set counts (torch 2.8 and later; before that only the second is known)."""
PIPE_SETTING = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"


class Dumps(NamedTuple):
    """What was read."""

    recorded: tuple[Recorded, ...] = ()
    """By rank."""
    refused: tuple[str, ...] = ()
    """"FILE: why" of each that was not read."""
    note: str = ""
    """Which those are, or why there is nothing."""


class _ReadDump(NamedTuple):
    rank: int
    path: str
    written: float
    dump: Dump

    @property
    def age(self) -> tuple[float, float]:
        """A key by which the newest is the greatest: the time in it first, for copying changes the file's."""
        return self.dump.last, self.written


def read_dumps(paths: Sequence[str]) -> Dumps:
    """Read the dumps in these folders, files, or behind these prefixes or patterns; for each rank its newest."""
    refused: list[str] = []
    found: list[CandidateDump] = []
    for given in paths:
        try:
            found += candidates(given)
        except NotRead as error:
            refused.append(_refusal(given, str(error)))
    kept = _of_one_run(_newest(_read_all(found, refused), refused), refused)
    recorded = tuple(read.dump.recorded(read.rank, masked(read.path), "", read.written) for read in kept)
    named = masked(listed(paths, most=3))
    if recorded:
        note = f"{named}: {plural(len(recorded), 'dump')}, of {ranks_named(dump.rank for dump in recorded)}"
    else:
        note = f"no flight recorder's dump could be read in {named}"
    return Dumps(recorded, _cut(refused), note)


def _read_all(found: Sequence[CandidateDump], refused: list[str]) -> Iterator[_ReadDump]:
    until = time.monotonic() + MAX_SECONDS
    seen: set[tuple[int, int]] = set()
    for number, candidate in enumerate(found):
        if time.monotonic() > until:
            late = plural(len(found) - number, "file")
            refused.append(
                _refusal(candidate.path, f"{late} from here on not read, for the others took {MAX_SECONDS:.0f} s")
            )
            return
        try:
            file = read_dump_file(candidate.path)
            if file.identity in seen:
                continue
            seen.add(file.identity)
            yield _with_rank(candidate.path, file)
        except NotRead as error:
            if candidate.certain:
                refused.append(_refusal(candidate.path, str(error)))


def _with_rank(path: str, file: DumpContents) -> _ReadDump:
    dump = parse_dump(file.data)
    rank = rank_in(path)
    if rank is None:
        rank = dump.rank
    if rank is None:
        raise NotRead(
            "neither its name nor what it holds tells the rank: let its name end with it, as in flight_rank_3"
        )
    return _ReadDump(rank, path, file.written, dump)


def _newest(dumps: Iterable[_ReadDump], refused: list[str]) -> list[_ReadDump]:
    by_rank: dict[int, _ReadDump] = {}
    for dump in sorted(dumps, key=lambda dump: dump.age, reverse=True):
        newest = by_rank.setdefault(dump.rank, dump)
        if newest is not dump:
            refused.append(_refusal(dump.path, f"of rank {dump.rank}, too, and {masked(newest.path)} is newer"))
    return [by_rank[rank] for rank in sorted(by_rank)]


def _of_one_run(dumps: Sequence[_ReadDump], refused: list[str]) -> list[_ReadDump]:
    """Leave out dumps that an earlier run, of more ranks perhaps, left in the same place."""
    timed = [read.dump for read in dumps if read.dump.last]
    if not timed:
        return list(dumps)
    begun = max(timed, key=lambda dump: dump.last).first
    kept = []
    for read in dumps:
        # A run whose collectives stand still for so long has ended by its timeout; half of it is for slower clocks and watchdogs.
        most = 2 * (read.dump.timeout or UNKNOWN_TIMEOUT_SECONDS)
        if read.dump.last and begun - read.dump.last > most:
            older = f"{(begun - read.dump.last) / 3600:.1f} h"
            why = f"an earlier run's: its last call is {older} older than the first that the newest tells of"
            refused.append(_refusal(read.path, why))
        else:
            kept.append(read)
    return kept


def dumps_of(job: TrainingJob) -> Dumps:
    """Read the dumps that this job's ranks on this host have written since they started. The note tells how to get one where there
    is none."""
    proc = Proc()
    host = socket.gethostname()
    recorded: list[Recorded] = []
    refused: list[str] = []
    hidden: list[int] = []
    commands: list[str] = []
    for process in job.ranks:
        if process.place is None:
            continue
        rank = process.place.rank
        environ = proc.read(f"{process.pid}/environ", MAX_ENVIRON)
        if isinstance(environ, Unknown):
            hidden.append(rank)
            continue
        settings = variables(environ)
        paths = [_seen_from_here(path, process.pid, proc) for path in _default_paths(settings, rank)]
        if read := _newest_own(process, rank, paths, refused):
            recorded.append(read.dump.recorded(rank, masked(read.path), host, read.written))
        elif settings.get(PIPE_SETTING):
            pipe = _seen_from_here(f"{settings[PIPE_SETTING]}{rank}.pipe", process.pid, proc)
            if _is_own_pipe(pipe, process.uid):
                commands.append(_dump_command(pipe, process.uid))
    recorded.sort(key=lambda dump: dump.rank)
    return Dumps(tuple(recorded), _cut(refused), _note(recorded, hidden, commands))


def _note(recorded: Sequence[Recorded], hidden: Sequence[int], commands: Sequence[str]) -> str:
    if recorded:
        return (
            f"{plural(len(recorded), 'dump')} that this job wrote: {listed((dump.file for dump in recorded), most=3)}"
        )
    if commands:
        return f"none yet: NCCL's ranks write one each after {listed(commands, most=9)}; then look again"
    if hidden:
        return f"the settings of {ranks_named(hidden)}, which say where dumps are, can't be read by this user"
    return "this job has written none: NCCL's ranks do so at their timeout, or when asked through a pipe that was set beforehand"


def _dump_command(pipe: str, uid: int) -> str:
    """Word the command that asks for a dump; root is to type it as the pipe's owner, who may have put a link there by then."""
    words = f"timeout 5 sh -c {shlex.quote(f'echo dump > {shlex.quote(masked(pipe))}')}"
    return f"{sudo(identity_of(uid))} {words}" if os.geteuid() == ROOT != uid else words


def _seen_from_here(path: str, pid: int, proc: Proc) -> str:
    """Return a path as that process knows it so that it leads to the same file for us."""
    own = proc.link("self/ns/mnt"), proc.link("self/root")
    root = "" if own == (proc.link(f"{pid}/ns/mnt"), proc.link(f"{pid}/root")) else f"/proc/{pid}/root"
    if not path.startswith("/"):
        folder = proc.link(f"{pid}/cwd")
        path = f"{folder}/{path}" if isinstance(folder, str) else f"/{path}"
    return root + path


def _default_paths(settings: dict[str, str], rank: int) -> Iterator[str]:
    """List where torch puts that rank's dump, whichever release it is."""
    for name in PREFIX_SETTINGS:
        if settings.get(name):
            yield f"{settings[name]}{rank}"
    cache = settings.get("XDG_CACHE_HOME") or f"{settings.get('HOME', '/tmp')}/.cache"
    yield f"{cache}/torch/comm_lib_trace_rank_{rank}"
    yield f"{settings.get('HOME', '/tmp')}/.cache/torch/comm_lib_trace_rank_{rank}"
    yield f"/tmp/nccl_trace_rank_{rank}"


def _newest_own(process: Process, rank: int, paths: Sequence[str], refused: list[str]) -> _ReadDump | None:
    """Read the newest of the rank's own dumps. A file of somebody else, or from before its start, is another job's."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = booted + process.start / TICKS
    found = []
    for path in dict.fromkeys(paths):
        try:
            facts = Path(path).stat()
            if facts.st_uid != process.uid or facts.st_mtime < started - 1:
                continue
            file = read_dump_file(path)
            # What was opened counts: who owns the folder may have put something else there meanwhile.
            if file.owner != process.uid:
                continue
            found.append(_ReadDump(rank, path, file.written, parse_dump(file.data)))
        except (OSError, ValueError):
            continue
        except NotRead as error:
            refused.append(_refusal(path, str(error)))
    return max(found, key=lambda read: read.age, default=None)


def _is_own_pipe(path: str, uid: int) -> bool:
    try:
        facts = Path(path).lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(facts.st_mode) and facts.st_uid == uid


def _refusal(path: str, why: str) -> str:
    return f"{masked(path)[:300]}: {why}"


def _cut(refused: Sequence[str]) -> tuple[str, ...]:
    more = len(refused) - MAX_REFUSALS + 1
    return (*refused[: MAX_REFUSALS - 1], f"{more} more files: not read either") if more > 1 else tuple(refused)
