"""`ddpdoctor explain SLUG`: what breaks, why, the fix, how it shows itself; for some topics worked out for this host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.base.error_lines import complain
from ddpdoctor.cli.output import refusals

if TYPE_CHECKING:
    from ddpdoctor.engine.registry import Check
    from ddpdoctor.report.terminal import Screen


def explain(
    slug: Annotated[str, typer.Argument(help="A check from `ddpdoctor list`, a family, or a topic such as apex.")],
    python: Annotated[
        str | None, typer.Option(help="For topics: the Python in which training runs.", show_default=False)
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="For topics: work it out for this saved snapshot, not this host.")
    ] = None,
) -> None:
    """Explain a check: what breaks, why, the fix, how it shows itself.

    `ddpdoctor explain apex` looks at this host and gives the exact build command for it.
    """
    from ddpdoctor.checks.catalogue import all_checks, all_prescriptions
    from ddpdoctor.engine.registry import as_written
    from ddpdoctor.report.terminal import screen_for

    screen = screen_for(sys.stdout)
    name = as_written(slug)
    topic = next((prescription for prescription in all_prescriptions() if prescription.slug == name), None)
    page = next((check for check in all_checks() if check.slug == name), None)
    family = [check for check in all_checks() if check.family == name]
    if topic is not None:
        prescribed = _prescribe(screen, topic, python, snapshot)
        print()
        _show_page(screen, topic)
        if not prescribed:
            print(
                f"Nothing could be worked out for {topic.slug} here: name the Python that training runs in with "
                f"`ddpdoctor explain {topic.slug} --python PATH`, and see `ddpdoctor check`.",
                file=sys.stderr,
            )
            raise typer.Exit(2)
    elif page is not None:
        _show_page(screen, page)
    elif family:
        for check in family:
            _show_page(screen, check)
    else:
        raise typer.BadParameter(_unknown(slug))


def _unknown(slug: str) -> str:
    from ddpdoctor.checks.catalogue import all_checks, all_prescriptions
    from ddpdoctor.engine.registry import nearest_names

    checks = all_checks()
    names = {check.slug for check in (*checks, *all_prescriptions())} | {check.family for check in checks}
    nearest = nearest_names(slug, names)
    hint = f"Did you mean {' or '.join(nearest)}?" if nearest else "`ddpdoctor list` shows them all."
    return f"there is no check called {slug!r}. {hint}"


def _show_page(screen: Screen, check: Check) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from ddpdoctor.logs.render_signs import sign_blocks
    from ddpdoctor.report.document import Paragraph, StyledText

    # With a height, rich asks no further: on a terminal that calls itself dumb it would take 80 columns, whatever COLUMNS says.
    pages = Console(file=sys.stdout, height=25, markup=False, emoji=False, highlight=False)
    screen.write(
        Paragraph((StyledText(check.slug, "bold"), StyledText(f"  ({check.family}, {check.severity.value})", "dim")))
    )
    pages.print(Markdown(check.page))
    if signs := tuple(sign_blocks(check.log_signs)):
        screen.write(Paragraph(""))
        pages.print(Markdown("## How it shows itself in a log"))
        screen.write(*signs)
    if check.catalogue.get(check.slug):
        screen.write(Paragraph(StyledText(f"With an example, in ddpdoctor's repository: {check.docs}", "dim")))
    screen.write(Paragraph(""))


def _prescribe(screen: Screen, topic: Check, python: str | None, path: Path | None) -> bool:
    """Shows what is worked out for the host. False: nothing was, and why is shown."""
    from ddpdoctor.api.errors import refuse_empty
    from ddpdoctor.base.text import one_line
    from ddpdoctor.engine.examination import Examination
    from ddpdoctor.engine.planning import plan_for
    from ddpdoctor.engine.registry import diagnose
    from ddpdoctor.engine.snapshots import SnapshotError, read_snapshot
    from ddpdoctor.probes.session import collect_facts, start_probes
    from ddpdoctor.report.check_results import result_sections
    from ddpdoctor.report.document import Paragraph, StyledText

    if path is None:
        with refusals():
            refuse_empty(python=python)
        snapshot = collect_facts(start_probes(python, quick="torch" not in topic.groups), topic.groups)
    else:
        try:
            snapshot = read_snapshot(path)
        except SnapshotError as error:
            complain(str(error))
            raise typer.Exit(2) from error
    plan = plan_for(snapshot)
    screen.write(Paragraph(StyledText(f"For {one_line(snapshot.host)}", "bold")))
    results = diagnose(snapshot, plan, [topic])
    screen.show_sections(result_sections(Examination(snapshot, plan, results), verbose=True))
    return any(result.findings for result in results)
