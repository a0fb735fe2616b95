"""`ddpdoctor explain SLUG`: what breaks, why, the fix, how it shows itself; for some topics worked out for this host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.base.error_lines import complain
from ddpdoctor.cli.probing import begin
from ddpdoctor.probes.session import collect_facts

if TYPE_CHECKING:
    from rich.console import Console

    from ddpdoctor.engine.registry import Check


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
    from ddpdoctor.report.terminal import make_console

    console = make_console(sys.stdout)
    name = as_written(slug)
    topic = next((prescription for prescription in all_prescriptions() if prescription.slug == name), None)
    page = next((check for check in all_checks() if check.slug == name), None)
    family = [check for check in all_checks() if check.family == name]
    if topic is not None:
        prescribed = _prescribe(console, topic, python, snapshot)
        console.print()
        _show_page(console, topic)
        if not prescribed:
            print(
                f"Nothing could be worked out for {topic.slug} here: name the Python that training runs in with "
                f"`ddpdoctor explain {topic.slug} --python PATH`, and see `ddpdoctor check`.",
                file=sys.stderr,
            )
            raise typer.Exit(2)
    elif page is not None:
        _show_page(console, page)
    elif family:
        for one in family:
            _show_page(console, one)
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


def _show_page(console: Console, one: Check) -> None:
    from rich.markdown import Markdown
    from rich.text import Text

    from ddpdoctor.logs.render_signs import show_signs

    console.print(Text(one.slug, "bold").append(f"  ({one.family}, {one.severity.value})", "dim not bold"))
    console.print(Markdown(one.page))
    show_signs(console, one.log_signs)
    if one.catalogue.get(one.slug):
        console.print(Text(f"With an example, in ddpdoctor's repository: {one.docs}", "dim"))
    console.print()


def _prescribe(console: Console, topic: Check, python: str | None, path: Path | None) -> bool:
    """Shows what is worked out for the host. False: nothing was, and why is shown."""
    from rich.text import Text

    from ddpdoctor.base.text import one_line
    from ddpdoctor.engine.examination import Examination
    from ddpdoctor.engine.planning import plan_for
    from ddpdoctor.engine.registry import diagnose
    from ddpdoctor.engine.snapshots import SnapshotError, read_snapshot
    from ddpdoctor.report.terminal import show_findings

    if path is None:
        snapshot = collect_facts(begin(python, quick="torch" not in topic.groups), topic.groups)
    else:
        try:
            snapshot = read_snapshot(path)
        except SnapshotError as error:
            complain(str(error))
            raise typer.Exit(2) from error
    plan = plan_for(snapshot)
    console.print(Text(f"For {one_line(snapshot.host)}", "bold"))
    results = diagnose(snapshot, plan, [topic])
    show_findings(console, Examination(snapshot, plan, results), verbose=True)
    return any(result.findings for result in results)
