"""The report of netcheck: node 0 sees all, every other node its own part, and a node that meets nobody one side."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ddpdoctor.base.text import capital, clip, listed, one_line, visible
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.network_check.analysis.verdicts import not_met
from ddpdoctor.network_check.protocol.messages import NodeVerdict
from ddpdoctor.network_check.render_matrix import matrix_sections
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
from ddpdoctor.report.check_results import (
    finding_lines,
    finding_sections,
    idle_reasons,
    more_on,
    not_tested_sections,
    passed_section,
    unknown_reasons,
)
from ddpdoctor.report.document import (
    Block,
    Column,
    Document,
    Fitted,
    LabelledRows,
    Paragraph,
    Row,
    Section,
    StyledText,
    Table,
    Words,
    verdict_span,
)
from ddpdoctor.report.examined_hosts import check_verdict
from ddpdoctor.report.merged_findings import folded, idle_everywhere, passed_everywhere, reasons
from ddpdoctor.report.summary import summary

if TYPE_CHECKING:
    from ddpdoctor.network_check.results import RunResult

_WORD_STYLES = {"PASS": "bold green", "WARN": "bold yellow", "FAIL": "bold red", "NOT TESTED": "bold magenta"}
_WORD = re.compile(rf"(?:{'|'.join(_WORD_STYLES)}) +")
_FINDING = re.compile(r"(?P<word>FAIL|WARN) +(?P<summary>\S.*)  \[(?P<slug>[a-z0-9-]+)\]")
"""Lines that `render_words.finding_line` writes."""
MARGIN = 10
"""Columns for the labels of who was looked at."""
NARROW_COLUMNS = 60
MAX_CELL_COLUMNS = 32
"""Columns of a table's cell."""


def document(
    run: RunResult,
    *,
    training: Document | None = None,
    matrix: bool = False,
    verbose: bool = False,
    quiet: bool = False,
) -> Document:
    """Build the report of a run: on node 0 of the whole, on another node of its own part, else of this side alone.

    Args:
        run: how it ended on this node.
        training: what its training came to, on node 0 that of all nodes.
        matrix: on node 0, with latency and bandwidth between all pairs.
        verbose: also what passed and had nothing to test, by name.
        quiet: a line a finding, and the verdict.
    """
    if run.fleet is not None:
        return _fleet_document(run, run.fleet, training, matrix=matrix, verbose=verbose, quiet=quiet)
    if run.part is not None:
        return _part_document(run.part, run.examinations[0], training, verbose=verbose, quiet=quiet)
    return _alone_document(run, verbose=verbose, quiet=quiet)


def _fleet_document(
    run: RunResult, fleet: Fleet, training: Document | None, *, matrix: bool, verbose: bool, quiet: bool
) -> Document:
    """The worst first, then who came, how far it went, and each finding with its node and its fix."""
    examinations = run.examinations
    names = names_of(fleet, examinations)
    found = folded(examinations, names, verbose=verbose)
    verdict, words = headline(fleet, examinations, training.headline if training else "")
    maps = tuple(matrix_sections(fleet)) if matrix else ()
    brief = Document(
        verdict=verdict,
        sections=maps,
        lines=finding_lines(found) if quiet else (),
        outcome=outcome(fleet, examinations),
        counts=counts(fleet, examinations),
        hints=(
            *(
                StyledText(f"{capital(text)}.", _WORD_STYLES["FAIL" if "failed" in text[:6] else "NOT TESTED"])
                for text in untested(fleet)
            ),
            *more_on(found),
        ),
    )
    if quiet:
        return brief
    return msgspec.structs.replace(
        brief,
        headline=words,
        sections=(
            Section(tuple(_head(fleet, run.meeting, training))),
            _phases(fleet, warned_phases(examinations)),
            *(training.sections if training else ()),
            *maps,
            *finding_sections(found),
            *not_tested_sections(
                reasons(examinations, names), idle_everywhere(examinations) if verbose else {}, verbose=verbose
            ),
            passed_section(passed_everywhere(examinations) if verbose else (), " on every node"),
        ),
    )


def _part_document(
    part: NodeVerdict, examination: Examination, training: Document | None, *, verbose: bool, quiet: bool
) -> Document:
    """Everything that node 0 says of the whole and of this node's own examination, which is made of the part's results."""
    own = examination.findings
    known = {finding_line(found) for found in own}
    brief = Document(
        verdict=Verdict(part.verdict), outcome="is the verdict on all nodes; node 0 prints the whole", lines=()
    )
    if quiet:
        elsewhere = _lines_of_others(part, known)
        return msgspec.structs.replace(brief, lines=(*finding_lines(own), *elsewhere))
    return msgspec.structs.replace(
        brief,
        sections=(
            _nothing_here(examination, Verdict(part.verdict)),
            *(training.sections if training else ()),
            *_own(examination, verbose=verbose),
            _whole(part, known),
        ),
    )


def _nothing_here(examination: Examination, verdict: Verdict) -> Section:
    """Say what comes first on a node without a finding of its own; green only where all is well."""
    host = one_line(examination.snapshot.host or "this node")
    if examination.verdict is Verdict.UNKNOWN:
        return _headline(Verdict.UNKNOWN, f"No verdict on {host}: not a single check could be judged")
    if examination.verdict is not Verdict.OK:
        return Section()
    own = f"othing was found wrong with {host}"
    if verdict is Verdict.OK:
        return _headline(verdict, f"N{own}")
    where = "No verdict on the whole" if verdict is Verdict.UNKNOWN else "Found elsewhere, see below"
    return _headline(verdict, f"{where}; n{own} itself")


def _whole(part: NodeVerdict, known: Collection[str]) -> Section:
    """The lines of all nodes, but those that this node has just told with all that belongs to them."""
    items = []
    for line in (one_line_kept(line) for line in part.lines if line not in known):
        word = _WORD.match(line)
        label = word[0] if word else ""
        style = _WORD_STYLES.get(label.rstrip(), "")
        items.append(Paragraph(line[len(label) :], StyledText(label, style), len(label), 2))
    return Section(tuple(items), "The whole, as node 0 sees it") if items else Section()


def _lines_of_others(part: NodeVerdict, known: Collection[str]) -> Iterator[Words]:
    """A line for each finding of the other nodes, and for what else is said of the whole; the phases are left out."""
    for line in (one_line_kept(line) for line in part.lines if line not in known):
        finding = _FINDING.fullmatch(line)
        if finding:
            word = finding["word"]
            yield (StyledText(f"{word:<6}", _WORD_STYLES[word]), f"{finding['slug']}: {finding['summary']}")
        elif not _WORD.match(line):
            yield line


def _alone_document(run: RunResult, *, verbose: bool, quiet: bool) -> Document:
    """Tell what one side can see: which addresses the master's name has, what dialling each came to, who listens there."""
    examination, meeting, problems = run.examinations[0], run.meeting, run.problems
    if meeting.nnodes is not None and not problems and examination.verdict is not Verdict.FAIL:
        problems = not_met(meeting)
    brief = check_verdict([examination])
    if problems and (run.exit_code == 2 or examination.verdict is not Verdict.FAIL):
        brief = Document(verdict=Verdict.UNKNOWN, outcome="; ".join(problems).rstrip("."))
    # Node 0 was asked where it let this node in, or is quoted.
    if not meeting.joined and not any("node 0 says: " in problem for problem in problems):
        only = StyledText("Only this side was looked at: no other node was asked.", "bold magenta")
        brief = msgspec.structs.replace(brief, hints=(*brief.hints, only))
    if quiet:
        return msgspec.structs.replace(brief, lines=finding_lines(examination.findings))
    sections = tuple(_one_side(examination, meeting, problems, verbose=verbose))
    return msgspec.structs.replace(brief, sections=sections)


def _one_side(
    examination: Examination, meeting: Meeting, problems: Sequence[str], *, verbose: bool
) -> Iterator[Section]:
    """Begin with what is wrong, with its fix; where nothing is, with the one sentence that says how far it came."""
    verdict = examination.verdict
    is_wrong = verdict in (Verdict.FAIL, Verdict.WARN)
    target = one_line(f"{meeting.master}, port {meeting.port}")
    if is_wrong:
        yield from finding_sections(examination.findings)
    elif problems:
        yield _headline(Verdict.UNKNOWN, problems[0])
    elif meeting.answered_by:
        yield _headline(verdict, f"{target} answers: {one_line(who_listens(meeting))}")
    else:
        yield _headline(verdict, f"{target} was looked at from this side only")
    rows: list[tuple[str, Words]] = [("host", dict(summary(examination)).get("host", "")), ("master", target)]
    for number, attempt in enumerate(meeting.attempts):
        met = StyledText(one_line(attempt_text(attempt)), "bold")
        rows.append(("" if number else "tried", (f"{one_line(attempt.address)}  ", met)))
    if meeting.listen_error:
        rows.append(("listen", one_line(meeting.listen_error)))
    if meeting.answered_by:
        rows.append(("there", one_line(who_listens(meeting))))
    # Where nothing was found the first of them is the first line; what a finding has seen is said there.
    evidence = " ".join(evidence.text for _, _, finding in examination.findings for evidence in finding.evidence)
    rows += [
        ("ended", one_line(problem)) for problem in (problems if is_wrong else problems[1:]) if problem not in evidence
    ]
    yield Section((LabelledRows(tuple(rows), MARGIN),))
    yield from _own(examination, verbose=verbose, with_findings=not is_wrong)


def _own(examination: Examination, *, verbose: bool, with_findings: bool = True) -> Iterator[Section]:
    """One node's findings, and what could not be tested on it."""
    if with_findings:
        yield from finding_sections(examination.findings)
    results = examination.results
    yield from not_tested_sections(unknown_reasons(results), idle_reasons(results) if verbose else {}, verbose=verbose)


def one_line_kept(line: str) -> str:
    """Harmless and on one line, with the columns as they were."""
    return visible(line).replace("\n", " ").replace("\t", " ").rstrip()


def _headline(verdict: Verdict, text: str) -> Section:
    """Make a first line whose verdict isn't that of the last."""
    label = verdict_span(verdict)
    return Section((Paragraph(StyledText(one_line(text), "bold"), label, max(6, len(label.text) + 2)),))


def _head(fleet: Fleet, meeting: Meeting, training: Document | None) -> Iterator[Block]:
    yield LabelledRows((("master", met_at(meeting, fleet)), (f"{fleet.seat}s", who_came(fleet, meeting))), MARGIN)
    rows, rest = node_rows(fleet)
    if rows:
        yield _node_table(rows)
    if rest:
        yield Paragraph(one_line(rest), margin=MARGIN)
    more = [*(training.rows if training else ())]
    if fleet.strangers:
        more.append(("refused", listed(map(one_line, fleet.strangers), most=4)))
    if more:
        yield LabelledRows(tuple(more), MARGIN)


def _node_table(rows: Sequence[tuple[str, ...]]) -> Table:
    """Tabulate the nodes; what is odd with one is a note."""
    columns = (
        Column(name, leaves=max(0, len(COLUMNS) - place) if place > 1 else 0) for place, name in enumerate(COLUMNS)
    )
    return Table(
        tuple(columns),
        tuple(
            Row(
                tuple(clip(visible(cell), MAX_CELL_COLUMNS) for cell in row[: len(COLUMNS)]),
                StyledText(clip(visible(row[-1]), MAX_CELL_COLUMNS), "bold red") if row[-1] else "",
            )
            for row in rows
        ),
        MARGIN,
    )


def _phases(fleet: Fleet, warned: Collection[str]) -> Section:
    def build(width: int, unicode: bool) -> list[Block]:
        items: list[Block] = []
        for phase in fleet.phases:
            word = phase_word(phase, warned)
            label = StyledText(f"{word:<12}", _WORD_STYLES[word])
            name = f"{phase.name:<9}{seconds_text(phase):>7}  "
            text = one_line(phase_text(phase, fleet))
            if not text:
                items.append(Paragraph("", (label, name.rstrip()), 0, 2))
            elif width < NARROW_COLUMNS:
                items.append(Paragraph(f"{name}{text}", label, 12, 2))
            else:
                items.append(Paragraph(text, (label, name), 12 + len(name), 2))
        return items

    return Section((Fitted(build),)) if fleet.phases else Section()
