"""What a smoke training came to, for a person at a terminal: the verdict, how far each rank came, what is wrong and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.text import Text

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import human, one_line, plural
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Result, SkipReason
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.report.terminal import STYLES, VERDICT_STYLES, Hanging, show_found, show_not_tested
from ddpdoctor.smoke_training.analysis.verdict import (
    Found,
    host_findings,
    host_results,
    own_findings,
    own_results,
    smoke_of,
    verdict_of,
)
from ddpdoctor.smoke_training.render_marks import MEANINGS, Mark, RanksColumn, columns, symbol
from ddpdoctor.smoke_training.render_marks import STYLES as MARK_STYLES
from ddpdoctor.smoke_training.render_scaling import show_scaling
from ddpdoctor.smoke_training.render_words import (
    accounts,
    counts,
    culprits,
    ending_text,
    head,
    headline,
    marks,
    not_run,
    not_run_text,
    not_tested,
    note,
    outcome,
    shown_stages,
    slowest,
)

_MARGIN = 9
_TIME = 9
_MOST_ACCOUNTS = 4
_LEAST_NOTE = 18
"""Columns; a note that has fewer goes below its row."""


def show_smoke(console: Console, examination: Examination, *, verbose: bool = False, quiet: bool = False) -> None:
    """Prints the report. `quiet`: a line a finding and the verdict; `verbose`: also each rank, and what passed, by name."""
    facts = smoke_of(examination)
    own, host = own_findings(examination), host_findings(examination)
    if quiet:
        _show_lines(console, [*own, *host])
    else:
        _show_headline(console, examination)
        for label, text in head(examination):
            _show_row(console, label, text)
        console.print()
        if shown_stages(facts):
            show_stages(console, facts, culprits(facts))
        if verbose:
            _show_ranks(console, facts)
        show_scaling(console, facts, examination.snapshot)
        show_found(console, own)
        if verbose or not own:
            _show_accounts(console, facts, culprits(facts))
        if host_results(examination):
            _show_host(console, examination, host)
        _show_not_tested(console, examination, verbose=verbose)
    _show_last(console, examination, [*own, *host])


def _show_headline(console: Console, examination: Examination) -> None:
    verdict = verdict_of(examination)
    word = verdict.value.upper()
    text = Text(one_line(headline(examination)), "bold")
    console.print(Hanging(Text(word, VERDICT_STYLES[verdict]), text, max(6, len(word) + 2)))
    console.print()


def _show_row(console: Console, label: str, text: str) -> None:
    console.print(Hanging(Text(label, "dim"), Text(one_line(text)), _MARGIN))


# --- ranks by stages --------------------------------------------------------------------------------------------------------


def show_stages(console: Console, facts: Smoke, blamed: Collection[int]) -> None:
    """The table: a row a stage that was begun, a column a rank, or several that fared alike."""
    names = shown_stages(facts)
    by_rank = marks(facts, blamed)
    fates = {rank: tuple(of.get(name, Mark.NOT_RUN) for name in names) for rank, of in by_rank.items()}
    width = max(len(one_line(name)) for name in names)
    table = columns(fates, max(8, console.width - 2 - width - 2))
    grid = sum(len(ranks_column.label) + 1 for ranks_column in table) - 1
    room = console.width - (2 + width + 2 + grid)
    timed = room >= _TIME
    head_line = Text(f"  {'rank':>{width}}  " + " ".join(ranks_column.label for ranks_column in table), "dim")
    console.print(head_line.append("  slowest" if timed else ""), soft_wrap=True)
    for place, name in enumerate(names):
        line = Text(f"  {one_line(name):<{width}}  ").append_text(_cells(console, table, place))
        failed = not all(ranks_column.marks[place] in (Mark.PASSED, Mark.NOT_TESTED) for ranks_column in table)
        if timed:
            line.append(f"{slowest(facts, name):>{_TIME}}")
        _show_stage(console, line, note(facts, name, blamed), failed=failed)
    _show_legend(console, table, not_run(facts))
    console.print()


def _cells(console: Console, table: Sequence[RanksColumn], place: int) -> Text:
    text = Text()
    for number, one in enumerate(table):
        mark = one.marks[place]
        text.append(" " if number else "")
        text.append(f"{symbol(mark, console.encoding):<{len(one.label)}}", MARK_STYLES[mark])
    return text


def _show_stage(console: Console, line: Text, words: str, *, failed: bool) -> None:
    style = "bold red" if failed else "dim"
    if not words:
        line.rstrip()
        console.print(line, soft_wrap=True)
    elif console.width - len(line) - 2 >= _LEAST_NOTE:
        console.print(Hanging(line, Text(words, style), len(line) + 2))
    else:
        line.rstrip()
        console.print(line, soft_wrap=True)
        if failed:
            console.print(Hanging(Text(""), Text(words, style), 4))


def _show_legend(console: Console, table: Sequence[RanksColumn], missed: Sequence[str]) -> None:
    there = {mark for ranks_column in table for mark in ranks_column.marks}
    if missed:
        console.print(Hanging(Text("not run", "dim"), Text(not_run_text(missed), "dim"), _MARGIN, indent=2))
    if there - {Mark.PASSED}:
        text = Text()
        for mark, meaning in MEANINGS.items():
            if mark in there:
                text.append("   " if text else "").append(symbol(mark, console.encoding), MARK_STYLES[mark])
                text.append(f" {meaning}", "dim")
        console.print(Hanging(Text(""), text, 2))


def _show_ranks(console: Console, facts: Smoke) -> None:
    """Each rank in a line, for -v."""
    blamed = culprits(facts)
    for rank in facts.ranks:
        where = f"{one_line(rank.host)} pid {rank.pid}" if rank.pid else one_line(rank.host)
        memory = f", at most {human(rank.memory)}" if rank.memory else ""
        text = f"{where}, {one_line(rank.device)}{memory}: {ending_text(rank, blamed)}"
        console.print(Hanging(Text(f"rank {rank.rank}", "dim"), Text(text), _MARGIN))
    if facts.ranks:
        console.print()


def _show_accounts(console: Console, facts: Smoke, blamed: Collection[int]) -> None:
    """What the ranks that failed or hung have to say, the first of each kind: what no finding tells is told here."""
    for ranks, lines in accounts(facts, blamed)[:_MOST_ACCOUNTS]:
        console.print(Text(ranks, "bold"), soft_wrap=True)
        for line in lines:
            console.print(Hanging(Text(""), Text(line), 2))
        console.print()
    if facts.problem:
        _show_row(console, "engine", facts.problem)
        console.print()


# --- what was found ---------------------------------------------------------------------------------------------------------


def _show_host(console: Console, examination: Examination, found: Sequence[Found]) -> None:
    """What else is wrong on this host, which may be the cause."""
    results = host_results(examination)
    console.print(Text("What `ddpdoctor check` finds on this host", "bold"))
    if found:
        console.print()
        show_found(console, found)
    else:
        _show_nothing(console, results)


def _show_nothing(console: Console, results: Sequence[Result]) -> None:
    done = sum(result.passed for result in results)
    unknown = sum(
        result.not_tested is not None and result.not_tested.why is not SkipReason.NOT_APPLICABLE for result in results
    )
    rest = f", {unknown} could not be tested" if unknown else ""
    console.print(Hanging(Text(""), Text(f"Nothing that would explain it: {plural(done, 'check')} passed{rest}."), 2))
    console.print()


def show_untested(console: Console, facts: Smoke) -> None:
    """The stages that can't be run here, by reason."""
    stages = not_tested(facts)
    if not stages:
        return
    console.print(Text("Not tested here", "bold magenta"))
    for reason, names in stages.items():
        console.print(Hanging(Text(""), Text(f"{', '.join(names)}: ").append(reason, "dim"), 2))
    console.print()


def _show_not_tested(console: Console, examination: Examination, *, verbose: bool) -> None:
    show_untested(console, smoke_of(examination))
    results = [*own_results(examination), *(host_results(examination) if verbose else ())]
    reasons: dict[SkipReason, dict[str, list[str]]] = {why: {} for why in SkipReason}
    for result in results:
        if result.not_tested is not None:
            reasons[result.not_tested.why].setdefault(result.not_tested.reason, []).append(result.check.slug)
    unknown = reasons[SkipReason.CRASHED] | reasons[SkipReason.UNKNOWN]
    show_not_tested(console, unknown, reasons[SkipReason.NOT_APPLICABLE] if verbose else {}, verbose=verbose)
    if verbose and examination.passed:
        console.print(Text(f"Passed ({len(examination.passed)})", "bold green"))
        console.print(Hanging(Text(""), Text(", ".join(examination.passed)), 2))
        console.print()


def _show_lines(console: Console, found: Sequence[Found]) -> None:
    for check, severity, finding in found:
        line = Text().append(f"{severity.value.upper():<6}", STYLES[severity])
        console.print(line.append(f"{check.slug}: {one_line(finding.summary)}"), soft_wrap=True)


def _show_last(console: Console, examination: Examination, found: Sequence[Found]) -> None:
    verdict = verdict_of(examination)
    line = Text().append(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict])
    line.append(f"{one_line(outcome(examination))}.", "bold")
    if counted := counts(smoke_of(examination)):
        line.append(f" {counted}")
    if found and found[0][1] is not Severity.INFO and verdict is not Verdict.OK:
        line.append(f"\nMore on the first: ddpdoctor explain {found[0][0].slug}", "dim")
    console.print(Hanging(Text(""), line, 0))
