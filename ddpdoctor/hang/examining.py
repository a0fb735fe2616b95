"""Looks at a job that hangs, or at its dumps, and judges: what `jobs --hang` and `run` share."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import msgspec

from ddpdoctor.base.async_work import until_stopped
from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.base.text import dotted, pid_named, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.explanations import Explanation
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.hang import Hang, RasCount
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.debug_server.pages import NotServedError, ServerAddress
from ddpdoctor.hang.debug_server.server_look import look_at_server
from ddpdoctor.hang.flight_recorder.collect_dumps import Dumps, dumps_of, read_dumps
from ddpdoctor.hang.judging import groups_of_hangs, judge_hang
from ddpdoctor.hang.permission import command_line
from ddpdoctor.hang.ras.client import UNWANTED, ask_twice
from ddpdoctor.hang.ras.mapped_nccl import mapped_nccl
from ddpdoctor.hang.watching import backend_of, watch
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.session import collect_facts
from ddpdoctor.processes.jobs import TrainingJob, jobs_of
from ddpdoctor.processes.overview import UnknownJobError, jobs_there, named_job

SECONDS: Final = 3
WHERE_IT_IS: Final = (
    "It listens on rank 0's host, where each rank has called torch.distributed.debug.start_debug_server(port=25999), "
    "or the job was started by: ddpdoctor run --debug-server 25999 -- COMMAND"
)
LONGEST_INQUIRY: Final = "some minutes if ranks don't answer"
RAS_GRACE_SECONDS: Final = 5.0
"""So long NCCL's RAS may take beyond the look itself."""


class NotExaminedError(Exception):
    """Why no job of that host is judged, in a sentence."""

    def __init__(self, why: str, host: str) -> None:
        super().__init__(why)
        self.host = host


def show(
    examination: Examination,
    *,
    verbose: bool = False,
    quiet: bool = False,
    explanations: Sequence[Explanation] = (),
) -> None:
    """Print a report for a person at a terminal; the arguments are those of `hang_document`."""
    from ddpdoctor.hang.render import hang_document
    from ddpdoctor.report.terminal import screen_for

    screen_for(sys.stdout).show(hang_document(examination, verbose=verbose, quiet=quiet, explanations=explanations))


def examine_job(
    name: str | None,
    catalogue: Catalogue,
    dumps: Sequence[str] = (),
    seconds: int = SECONDS,
    *,
    watched: bool = True,
    ras: bool = False,
    alone: bool = False,
) -> Examination:
    """Look at a job, and judge it.

    Raises NotExaminedError where there is no such job, or more than one; with `alone` UnknownJobError where there is none.

    Args:
        name: the job, by the pid of any process of it; None for the only one.
        catalogue: the checks that judge.
        dumps: of flight recorders: folders, files, prefixes or patterns; else those that the job's ranks have written are read.
        seconds: how long its ranks are watched.
        watched: whether its ranks are; else its dumps are all.
        ras: whether NCCL's RAS is asked, too.
        alone: only that process and what it has started is the job; of the jobs that there are nothing is said.
    """
    asked = pid_named(name or "")
    snapshot = collect_facts(Context(sys.executable, "ddpdoctor", quick=True, asked=asked), groups_of_hangs(catalogue))
    job = _find_job(snapshot, name, needed=not dumps, alone=alone) if watched else None
    return judge_hang(snapshot, _look(snapshot, job, dumps, seconds, with_ras=ras), catalogue)


def examine_server(server: ServerAddress, catalogue: Catalogue, seconds: int = SECONDS) -> Examination:
    """Look at the job of which torch's debug server tells, on whatever hosts its ranks are, and judge it.

    Args:
        server: where it listens.
        catalogue: the checks that judge.
        seconds: how long its ranks are watched.

    Raises:
        NotExaminedError: it tells nothing.
    """
    snapshot = collect_facts(Context(sys.executable, "ddpdoctor", quick=True), groups_of_hangs(catalogue))
    line = StatusLine(
        lambda passed: f"Asking torch's debug server ({passed:.0f} s; {LONGEST_INQUIRY})",
        delay=0.3,
        once=f"Asking torch's debug server at {server}: {LONGEST_INQUIRY}",
    )
    with closing(line):
        work = look_at_server(server, seconds)
        try:
            hang = asyncio.run(until_stopped(work, lambda: "Stopped. Nothing is left running."))
        except NotServedError as error:
            raise NotExaminedError(
                f"torch's debug server at {server} can't be asked: {error}. {WHERE_IT_IS}", snapshot.host
            ) from None
    return judge_hang(snapshot, hang, catalogue)


def _find_job(snapshot: Snapshot, name: str | None, *, needed: bool, alone: bool) -> TrainingJob | None:
    processes = snapshot.processes
    if isinstance(processes, Unknown):
        if needed or name is not None:
            raise NotExaminedError(f"The processes of this host could not be seen: {processes.reason}", snapshot.host)
        return None
    if name is None and not needed:
        return None  # With dumps alone there need not be any.
    jobs = jobs_of(processes)
    closed = ""
    if processes.closed and processes.uid:
        count = plural(processes.closed, "process", "processes")
        closed = f" {count} of others can't be looked into; root can: sudo {command_line(name or '')}"
    if name is None:
        if len(jobs) == 1:
            return jobs[0]
        why = (
            f"Which job? Name one: ddpdoctor jobs --hang PID. {jobs_there(jobs)}" if jobs else jobs_there(jobs) + closed
        )
        raise NotExaminedError(why, snapshot.host)
    try:
        return named_job(name, jobs, processes, below=alone)
    except UnknownJobError as error:
        if alone:
            raise UnknownJobError(error.what, closed.strip(), launcher=error.launcher) from None
        raise NotExaminedError(str(error) + closed, snapshot.host) from None


def _look(snapshot: Snapshot, job: TrainingJob | None, dumps: Sequence[str], seconds: int, *, with_ras: bool) -> Hang:
    if job is None or isinstance(snapshot.processes, Unknown):
        return _with_dumps(Hang(), _read(dumps))
    inquiry = RasInquiry(job, float(seconds), wanted=with_ras)
    words = f"Watching {len(job.ranks)} ranks"
    with closing(StatusLine(lambda passed: f"{words} ({passed:.0f} of {seconds} s)", delay=0.3)):
        work = watch(job, snapshot.processes, snapshot.host, seconds)
        hang = asyncio.run(until_stopped(work, lambda: "Stopped. No rank was held up, and nothing is left running."))
    return with_records(hang, job, _read(dumps) if dumps else dumps_of(job), inquiry)


def with_records(hang: Hang, job: TrainingJob, dumps: Dumps, inquiry: RasInquiry) -> Hang:
    """Add to what was seen of a job's ranks what their flight recorders and NCCL tell."""
    counts, why_not = inquiry.answer()
    return msgspec.structs.replace(_with_dumps(hang, dumps), counts=counts, ras=why_not, nccl=_nccl_of(job))


def _nccl_of(job: TrainingJob) -> str:
    """The version of NCCL that the first rank has loaded; "" where it isn't known."""
    version = mapped_nccl(job.ranks[0].pid, Proc()) if job.ranks else ()
    return "" if isinstance(version, Unknown) else dotted(version)


def _with_dumps(hang: Hang, dumps: Dumps) -> Hang:
    return msgspec.structs.replace(hang, recorded=dumps.recorded, dumps=dumps.note, refused=dumps.refused)


def _read(dumps: Sequence[str]) -> Dumps:
    with closing(StatusLine(lambda passed: f"Reading the dumps ({passed:.0f} s)", delay=0.5)):
        return read_dumps(dumps)


class RasInquiry:
    """Asks NCCL's RAS while the job is watched, in a thread that nobody has to wait for."""

    def __init__(self, job: TrainingJob, between: float, *, wanted: bool) -> None:
        self._answer: tuple[tuple[RasCount, ...], str] = ((), "it has not answered in time")
        self._patience = between + RAS_GRACE_SECONDS
        self._thread = threading.Thread(target=self._ask, args=(job, between, wanted), daemon=True)
        self._thread.start()

    def _ask(self, job: TrainingJob, between: float, wanted: bool) -> None:
        if "nccl" not in backend_of(job):
            self._answer = ((), "no rank here has a process group of NCCL's")
        else:
            self._answer = ask_twice(job, between) if wanted else ((), UNWANTED)

    def answer(self) -> tuple[tuple[RasCount, ...], str]:
        """Return what it says of each rank, asked twice; or nothing, and why."""
        self._thread.join(self._patience)
        return self._answer
