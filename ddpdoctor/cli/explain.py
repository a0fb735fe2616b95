"""`ddpdoctor explain SLUG`: what breaks, why, the fix, how it shows itself; for some topics worked out for this host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.cli.output import refusals

if TYPE_CHECKING:
    from ddpdoctor.api.check_pages import CheckPage
    from ddpdoctor.report.terminal import Screen


def explain(
    slug: Annotated[str, typer.Argument(help="A check from `ddpdoctor list`, a family, or a topic such as apex.")],
    python: Annotated[str | None, typer.Option(help="For topics: the Python in which training runs.")] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="For topics: work it out for this saved snapshot, not this host.")
    ] = None,
) -> None:
    """Explain a check: what breaks, why, the fix, how it shows itself.

    `ddpdoctor explain apex` looks at this host and gives the exact build command for it.
    """
    from ddpdoctor.api.check_pages import find_pages, work_out
    from ddpdoctor.report.document import Paragraph, StyledText
    from ddpdoctor.report.terminal import screen_for

    screen = screen_for(sys.stdout)
    with refusals():
        pages = find_pages(slug)
        topic = pages[0].topic
        worked_out = work_out(topic, python, snapshot) if topic else None
    if worked_out:
        screen.write(Paragraph(StyledText(f"For {worked_out.host}", "bold")))
        screen.show_sections(worked_out.sections)
        print()
    for page in pages:
        _show_page(screen, page)
    if topic and worked_out and worked_out.is_empty:
        print(
            f"Nothing could be worked out for {topic.slug} here: name the Python that training runs in with "
            f"`ddpdoctor explain {topic.slug} --python PATH`, and see `ddpdoctor check`.",
            file=sys.stderr,
        )
        raise typer.Exit(2)


def _show_page(screen: Screen, page: CheckPage) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from ddpdoctor.report.document import Paragraph, StyledText

    # With a height, rich asks no further: on a terminal that calls itself dumb it would take 80 columns, whatever COLUMNS says.
    pages = Console(file=sys.stdout, height=25, markup=False, emoji=False, highlight=False)
    screen.write(Paragraph(page.heading))
    pages.print(Markdown(page.text))
    if page.signs:
        screen.write(Paragraph(""))
        pages.print(Markdown("## How it shows itself in a log"))
        screen.write(*page.signs)
    if page.docs:
        screen.write(Paragraph(StyledText(f"With an example, in ddpdoctor's repository: {page.docs}", "dim")))
    screen.write(Paragraph(""))
