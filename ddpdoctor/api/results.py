"""The result of a command, whatever the command: a verdict, findings, and the report in each of its forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.report.contract import Report, ReportedFinding
    from ddpdoctor.report.document import Document

TEXT_WIDTH = 100
"""Columns."""


class CommandResult(ABC):
    """The result of a command.

    The report is built as it is asked for; what was learned doesn't change any more.
    """

    command: ClassVar[str]

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """The whole in a word."""

    def report(self, *, with_facts: bool = False) -> Report:
        """Build what the command's `--json` prints, typed.

        Args:
            with_facts: also all that was learned of the host, as `-v` adds it.
        """
        from ddpdoctor.report.contract import build_report

        return build_report(
            self.command,
            self.examinations,
            self.problems,
            with_facts=with_facts,
            of_all=self.verdict,
            **self._report_fields(),
        )

    def _report_fields(self) -> dict[str, Any]:
        """The arguments of `build_report` that this command alone gives."""
        return {}

    @abstractmethod
    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        """Build the report for people, for whatever shows it.

        Args:
            verbose: also what passed and what had nothing to test, by name.
            quiet: a line a finding, and the verdict.
        """

    def show(self, file: TextIO, *, width: int | None = None, verbose: bool = False, quiet: bool = False) -> None:
        """Write the report as a terminal shows it.

        Args:
            file: in colour if it is a terminal.
            width: in columns; None: the terminal's.
            verbose: as for `document`.
            quiet: as for `document`.
        """
        from ddpdoctor.report.terminal import Screen, screen_for

        screen = screen_for(file) if width is None else Screen(file, width)
        screen.show(self.document(verbose=verbose, quiet=quiet))

    @property
    def examinations(self) -> Sequence[Examination]:
        """The hosts that were judged, each with its facts and what the checks made of them."""
        return ()

    @property
    def problems(self) -> Sequence[str]:
        """Reasons why something was not judged, a sentence each."""
        return ()

    @property
    def findings(self) -> tuple[ReportedFinding, ...]:
        """Findings, worst first."""
        return self.report().findings

    def exit_code(self, *, strict: bool = False) -> int:
        """The command's: 0 nothing failed, 1 something did, 2 no verdict.

        Args:
            strict: 1 for warnings, too.
        """
        return self.verdict.exit_code(strict=strict)

    def to_json(self, *, with_facts: bool = False) -> str:
        """The command's `--json`."""
        from ddpdoctor.report.contract import to_json

        return to_json(self.report(with_facts=with_facts))

    def to_text(self, *, width: int = TEXT_WIDTH, verbose: bool = False, quiet: bool = False) -> str:
        """Render what a terminal shows, without colours; the arguments are those of `show`."""
        from ddpdoctor.report.terminal import text_of

        return text_of(self.document(verbose=verbose, quiet=quiet), width)

    def to_markdown(self) -> str:
        """The report for a bug tracker: without names of people and hosts, as far as they are known."""
        from ddpdoctor.report.markdown import to_markdown

        return to_markdown(self._public_document(), self.report(), self.examinations, self._other_hosts())

    def _public_document(self) -> Document:
        """The document without what is for this host's user alone."""
        return self.document()

    def _other_hosts(self) -> Collection[str]:
        """Names of hosts that stand in sentences, and in no field of the report."""
        return ()


class HostResult(CommandResult):
    """The result of a look at this host alone.

    Args:
        examination: its facts, and what the checks made of them.
    """

    def __init__(self, examination: Examination) -> None:
        self._examination = examination

    @property
    def examinations(self) -> Sequence[Examination]:
        return (self._examination,)

    @property
    def verdict(self) -> Verdict:
        return self._examination.verdict
