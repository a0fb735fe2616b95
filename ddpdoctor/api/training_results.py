"""Results of `smoke`, on this host alone or over several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddpdoctor.api.network_checking import NetcheckResult
from ddpdoctor.api.results import HostResult

if TYPE_CHECKING:
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.facts.smoke import Smoke
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

    def write_picture(self, path: str | os.PathLike[str]) -> None:
        """Write an SVG of the burn-in's throughput over its time.

        Raises:
            WriteError: it can't be written, or there is nothing to be drawn.
        """
        from ddpdoctor.smoke_training.analysis.verdict import smoke_of

        _write_picture(path, smoke_of(self._examination))

    def document(self, *, verbose: bool = False, quiet: bool = False) -> Document:
        from ddpdoctor.smoke_training.render import smoke_document

        return smoke_document(self._examination, verbose=verbose, quiet=quiet)


class JointSmokeResult(NetcheckResult):
    """The result of a training over several hosts: on the first all of it, on another its own part."""

    command = COMMAND
    stopped_by = 0
    """The number of the signal that has ended the burn-in on this host; 0: none has."""

    def write_picture(self, path: str | os.PathLike[str]) -> None:
        """Write an SVG of the burn-in's throughput over its time; on the first host, which alone knows of all.

        Raises:
            WriteError: it can't be written, or there is nothing to be drawn.
        """
        if self.run.meeting.node_rank not in (0, None):
            return
        _write_picture(path, self.smoke)


def _write_picture(path: str | os.PathLike[str], smoke: Smoke | None) -> None:
    from ddpdoctor.api.errors import WriteError
    from ddpdoctor.api.pictures import write_picture
    from ddpdoctor.smoke_training.burn_in_picture import picture

    if smoke is None or not any(run.pace for run in smoke.ranks):
        raise WriteError(f"{path} was not written: the training ended before the burn-in, and there is nothing to draw")
    write_picture(path, picture(smoke))
