"""A smoke training as a section of another command's report."""

from __future__ import annotations

from collections.abc import Set

from rich.console import Console

from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.report.section import Section
from ddpdoctor.smoke_training.render_terminal import show_stages, show_untested
from ddpdoctor.smoke_training.render_words import culprits, engine_text, shown_stages, what_was_done


def section_of(smoke: Smoke) -> Section:
    """Empty where no rank was started."""

    def show(console: Console, named: Set[int]) -> None:
        if shown_stages(smoke):
            # Only who knows of all ranks can tell whose fault it was.
            whole = len(smoke.ranks) == smoke.world_size
            show_stages(console, smoke, culprits(smoke) if whole else set(named))
            show_untested(console, smoke)

    rows = (("plan", smoke.chosen), ("engine", engine_text(smoke)), ("files", smoke.folder)) if smoke.ranks else ()
    return Section(
        done=what_was_done(smoke) if smoke.ranks else "",
        rows=tuple(row for row in rows if row[0] != "files" or row[1]),
        show=show,
    )
