"""Results of `smoke`, on this host alone or over several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddpdoctor.api.network_checking import NetcheckResult
from ddpdoctor.api.results import HostResult

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.report.document import Document

COMMAND = "smoke"


class SmokeResult(HostResult):
    """The result of a training on this host; the examination has its facts and, where it failed, the findings of a whole check."""

    command = COMMAND

    @property
    def problems(self) -> Sequence[str]:
        from ddpdoctor.engine.examination import Verdict
        from ddpdoctor.smoke_training.analysis.verdict import smoke_of

        problem = smoke_of(self._examination).problem
        return (problem,) if problem and self.verdict is Verdict.UNKNOWN else ()

    @property
    def verdict(self) -> Verdict:
        from ddpdoctor.smoke_training.analysis.verdict import verdict_of

        return verdict_of(self._examination)

    @property
    def headline(self) -> str:
        """The outcome, in a sentence without its full stop."""
        from ddpdoctor.base.text import one_line
        from ddpdoctor.smoke_training.render_words import headline

        return one_line(headline(self._examination))

    def _report_fields(self) -> dict[str, Any]:
        from ddpdoctor.smoke_training.analysis.verdict import smoke_of

        return {"smoke": smoke_of(self._examination)}

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.smoke_training.render import smoke_document

        return smoke_document(self._examination, verbose=verbose, quiet=quiet)


class JointSmokeResult(NetcheckResult):
    """The result of a training over several hosts: on the first all of it, on another its own part."""

    command = COMMAND
