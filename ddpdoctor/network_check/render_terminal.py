"""What netcheck found, for a person at a terminal: node 0 sees all, every other node its own part."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.text import Text

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import clip, listed, one_line, visible
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.network_check.protocol.messages import NodeVerdict
from ddpdoctor.network_check.render_matrix import show_matrix
from ddpdoctor.network_check.render_words import (
    COLUMNS,
    attempt_text,
    counts,
    finding_line,
    headline,
    met_at,
    names_of,
    node_rows,
    outcome,
    phase_text,
    phase_word,
    seconds_text,
    untested,
    warned_phases,
    who_came,
    who_listens,
)
from ddpdoctor.report.folding import Found, folded, idle_reasons, passed_everywhere, reasons
from ddpdoctor.report.section import Section
from ddpdoctor.report.summary import summary
from ddpdoctor.report.terminal import (
    STYLES,
    VERDICT_STYLES,
    Hanging,
    show_found,
    show_not_tested,
    verdict_line,
)

_WORD_STYLES = {"PASS": "bold green", "WARN": "bold yellow", "FAIL": "bold red", "NOT TESTED": "bold magenta"}
_WORD = re.compile(rf"(?:{'|'.join(_WORD_STYLES)}) +")
_FINDING = re.compile(r"(?P<word>FAIL|WARN) +(?P<summary>\S.*)  \[(?P<slug>[a-z0-9-]+)\]")
"""What `netcheck_words.finding_line` writes."""
_MARGIN = 10
_NARROW = 60
_WIDEST = 32
"""Columns of a table's cell."""


def show_verdict(
    console: Console,
    *,
    fleet: Fleet,
    examinations: Sequence[Examination],
    meeting: Meeting,
    matrix: bool = False,
    training: Section | None = None,
    verbose: bool = False,
    quiet: bool = False,
) -> None:
    """The whole, on node 0: the worst first, then who came, how far it went, and each finding with its node and its fix.

    examinations: one for each of the fleet's nodes, in its order. training: what their training came to. `quiet`: a line a
    finding and the verdict.
    """
    names = names_of(fleet, examinations)
    found = folded(examinations, names, verbose=verbose)
    if not quiet:
        _show_headline(console, *headline(fleet, examinations, training.done if training else ""))
        _show_head(console, fleet, meeting, training)
        _show_phases(console, fleet, warned_phases(examinations))
        _show_stages(console, training, examinations)
    if matrix:
        show_matrix(console, fleet)
    if quiet:
        _show_lines(console, found)
    else:
        show_found(console, found)
        idle = idle_reasons(examinations) if verbose else {}
        show_not_tested(console, reasons(examinations, names), idle, verbose=verbose)
    if verbose:
        _show_passed(console, passed_everywhere(examinations))
    _show_last(console, fleet, examinations, found)


def show_part(
    console: Console,
    part: NodeVerdict,
    *,
    examination: Examination,
    training: Section | None = None,
    verbose: bool = False,
    quiet: bool = False,
) -> None:
    """This node's part, on a node that isn't node 0.

    examination: this node's own, made of the part's results and of its Snapshot. training: what its own ranks came to.
    """
    own = examination.findings
    verdict = Verdict(part.verdict)
    host = one_line(examination.snapshot.host or "this node")
    if quiet:
        _show_lines(console, own)
        _show_found_elsewhere(console, part, told={finding_line(one) for one in own})
    else:
        if examination.verdict is Verdict.UNKNOWN:
            _show_headline(console, Verdict.UNKNOWN, f"No verdict on {host}: not a single check could be judged")
        elif examination.verdict is Verdict.OK:
            _show_headline(console, verdict, _nothing_here(verdict, host))
        _show_stages(console, training, [examination])
        _show_own(console, examination, verbose=verbose)
        _show_whole(console, part, told={finding_line(one) for one in own})
    word = Text().append(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict])
    console.print(Hanging(Text(""), word.append("is the verdict on all nodes; node 0 prints the whole.", "bold"), 0))


def _show_stages(console: Console, training: Section | None, examinations: Sequence[Examination]) -> None:
    """Ranks by stages, where there was a training."""
    if training is not None:
        training.show(
            console,
            {
                finding.rank
                for examination in examinations
                for _, _, finding in examination.findings
                if finding.rank is not None
            },
        )


def _nothing_here(verdict: Verdict, host: str) -> str:
    """What comes first on a node without a finding of its own; green only where all is well."""
    own = f"othing was found wrong with {host}"
    if verdict is Verdict.OK:
        return f"N{own}"
    where = "No verdict on the whole" if verdict is Verdict.UNKNOWN else "Found elsewhere, see below"
    return f"{where}; n{own} itself"


def _show_whole(console: Console, part: NodeVerdict, *, told: Collection[str]) -> None:
    """The lines of all nodes, but those that this node has just told with all that belongs to them."""
    lines = [line for line in part.lines if line not in told]
    if not lines:
        return
    console.print(Text("The whole, as node 0 sees it", "bold"))
    for line in map(one_line_kept, lines):
        word = _WORD.match(line)
        label = word[0] if word else ""
        style = _WORD_STYLES.get(label.rstrip(), "")
        console.print(Hanging(Text(label, style), Text(line[len(label) :]), len(label), indent=2))
    console.print()


def _show_found_elsewhere(console: Console, part: NodeVerdict, *, told: Collection[str]) -> None:
    """A line for each finding of the other nodes, and for what else is said of the whole; the phases are left out."""
    for line in (one_line_kept(one) for one in part.lines if one not in told):
        word = _WORD.match(line)
        finding = _FINDING.fullmatch(line)
        if finding:
            text = Text(f"{finding['word']:<6}", _WORD_STYLES[finding["word"]])
            console.print(text.append(f"{finding['slug']}: {finding['summary']}", "none"), soft_wrap=True)
        elif not word:
            console.print(Text(line), soft_wrap=True)


def show_alone(
    console: Console,
    *,
    examination: Examination,
    meeting: Meeting,
    problems: Sequence[str] = (),
    no_verdict: bool = False,
    verbose: bool = False,
    quiet: bool = False,
) -> None:
    """What one side can see: which addresses the master's name has, what dialling each came to, who listens there.

    problems: why there is no verdict on the whole. no_verdict: there is none, although something is wrong here.
    """
    own = examination.findings
    if meeting.nnodes is not None and not problems and examination.verdict is not Verdict.FAIL:
        problems = (f"{meeting.nnodes} nodes were to meet, and this one met none of them",)
    if quiet:
        _show_lines(console, own)
    else:
        _show_one_side(console, examination, meeting, problems, verbose=verbose)
    if problems and (no_verdict or examination.verdict is not Verdict.FAIL):
        word = Text().append("UNKNOWN  ", VERDICT_STYLES[Verdict.UNKNOWN])
        console.print(Hanging(Text(""), word.append(one_line("; ".join(problems)), "bold"), 0))
    else:
        console.print(Hanging(Text(""), verdict_line([examination]), 0))
    # Node 0 was asked where it let this node in, or is quoted.
    if not meeting.joined and not any("node 0 says: " in problem for problem in problems):
        console.print(
            Hanging(Text(""), Text("Only this side was looked at: no other node was asked.", "bold magenta"), 0)
        )


def _show_one_side(
    console: Console, examination: Examination, meeting: Meeting, problems: Sequence[str], *, verbose: bool
) -> None:
    """What is wrong comes first, with its fix; where nothing is, the one sentence that says how far it came."""
    if examination.verdict in (Verdict.FAIL, Verdict.WARN):
        show_found(console, examination.findings)
    elif problems:
        _show_headline(console, Verdict.UNKNOWN, problems[0])
    elif meeting.answered_by:
        _show_headline(console, examination.verdict, f"{_target(meeting)} answers: {one_line(who_listens(meeting))}")
    else:
        _show_headline(console, examination.verdict, f"{_target(meeting)} was looked at from this side only")
    _show_row(console, "host", dict(summary(examination)).get("host", ""))
    _show_row(console, "master", _target(meeting))
    label = "tried"
    for attempt in meeting.attempts:
        text = Text(f"{one_line(attempt.address)}  ").append(one_line(attempt_text(attempt)), "bold")
        console.print(Hanging(Text(label, "dim"), text, _MARGIN))
        label = ""
    if meeting.listen_error:
        _show_row(console, "listen", meeting.listen_error)
    if meeting.answered_by:
        _show_row(console, "there", who_listens(meeting))
    # Where nothing was found the first of them is the first line; what a finding has seen is said there.
    told = " ".join(evidence.text for _, _, finding in examination.findings for evidence in finding.evidence)
    for problem in problems if examination.verdict in (Verdict.FAIL, Verdict.WARN) else problems[1:]:
        if problem not in told:
            _show_row(console, "ended", problem)
    console.print()
    if examination.verdict not in (Verdict.FAIL, Verdict.WARN):
        show_found(console, examination.findings)
    _show_not_tested(console, examination, verbose=verbose)


def _show_own(console: Console, examination: Examination, *, verbose: bool) -> None:
    """One node's findings, and what could not be tested on it."""
    show_found(console, examination.findings)
    _show_not_tested(console, examination, verbose=verbose)


def _show_not_tested(console: Console, examination: Examination, *, verbose: bool) -> None:
    idle = idle_reasons([examination]) if verbose else {}
    show_not_tested(console, reasons([examination], [""]), idle, verbose=verbose)


def one_line_kept(line: str) -> str:
    """Harmless and on one line, with the columns as they were."""
    return visible(line).replace("\n", " ").replace("\t", " ").rstrip()


def _target(meeting: Meeting) -> str:
    return one_line(f"{meeting.master}, port {meeting.port}")


def _show_headline(console: Console, verdict: Verdict, text: str) -> None:
    word = verdict.value.upper()
    console.print(Hanging(Text(word, VERDICT_STYLES[verdict]), Text(one_line(text), "bold"), max(6, len(word) + 2)))
    console.print()


def _show_head(console: Console, fleet: Fleet, meeting: Meeting, training: Section | None) -> None:
    _show_row(console, "master", met_at(meeting, fleet))
    _show_row(console, f"{fleet.seat}s", who_came(fleet, meeting))
    rows, rest = node_rows(fleet)
    if rows:
        _show_table(console, rows)
    if rest:
        console.print(Hanging(Text(""), Text(one_line(rest)), _MARGIN))
    for label, text in training.rows if training else ():
        _show_row(console, label, text)
    if fleet.strangers:
        _show_row(console, "refused", listed(fleet.strangers, most=4))
    console.print()


def _show_row(console: Console, label: str, text: str) -> None:
    console.print(Hanging(Text(label, "dim"), Text(one_line(text)), _MARGIN))


def _show_table(console: Console, rows: Sequence[tuple[str, ...]]) -> None:
    """The columns that fit, from the left; the last cell, what is odd with the row, always."""
    cells = [COLUMNS, *[tuple(clip(visible(cell), _WIDEST) for cell in row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    odd = max((len(row[-1]) for row in cells[1:]), default=0)
    room = console.width - _MARGIN - (min(odd, 16) + 2 if odd else 0)
    shown = len(widths)
    while shown > 2 and sum(widths[:shown]) + 2 * (shown - 1) > room:
        shown -= 1
    for number, row in enumerate(cells):
        line = "  ".join(f"{row[column]:<{widths[column]}}" for column in range(shown))
        text = Text(line, "" if number else "dim")
        if number and row[-1]:
            text.append(f"  {row[-1]}", "bold red")
        text.rstrip()
        text.truncate(max(20, console.width - _MARGIN), overflow="ellipsis")
        console.print(Text(" " * _MARGIN).append_text(text), soft_wrap=True)


def _show_phases(console: Console, fleet: Fleet, warned: Collection[str]) -> None:
    narrow = console.width < _NARROW
    for phase in fleet.phases:
        word = Text(f"  {phase_word(phase, warned):<12}", _WORD_STYLES[phase_word(phase, warned)])
        name = f"{phase.name:<9}{seconds_text(phase):>7}  "
        text = Text(one_line(phase_text(phase, fleet)))
        if not text:
            console.print(word.append(name.rstrip(), "none"))
        elif narrow:
            console.print(Hanging(word, Text(name).append_text(text), len(word)))
        else:
            console.print(Hanging(word.append(name, "none"), text, len(word)))
    if fleet.phases:
        console.print()


def _show_passed(console: Console, slugs: Sequence[str]) -> None:
    if slugs:
        console.print(Text(f"Passed on every node ({len(slugs)})", "bold green"))
        console.print(Hanging(Text(""), Text(", ".join(slugs)), 2))
        console.print()


def _show_lines(console: Console, found: Sequence[Found]) -> None:
    for check, severity, finding in found:
        line = Text().append(f"{severity.value.upper():<6}", STYLES[severity])
        console.print(line.append(f"{check.slug}: {one_line(finding.summary)}"), soft_wrap=True)


def _show_last(console: Console, fleet: Fleet, examinations: Sequence[Examination], found: Sequence[Found]) -> None:
    verdict, _ = headline(fleet, examinations)
    line = Text().append(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict])
    line.append(f"{one_line(outcome(fleet, examinations))}.", "bold").append(f" {counts(fleet, examinations)}")
    for text in untested(fleet):
        style = _WORD_STYLES["FAIL" if text.startswith("failed") else "NOT TESTED"]
        line.append(f"\n{text[0].upper()}{text[1:]}.", style)
    worst = next(iter(found), None)
    if worst and worst[1] is not Severity.INFO:
        line.append(f"\nMore on the first: ddpdoctor explain {worst[0].slug}", "dim")
    console.print(Hanging(Text(""), line, 0))
