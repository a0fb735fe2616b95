"""`ddpdoctor zombies`: what earlier runs left behind, and, with --kill, the end of what is proven to be that."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.cli.asking import ask
from ddpdoctor.cli.options import JsonAloneOption, MarkdownOption
from ddpdoctor.cli.output import ReportForm

if TYPE_CHECKING:
    from ddpdoctor.api.leftovers import ZombiesResult


def zombies(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PID|SEGMENT]...",
            help="Only these: pids, or paths in /dev/shm. Default: all that is left over.",
        ),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="End what is proven to be left over, and yours. Shown first, then asked for.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --kill: don't ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --kill: show what would be ended, and end nothing.")
    ] = False,
    as_json: JsonAloneOption = False,
    as_markdown: MarkdownOption = False,
) -> None:
    """Show what earlier runs left behind: orphaned ranks and DataLoader workers, GPU memory, ports, shared memory.

    With --kill it ends only what is proven to be left over and is yours: it is
    looked at twice, some seconds apart, and must have done nothing. What still
    works, what belongs to others, and what is in doubt is shown with the
    reason, and left alone.

    Exit code: 0 nothing is left over, 1 something is, 2 wrong usage, or the
    processes could not be seen.
    """
    form = ReportForm(as_json=as_json, as_markdown=as_markdown)
    if not kill and (yes or dry_run):
        raise typer.BadParameter(f"{'--yes' if yes else '--dry-run'} goes with --kill")
    if form.option and kill and not yes and not dry_run:
        raise typer.BadParameter(f"--kill {form.option} can't ask: add --yes, or --dry-run to see what would be done")
    from ddpdoctor.api import errors, leftovers
    from ddpdoctor.report.document import Paragraph
    from ddpdoctor.report.terminal import screen_for

    def confirm(result: ZombiesResult) -> bool:
        if not form.option:
            screen_for(sys.stdout).show_sections(result.plan())
        if dry_run:
            print("Nothing was ended: it was a dry run.", file=sys.stderr if form.option else sys.stdout)
        return not dry_run and (yes or _may())

    with form.refusals():
        if kill and not dry_run:
            errors.refuse_other_ranks("zombies", os.environ)
        result = leftovers.zombies(targets or (), kill=kill, confirm=confirm)
    if form.option:
        form.print(result)
    elif not (kill and result.proven):
        result.show(sys.stdout)
    elif result.endings is not None:
        screen = screen_for(sys.stdout)
        screen.write(Paragraph(""))
        screen.show_sections([result.outcome()])
    if kill and result.leftovers and not result.proven:
        words = "Nothing was ended: nothing of it is proven to be left over, and yours."
        print(words, file=sys.stderr if form.option else sys.stdout)
    raise typer.Exit(result.exit_code())


def _may() -> bool:
    """Whether they may be ended. Without anybody to ask, nothing is."""
    sys.stdout.flush()
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        print(
            "Nothing was ended: there is no terminal to ask on. To end them without being asked: "
            "ddpdoctor zombies --kill --yes",
            file=sys.stderr,
        )
        return False
    if ask("End them? [y/N] ").strip().lower() in ("y", "yes"):
        return True
    print("Nothing was ended.", file=sys.stderr)
    return False
