"""What `smoke` came to, on this host alone or over several, and who is told how the latter goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from ddpdoctor.api.network_checking import NetcheckResult
from ddpdoctor.api.results import CommandResult

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Examination, Verdict
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.network_check.hub import Hub
    from ddpdoctor.network_check.messages import Waiting
    from ddpdoctor.network_check.results import RunResult
    from ddpdoctor.report.contract import Report
    from ddpdoctor.smoke_training.rank_monitor import RankMonitor

COMMAND = "smoke"


class SmokeResult(CommandResult):
    """What a training on this host came to.

    Args:
        examination: of this host, with the facts of the training; where that failed, the findings of a whole check, too.
    """

    command = COMMAND

    def __init__(self, examination: Examination) -> None:
        self._examination = examination

    @property
    def examinations(self) -> Sequence[Examination]:
        return (self._examination,)

    @property
    def problems(self) -> Sequence[str]:
        from ddpdoctor.engine.examination import Verdict
        from ddpdoctor.smoke_training.judging import smoke_of

        problem = smoke_of(self._examination).problem
        return (problem,) if problem and self.verdict is Verdict.UNKNOWN else ()

    @property
    def verdict(self) -> Verdict:
        from ddpdoctor.smoke_training.judging import verdict_of

        return verdict_of(self._examination)

    @property
    def headline(self) -> str:
        """What happened, in a sentence without its full stop."""
        from ddpdoctor.base.text import one_line
        from ddpdoctor.smoke_training.render_words import headline

        return one_line(headline(self._examination))

    def report(self, *, with_facts: bool = False) -> Report:
        from ddpdoctor.report.contract import build_report
        from ddpdoctor.smoke_training.judging import smoke_of

        return build_report(
            self.command,
            [self._examination],
            self.problems,
            with_facts=with_facts,
            of_all=self.verdict,
            smoke=smoke_of(self._examination),
        )

    def show(self, file: TextIO, *, width: int | None = None, verbose: bool = False, quiet: bool = False) -> None:
        from ddpdoctor.report.terminal import make_console
        from ddpdoctor.smoke_training.render_terminal import show_smoke

        show_smoke(make_console(file, width), self._examination, verbose=verbose, quiet=quiet)


class JointSmokeResult(NetcheckResult):
    """What a training over several hosts came to: on the first all of it, on another its own part."""

    command = COMMAND


class JointAudience(Protocol):
    """Who is told how a training over several hosts goes: first who comes, then how far this host's own ranks are.

    has_shown: the report has been told already.
    """

    has_shown: bool

    def meeting(self, meeting: Meeting) -> None: ...
    def hub(self, hub: Hub, command: Callable[[int], str] | None = None) -> None: ...
    def waiting(self, waiting: Waiting, command: Callable[[int], str] | None = None) -> None: ...
    def verdict(self, end: RunResult) -> None: ...
    def say(self, text: str) -> None: ...
    def heard(self, watch: RankMonitor) -> None: ...
    def close(self) -> None: ...
