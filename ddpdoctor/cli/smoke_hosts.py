"""`ddpdoctor smoke` at a terminal where others take part: several hosts, or the ranks that a launcher has started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from ddpdoctor.api.joint_training import joint_result
from ddpdoctor.cli.netcheck import print_notes

if TYPE_CHECKING:
    from ddpdoctor.api.training_results import JointSmokeResult
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.network_check.job import NetcheckJob
    from ddpdoctor.network_check.protocol.hub import Hub
    from ddpdoctor.network_check.protocol.messages import Waiting
    from ddpdoctor.network_check.results import RunResult
    from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor


def print_joint(result: JointSmokeResult, job: NetcheckJob, shown: Callable[[JointSmokeResult], None]) -> None:
    """On the first node the whole, on the others their part; of the ranks that a launcher has started only those speak
    besides the first that have no part of its verdict.

    Args:
        result: what it came to.
        job: which others take part.
        shown: prints a report.
    """
    if job.launched and not result.run.meeting.hosts_the_store:
        if result.run.part is None:
            for line in _why_alone(result.run):
                typer.echo(f"rank {job.node_rank}: {line}", err=True)
        return
    shown(result)
    print_notes(result)


def _why_alone(end: RunResult) -> list[str]:
    found = [
        f"{severity.value.upper()}  {check.slug}: {finding.summary}"
        for examination in end.examinations
        for check, severity, finding in examination.findings
        if severity.value != "info"
    ]
    return found or list(end.problems)


class TerminalAudience:
    """First who comes, then how far this host's own ranks are. Of the ranks
    that a launcher has started only the first tells: they share a terminal. It shows the report before the others hear of it,
    since their exit codes make the launcher end it."""

    def __init__(self, shown: Callable[[JointSmokeResult], None], job: NetcheckJob) -> None:
        from ddpdoctor.network_check import views as netcheck_views

        silent = job.launched and job.node_rank != 0
        self.has_shown = False
        self._shown = shown
        self._launched = job.launched
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
            self._shown(joint_result(end))
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
