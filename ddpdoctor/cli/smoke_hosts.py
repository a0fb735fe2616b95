"""`ddpdoctor smoke` at a terminal where others take part: several hosts, or the ranks that a launcher has started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from ddpdoctor.api.joint_training import JointProgress, joint_result
from ddpdoctor.cli.netcheck import print_notes

if TYPE_CHECKING:
    from ddpdoctor.api.joint_training import RunResult
    from ddpdoctor.api.training import NetcheckJob
    from ddpdoctor.api.training_results import JointSmokeResult


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


class TerminalAudience(JointProgress):
    """Progress for one rank of those that a launcher has started, since they share a terminal. It shows the report before the
    others hear of it, since their exit codes make the launcher end it."""

    def __init__(self, shown: Callable[[JointSmokeResult], None], job: NetcheckJob) -> None:
        super().__init__(None if job.launched and job.node_rank != 0 else sys.stderr)
        self._shown = shown
        self._launched = job.launched

    def verdict(self, end: RunResult) -> None:
        if self._launched:
            self.close()
            self._shown(joint_result(end))
            sys.stdout.flush()
            self.has_shown = True
