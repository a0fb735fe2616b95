"""`ddpdoctor lint --fix`: shows the changes as a diff, asks, writes them, and says what is left."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import typer

from ddpdoctor.api.script_fixing import FileFix, ScriptFixes, propose_script_fixes
from ddpdoctor.api.script_linting import STDIN, LintResult, lint
from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.base.text import listed, one_line
from ddpdoctor.cli.asking import ask
from ddpdoctor.report.document import Lines, Paragraph, placed_summary
from ddpdoctor.report.terminal import screen_for

_FOR_PEOPLE: Final = "which change is right only you can tell; its fix is above"


def refuse_options(paths: Sequence[str], *, fixing: bool, yes: bool, dry_run: bool, form: str) -> None:
    """Refuse options that contradict each other.

    Args:
        paths: that were named.
        fixing: with --fix.
        yes: with --yes.
        dry_run: with --dry-run.
        form: the option by which another form than a terminal's was asked for; "" for none.

    Raises:
        typer.BadParameter: they do.
    """
    if not fixing:
        if yes or dry_run:
            raise typer.BadParameter(f"{'--yes' if yes else '--dry-run'} goes with --fix")
        return
    if form:
        raise typer.BadParameter(f"--fix shows what it would write, and {form} has no place for that")
    if STDIN in paths:
        raise typer.BadParameter("--fix writes files; there is none where standard input is read")


def mend(
    result: LintResult,
    paths: Sequence[str],
    select: Sequence[str],
    ignore: Sequence[str],
    *,
    yes: bool,
    dry_run: bool,
    strict: bool,
) -> int:
    """Show the changes, ask for each file, write; returns the exit code.

    Args:
        result: of `lint` with the same arguments, already shown.
        paths: that it was given.
        select: only these checks.
        ignore: not these checks.
        yes: don't ask.
        dry_run: only show.
        strict: exit 1 for warnings, too.
    """
    fixes = propose_script_fixes(result, paths, select, ignore)
    screen = screen_for(sys.stdout)
    screen.write(*_left(fixes))
    if not fixes.files:
        words = (
            "No change to the scripts is certainly right here."
            if result.placed_findings
            else "In what was read there is nothing to fix."
            if result.unjudged
            else "There is nothing to fix."
        )
        screen.write(Paragraph(""), Paragraph(words))
        return result.exit_code(strict=strict)
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    written: list[FileFix] = []
    refused = False
    for fix in fixes.files:
        screen.write(Paragraph(""), Lines(tuple(fix.diff().split("\n"))))
        if dry_run or not (yes or can_ask):
            continue
        if not yes and not _says_yes(fix, written):
            continue
        if why := fix.write():
            refused = True
            screen.write(Paragraph(f"{one_line(fix.path)} was not written: {one_line(why)}"))
        else:
            written.append(fix)
    screen.write(Paragraph(""))
    if dry_run or written or refused or can_ask:
        return _end(result, written, paths, select, ignore, strict=strict, refused=refused)
    sys.stdout.flush()
    print(
        "Nothing was written: there is no terminal to ask on. To write these changes without being asked: "
        "ddpdoctor lint --fix --yes",
        file=sys.stderr,
    )
    return 2


def _left(fixes: ScriptFixes) -> list[Paragraph]:
    """Findings that are not mended, with the reason; those that have no edit at all only where nothing is mended."""
    return [
        Paragraph(f"Not changed by itself: {placed_summary(finding)}: {one_line(why or _FOR_PEOPLE)}")
        for (_, _, finding), why in fixes.left
        if why or not fixes.files
    ]


def _says_yes(fix: FileFix, written: Sequence[FileFix]) -> bool:
    sys.stdout.flush()
    try:
        return ask(f"Write {one_line(fix.path)}? [y/N] ").strip().lower() in ("y", "yes")
    except StoppedBySignal as stopped:
        stopped.text = f"Stopped. {_words(written)}"
        raise


def _words(written: Sequence[FileFix]) -> str:
    return f"Written: {listed(one_line(fix.path) for fix in written)}." if written else "Nothing was written."


def _end(
    result: LintResult,
    written: Sequence[FileFix],
    paths: Sequence[str],
    select: Sequence[str],
    ignore: Sequence[str],
    *,
    strict: bool,
    refused: bool,
) -> int:
    after = lint(paths, select=select, ignore=ignore) if written else result
    print(_words(written))
    if written:
        after.show(sys.stdout, quiet=True)
    return max(after.exit_code(strict=strict), 2 if refused else 0)
