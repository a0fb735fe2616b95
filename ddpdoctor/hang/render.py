"""`jobs --hang` for a person at a terminal: the verdict, who stands where, what is wrong and why, what could not be seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import one_line, visible
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import SkipReason
from ddpdoctor.facts.hang import Frame
from ddpdoctor.hang.judging import hang_of
from ddpdoctor.hang.render_words import Group, advice, groups, headline, outcome, rows
from ddpdoctor.knowledge.stack_places import pythons, torchs
from ddpdoctor.report.terminal import STYLES, VERDICT_STYLES, Hanging, show_found, show_not_tested

MARGIN: Final = 10
COMMAND: Final = re.compile(r": ((?:sudo|docker) .*|/\S+ -m pip .*)$", re.DOTALL)
"""At the end of a sentence on what could not be seen."""


def show_where_it_hangs(
    console: Console, examination: Examination, *, verbose: bool = False, quiet: bool = False
) -> None:
    """Prints the report. `quiet`: a line a finding and the verdict; `verbose`: also whole stacks, and what was not tested."""
    if quiet:
        for check, severity, finding in examination.findings:
            line = Text().append(f"{severity.value.upper():<6}", STYLES[severity])
            console.print(line.append(f"{check.slug}: {one_line(finding.summary)}"), soft_wrap=True)
    else:
        _show_head(console, examination)
        _show_groups(console, groups(examination), verbose=verbose)
        show_found(console, examination.findings)
        _show_hidden(console, hang_of(examination).hidden)
        _show_not_tested(console, examination, verbose=verbose)
    _show_last(console, examination)


def _show_head(console: Console, examination: Examination) -> None:
    verdict = examination.verdict
    word = verdict.value.upper()
    console.print(
        Hanging(
            Text(word, VERDICT_STYLES[verdict]), Text(one_line(headline(examination)), "bold"), max(6, len(word) + 2)
        )
    )
    console.print()
    for label, text in rows(examination):
        console.print(Hanging(Text(label, "dim"), Text(text), MARGIN))
    console.print()


def _show_groups(console: Console, found: Sequence[Group], *, verbose: bool) -> None:
    for group in found:
        console.print(Hanging(Text(group.ranks, "bold"), Text(group.words, "bold"), len(group.ranks) + 1, indent=2))
        for detail in group.details:
            console.print(Hanging(Text(), Text(detail, "dim"), 6))
        if verbose:
            _show_stack(console, group.frames)
    if found:
        console.print()


def _show_stack(console: Console, frames: Sequence[Frame]) -> None:
    """A line a call, the innermost first; those of torch and Python in grey."""
    for frame in frames:
        style = "dim" if torchs(frame) or pythons(frame) else ""
        console.print(
            Text(f"        {visible(frame.function)} ({visible(frame.path)}:{frame.line})", style), soft_wrap=True
        )


def _show_hidden(console: Console, hidden: Sequence[str]) -> None:
    if not hidden:
        return
    console.print(Text("Could not be seen", "bold magenta"))
    for sentence in hidden:
        command = COMMAND.search(sentence)
        text = sentence[: command.start() + 1] if command else sentence
        console.print(Hanging(Text(), Text(one_line(text)), 2))
        if command:
            console.print(Text(f"      {visible(command[1])}", "cyan"), soft_wrap=True)
    console.print()


def _show_not_tested(console: Console, examination: Examination, *, verbose: bool) -> None:
    reasons: dict[SkipReason, dict[str, list[str]]] = {why: {} for why in SkipReason}
    for result in examination.results:
        if result.not_tested is not None:
            reasons[result.not_tested.why].setdefault(result.not_tested.reason, []).append(result.check.slug)
    said = hang_of(examination).hidden
    unknown = {
        reason: slugs
        for reason, slugs in (reasons[SkipReason.CRASHED] | reasons[SkipReason.UNKNOWN]).items()
        if reason not in said
    }
    show_not_tested(console, unknown, reasons[SkipReason.NOT_APPLICABLE] if verbose else {}, verbose=verbose)


def _show_last(console: Console, examination: Examination) -> None:
    verdict = examination.verdict
    line = Text().append(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict])
    line.append(f"{one_line(outcome(examination))}.", "bold")
    found = examination.findings
    if found and found[0][1] is not Severity.INFO:
        line.append(f"\nMore on the first: ddpdoctor explain {found[0][0].slug}", "dim")
    console.print(Hanging(Text(), line, 0))
    if more := advice(examination):
        console.print(Hanging(Text(), Text(one_line(more), "dim"), 0))
