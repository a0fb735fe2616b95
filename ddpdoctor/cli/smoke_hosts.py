"""`ddpdoctor smoke` where others take part: several hosts, or the ranks that a launcher has started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.smoke import ELASTIC, Smoke
from ddpdoctor.network_check.hub import Hub
from ddpdoctor.network_check.job import NetcheckJob
from ddpdoctor.network_check.messages import Waiting
from ddpdoctor.network_check.results import NetcheckOptions, RunResult
from ddpdoctor.network_check.run import run
from ddpdoctor.smoke_training.joining import starter
from ddpdoctor.smoke_training.orders import STAGE_SECONDS, Launched, import_seconds
from ddpdoctor.smoke_training.remote_training import HostShare
from ddpdoctor.smoke_training.steps import Terms
from ddpdoctor.smoke_training.task import SmokePurpose

if TYPE_CHECKING:
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.smoke_training import train as conducting
    from ddpdoctor.smoke_training.rank_monitor import RankMonitor


def train_with_others(
    job: NetcheckJob,
    wishes: conducting.SmokeOptions,
    *,
    options: tuple[str, ...],
    chosen_by: str,
    stages_given: bool,
    token: str | None,
    wait: float,
    strict: bool,
    shown: Callable[[RunResult], None],
) -> RunResult:
    """Meets the others, trains, and comes to the same verdict on all. shown: prints how it ended here."""
    audience = _Audience(shown, launched=job.launched, silent=job.launched and job.node_rank != 0)
    share = HostShare(
        nproc=wishes.nproc,
        backend=wishes.backend,
        stages=wishes.stages if stages_given else None,
        timeout=wishes.timeout,
        launched=Launched(job.node_rank or 0, job.local_rank or 0) if job.launched else None,
        store_running=job.store_running,
        fault=wishes.fault,
    )
    terms = Terms(
        backend=wishes.backend,
        stages=wishes.stages,
        seconds=wishes.timeout or STAGE_SECONDS,
        import_seconds=import_seconds(wishes.timeout),
        python=wishes.python,
        launcher=job.launcher if job.launched else "",
        engine=starter(job) if job.launched else ELASTIC,
    )
    try:
        end = run(
            NetcheckOptions(
                job=job,
                purpose=SmokePurpose(share, terms, catalogue(), audience.heard),
                options=options,
                token=token,
                wait=wait,
                strict=strict,
                python=wishes.python,
                chosen_by=chosen_by,
            ),
            audience,
        )
    finally:
        audience.close()
    if not audience.has_shown:
        shown(end)
    return end


def print_end(end: RunResult, job: NetcheckJob, *, as_json: bool, verbose: bool, quiet: bool) -> None:
    """On the first node the whole, on the others their part; of the ranks that a launcher has started only those speak
    besides the first that have no part of its verdict."""
    if job.launched and not end.meeting.hosts_the_store:
        if end.part is None:
            for line in _why_alone(end):
                typer.echo(f"rank {job.node_rank}: {line}", err=True)
        return
    from ddpdoctor.cli import netcheck

    smoke = end.examinations[0].snapshot.smoke if end.examinations else None
    smoke = smoke if isinstance(smoke, Smoke) else None
    if as_json:
        netcheck.print_json(end, verbose=verbose, command="smoke", smoke=smoke)
    else:
        netcheck.print_report(end, verbose=verbose, quiet=quiet, smoke=smoke)
    for note in end.notes:
        typer.echo(note, err=True)


def _why_alone(end: RunResult) -> list[str]:
    found = [
        f"{severity.value.upper()}  {check.slug}: {finding.summary}"
        for examination in end.examinations
        for check, severity, finding in examination.findings
        if severity.value != "info"
    ]
    return found or list(end.problems)


class _Audience:
    """First who comes, then how far this host's own ranks are. silent: neither, since another process of the same launcher
    tells it on the same terminal. launched: the first of them shows the report before the others hear of it, since their
    exit codes make the launcher end it."""

    def __init__(self, shown: Callable[[RunResult], None], *, launched: bool, silent: bool) -> None:
        from ddpdoctor.network_check import views as netcheck_views

        self.has_shown = False
        self._shown = shown
        self._launched = launched
        self._silent = silent
        self._meeting = None if silent else netcheck_views.make_view(sys.stderr, "smoke")
        self._ranks: Callable[[RankMonitor], None] | None = None
        self._close: Callable[[], None] = lambda: None

    def meeting(self, meeting: Meeting) -> None:
        if self._meeting is not None:
            self._meeting.meeting(meeting)

    def hub(self, hub: Hub, command: Callable[[int], str] | None = None) -> None:
        if self._meeting is not None:
            self._meeting.hub(hub, command)

    def waiting(self, waiting: Waiting, command: Callable[[int], str] | None = None) -> None:
        if self._meeting is not None:
            self._meeting.waiting(waiting, command)

    def verdict(self, end: RunResult) -> None:
        if self._launched:
            self.close()
            self._shown(end)
            sys.stdout.flush()
            self.has_shown = True

    def say(self, text: str) -> None:
        if not self._silent:
            typer.echo(f"ddpdoctor smoke: {text}", err=True)

    def heard(self, watch: RankMonitor) -> None:
        if self._silent:
            return
        if self._ranks is None:
            from ddpdoctor.smoke_training import views as smoke_views

            self._end_meeting()
            view = smoke_views.make_view()
            self._ranks, self._close = view.heard, view.close
        self._ranks(watch)

    def close(self) -> None:
        """The report comes now."""
        self._end_meeting()
        self._close()

    def _end_meeting(self) -> None:
        if self._meeting is not None:
            self._meeting.close()
            self._meeting = None
