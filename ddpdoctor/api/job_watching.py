"""`watch`: looks at running jobs until they end, and says once when one has stopped moving."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ddpdoctor.api.errors import NoVerdictError, UsageError, refuse_empty, write_problem

if TYPE_CHECKING:
    from ddpdoctor.watching.alarm import Alarm
    from ddpdoctor.watching.events import Event
    from ddpdoctor.watching.follow_up import FollowUp
    from ddpdoctor.watching.metrics import JobMeasure

COMMAND: Final = "watch"
CONFIRM_SECONDS: Final = 600.0
EVERY_SECONDS: Final = 10.0
MIN_LOOKS: Final = 5
"""Within the time of confirmation, at least."""


class WatchResult(msgspec.Struct, frozen=True):
    """What a watch came to. alarms: how often a job has stopped moving. jobs: that were watched."""

    alarms: int
    jobs: int

    def exit_code(self) -> int:
        """The command's: 0 no alarm until the job ended, 1 at least one."""
        return 1 if self.alarms else 0


def watch(
    job: str | int | None = None,
    *,
    all_jobs: bool = False,
    confirm: float = CONFIRM_SECONDS,
    every: float = EVERY_SECONDS,
    on_hang: str | None = None,
    evidence: str | None = None,
    prometheus: str | None = None,
    ras: bool = False,
    tell: Callable[[Event], None],
) -> WatchResult:
    """Watch a job until it ends, or all jobs of this host until stopped; no process is stopped, signalled or attached to.

    Args:
        job: by the pid of its launcher, a rank, a worker, or the script around them.
        all_jobs: all that this user can see, those that start later, too.
        confirm: seconds for which nothing of a job may move before it is told; longer than its longest step.
        every: seconds between two looks.
        on_hang: command for the shell, run once a job has stopped moving; what is known stands in its environment.
        evidence: folder in which each alarm makes a new one; None: in the user's own folder for state.
        prometheus: file for metrics, written after each look.
        ras: ask NCCL's RAS, too, where a job has stopped.
        tell: is called with each event, as it happens.

    Raises:
        UsageError: the arguments contradict each other, or nothing can be written where they say.
        NoVerdictError: there is no such job, or this user can't watch it.
    """
    import asyncio

    from ddpdoctor.base.async_work import until_stopped
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.watching.follow_up import FollowUp
    from ddpdoctor.watching.job_track import WatchLimits
    from ddpdoctor.watching.session import NotWatchedError, Watch, WatchWish

    _refuse(job, all_jobs, confirm, every)
    refuse_empty(on_hang=on_hang, evidence=evidence, prometheus=prometheus)
    name = None if all_jobs else str(job)
    beside = _Beside(FollowUp(on_hang or "", confirm), evidence, prometheus, tell)
    limits = WatchLimits(confirm=confirm, every=every)
    watching = Watch(
        WatchWish(name=name, limits=limits, ras=ras), catalogue(), beside.tell, beside.sound, beside.note_look
    )
    try:
        asyncio.run(until_stopped(watching.run(), lambda: "Stopped watching. Nothing was done to any job."))
    except NotWatchedError as error:
        raise NoVerdictError(COMMAND, [str(error)]) from error
    beside.finish()
    return WatchResult(watching.alarms, watching.seen)


def _refuse(job: str | int | None, all_jobs: bool, confirm: float, every: float) -> None:
    if all_jobs and job is not None:
        raise UsageError(f"--all watches every job, and {job} is one: name the job, or --all")
    if not all_jobs and job is None:
        raise UsageError("which job? Name one by a pid, or --all; `ddpdoctor jobs` shows them")
    if job is not None and not str(job).strip():
        raise UsageError("the job is empty; is the variable in it set?")
    if not (math.isfinite(confirm) and math.isfinite(every)):
        raise UsageError("--confirm and --every take numbers of seconds")
    if every * MIN_LOOKS > confirm:
        raise UsageError(f"--every {every:g} is too seldom for --confirm {confirm:g}: {MIN_LOOKS} looks must fit in it")


class _Beside:
    """What happens beside the looking: evidence, metrics, and the command."""

    def __init__(
        self, follow_up: FollowUp, evidence: str | None, prometheus: str | None, tell: Callable[[Event], None]
    ) -> None:
        from ddpdoctor.base.private_folders import state_folder
        from ddpdoctor.base.whole_files import check_writable
        from ddpdoctor.watching.evidence_folder import prepare

        self._parent = Path(evidence) if evidence is not None else state_folder(os.environ) / "watch"
        self._prometheus = prometheus
        self._tell = tell
        self._follow_up = follow_up
        self._alarms = 0
        self._complained = False
        # Before anything is made: who is refused for an argument finds nothing new.
        if prometheus is not None:
            if not prometheus.endswith(".prom"):
                raise UsageError(f"--prometheus {prometheus}: node_exporter reads files alone whose names end in .prom")
            try:
                check_writable(prometheus)
            except OSError as error:
                raise UsageError(write_problem(prometheus, error, "the metrics can't be written")) from error
        try:
            prepare(self._parent)
        except OSError as error:
            option = "" if evidence is not None else ". Choose another folder: --evidence DIR"
            raise UsageError(f"{write_problem(self._parent, error, 'no evidence can be written')}{option}") from error

    def tell(self, event: Event) -> None:
        """Hand an event on; of a job that moves again or is gone, what waits for its turn is not run any more."""
        from ddpdoctor.watching.events import EventKind

        if event.kind in (EventKind.MOVES, EventKind.RESTARTED, EventKind.ENDED):
            self._follow_up.forget(event.job)
        self._tell(event)

    def sound(self, alarm: Alarm) -> str:
        """Write the evidence, and start the command; returns the folder."""
        from ddpdoctor.watching.evidence_folder import write_evidence

        self._alarms += 1
        folder = ""
        try:
            folder = write_evidence(self._parent, alarm.job, _evidence_files(alarm))
        except OSError as error:
            self._say_problem(alarm.job, write_problem(self._parent, error, "no evidence was written"))
        if why := self._follow_up.start(alarm, folder, time.monotonic()):
            self._say_problem(alarm.job, f"--on-hang: {why}")
        return folder

    def note_look(self, jobs: Sequence[JobMeasure]) -> None:
        """Write the metrics, and say what came of commands."""
        from ddpdoctor.watching.events import Event, EventKind

        for job, what in self._follow_up.ended(time.monotonic()):
            if what:
                text = f"Job {job}: the command of --on-hang {what}."
                self._tell(Event(kind=EventKind.COMMAND, job=job, text=text))
        if self._prometheus is not None:
            self._write_metrics(self._prometheus, jobs)

    def finish(self) -> None:
        """Say which command is left running, and which were not run."""
        from ddpdoctor.watching.events import Event, EventKind

        if left := self._follow_up.left:
            text = f"The command of --on-hang {left}."
            self._tell(Event(kind=EventKind.COMMAND, job="", text=text))

    def _write_metrics(self, path: str, jobs: Sequence[JobMeasure]) -> None:
        from ddpdoctor.base.whole_files import write_whole
        from ddpdoctor.watching.metrics import watch_metrics

        used = os.times()
        text = watch_metrics(jobs, alarms=self._alarms, processor_seconds=sum(used[:4]))
        try:
            # node_exporter runs as another user; there is nothing in it but numbers.
            write_whole(path, text.encode(), 0o644)
        except OSError as error:
            if not self._complained:
                self._say_problem("", write_problem(path, error, "the metrics were not written"))
            self._complained = True
        else:
            self._complained = False

    def _say_problem(self, job: str, text: str) -> None:
        from ddpdoctor.watching.events import Event, EventKind

        self._tell(Event(kind=EventKind.PROBLEM, job=job, text=text))


def _evidence_files(alarm: Alarm) -> dict[str, bytes]:
    from ddpdoctor.api.running_jobs import HangResult
    from ddpdoctor.watching.alarm import stacks_text

    result = HangResult(alarm.examination)
    return {
        "report.md": result.to_markdown().encode(errors="replace"),
        "report.json": result.to_json(with_facts=True).encode(errors="replace"),
        "stacks.txt": stacks_text(alarm.examination).encode(errors="replace"),
        "seen.json": json.dumps(alarm.seen, indent=1).encode(),
    }
