"""`ddpdoctor zombies`: what earlier runs left behind, and, with --kill, the end of what is proven to be that."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ddpdoctor.api.results import TEXT_WIDTH
from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.cli.asking import ask
from ddpdoctor.cli.output import MarkdownOption, refuse_two_forms

if TYPE_CHECKING:
    from ddpdoctor.processes.leftovers.ending import Endings, LeftoverLook
    from ddpdoctor.processes.leftovers.leftover import Leftover


def zombies(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PID|SEGMENT]...",
            help="Only these: pids, or paths in /dev/shm. Default: all that is left over.",
            show_default=False,
        ),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="End what is proven to be left over, and yours. Shown first, then asked for.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --kill: don't ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --kill: show what would be ended, and end nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
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
    refuse_two_forms(as_json=as_json, as_markdown=as_markdown)
    form = "--json" if as_json else "--markdown" if as_markdown else ""
    _refuse(targets or (), kill=kill, yes=yes, dry_run=dry_run, form=form)
    from ddpdoctor.cli.fix_check_options import not_ours

    if kill and not dry_run and (silent := not_ours(os.environ)):
        typer.echo(silent, err=True)
        raise typer.Exit(0)
    raise typer.Exit(_zombies(tuple(targets or ()), kill=kill, yes=yes, dry_run=dry_run, form=form))


def _refuse(targets: Sequence[str], *, kill: bool, yes: bool, dry_run: bool, form: str) -> None:
    if not kill and (yes or dry_run):
        raise typer.BadParameter(f"{'--yes' if yes else '--dry-run'} goes with --kill")
    if form and kill and not yes and not dry_run:
        raise typer.BadParameter(f"--kill {form} can't ask: add --yes, or --dry-run to see what would be done")
    wrong = [target for target in targets if not target.isdecimal() and not target.startswith("/dev/shm/")]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is neither a pid nor a path in /dev/shm")


def _zombies(targets: tuple[str, ...], *, kill: bool, yes: bool, dry_run: bool, form: str) -> int:
    """The exit code. form: the option that asks for another form of the report than a terminal's."""
    from ddpdoctor.base.unknown import Unknown
    from ddpdoctor.fixes.leftovers import chosen
    from ddpdoctor.processes.leftovers.all_kinds import blind_spots

    first = _look("Looking for leftovers")
    found = chosen(first.leftovers, targets)
    spots = blind_spots(first.processes, first.gpus, first.shared_memory)
    problems = _problems(targets, found, first)
    unseen = isinstance(first.processes, Unknown)
    if not form:
        _show(found, spots, problems, killing=kill)
    proven = [leftover for leftover in found if leftover.proven]
    ending = None
    code = 1 if found else 2 if unseen or problems else 0
    if kill and proven:
        if not form:
            _show_plan(proven)
        if dry_run:
            _say("Nothing was ended: it was a dry run.", at_terminal=not form)
        elif _may(yes=yes):
            ending = _end(proven, first)
            left = [leftover for leftover in found if leftover not in {done.leftover for done in ending.done}]
            gone = [leftover_ending.leftover for leftover_ending in ending.all if leftover_ending.fate.value == "gone"]
            code = 1 if [leftover for leftover in left if leftover not in gone] else 0
            if not form:
                _show_endings(ending)
    elif kill and found:
        _say("Nothing was ended: nothing of it is proven to be left over, and yours.", at_terminal=not form)
    if form:
        _print(found, spots, problems, ending, code, form)
    return code


def _look(what: str) -> LeftoverLook:
    from ddpdoctor.base.status_line import StatusLine
    from ddpdoctor.fixes.leftovers import look

    line = StatusLine(lambda seconds: f"{what} ({seconds:.0f} s)", 0.3)
    try:
        return look()
    finally:
        line.close()


def _problems(targets: Sequence[str], found: Sequence[Leftover], first: LeftoverLook) -> list[str]:
    """What was asked for and isn't left over, and why."""
    from ddpdoctor.base.unknown import Unknown

    processes = first.processes
    if isinstance(processes, Unknown):
        return [f"The processes could not be seen: {processes.reason}"]
    named = {str(leftover.pid) for leftover in found if leftover.pid} | {leftover.path for leftover in found}
    there = {str(process.pid) for process in processes.listed}
    told = {True: "it is not left over, as far as can be seen", False: "no job's process has that pid"}
    return [
        f"{target}: {told[target in there] if target.isdecimal() else 'no segment that nobody uses'}; nothing was done to it"
        for target in targets
        if target not in named
    ]


def _may(*, yes: bool) -> bool:
    """Whether they may be ended. Without anybody to ask, nothing is."""
    if yes:
        return True
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


def _end(proven: Sequence[Leftover], first: LeftoverLook) -> Endings:
    from ddpdoctor.base.status_line import StatusLine
    from ddpdoctor.fixes.leftovers import look
    from ddpdoctor.processes.leftovers.ending import Endings, end

    ending = Endings()
    line = StatusLine(lambda seconds: f"Looking a second time, then ending them ({seconds:.0f} s)", 0.3)
    try:
        end(proven, first, look, ending)
    except StoppedBySignal as stopped:
        said = ending.said()
        stopped.text = f"Stopped. By then {said}." if said else "Stopped. Nothing was ended."
        raise
    finally:
        line.close()
    return ending


def _show(found: Sequence[Leftover], spots: Sequence[str], problems: Sequence[str], *, killing: bool) -> None:
    from ddpdoctor.base.text import one_line
    from ddpdoctor.processes.zombies_terminal import show_leftovers
    from ddpdoctor.report.screen import screen_for

    screen = screen_for(sys.stdout, os.environ)
    for problem in problems:
        screen.labelled("", one_line(problem), 0, style="yellow")
    show_leftovers(screen, found, spots, killing=killing)


def _show_plan(proven: Sequence[Leftover]) -> None:
    from ddpdoctor.processes.zombies_terminal import show_plan
    from ddpdoctor.report.screen import screen_for

    show_plan(screen_for(sys.stdout, os.environ), proven)


def _show_endings(ending: Endings) -> None:
    from ddpdoctor.processes.zombies_terminal import show_endings
    from ddpdoctor.report.screen import screen_for

    show_endings(screen_for(sys.stdout, os.environ), ending)


def _say(text: str, *, at_terminal: bool) -> None:
    print(text, file=sys.stdout if at_terminal else sys.stderr)


def _print(
    found: Sequence[Leftover],
    spots: Sequence[str],
    problems: Sequence[str],
    ending: Endings | None,
    code: int,
    form: str,
) -> None:
    from ddpdoctor.checks.catalogue import catalogue
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.engine.registry import Catalogue
    from ddpdoctor.processes.zombies_json import zombies_report
    from ddpdoctor.report.contract import to_json

    verdict = {0: Verdict.OK, 1: Verdict.FAIL, 2: Verdict.UNKNOWN}[code]
    checks = catalogue() if found else Catalogue()
    report = zombies_report(found, spots, problems, ending, verdict, checks)
    if form == "--json":
        print(to_json(report))
        return
    from ddpdoctor.processes.zombies_terminal import show_endings, show_leftovers
    from ddpdoctor.report.markdown import report_to_markdown
    from ddpdoctor.report.screen import Screen

    text = io.StringIO()
    screen = Screen(text, TEXT_WIDTH, colour=False)
    show_leftovers(screen, found, spots, killing=False)
    if ending:
        show_endings(screen, ending)
    print(report_to_markdown(report, text.getvalue(), ()), end="")
