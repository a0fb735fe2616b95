"""The report of a smoke training: the verdict, how far each rank came, what is wrong and why; also within netcheck's report."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ddpdoctor.base.text import human, listed, one_line, plural
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.facts.smoke import RankRun, Smoke
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
)
from ddpdoctor.smoke_training.analysis.verdict import (
    host_findings,
    host_results,
    own_findings,
    own_results,
    smoke_of,
    verdict_of,
)
from ddpdoctor.smoke_training.render_burn_in import burn_in_sections
from ddpdoctor.smoke_training.render_marks import Mark, RanksColumn, columns
from ddpdoctor.smoke_training.render_scaling import scaling_sections
from ddpdoctor.smoke_training.render_words import (
    accounts,
    counts,
    culprits,
    ending_text,
    engine_text,
    group_stages,
    head,
    headline,
    marks,
    nccl_text,
    not_tested,
    note,
    outcome,
    slowest,
    what_was_done,
)

LEGEND = (Mark.PASSED, Mark.FAILED, Mark.WAITED, Mark.NOT_TESTED, Mark.NOT_RUN)
MAX_ACCOUNTS = 4
MARGIN_COLUMNS = 9
"""Columns for the labels of who was looked at, and "rank 1023"."""
MIN_NOTE_COLUMNS = 18
"""Columns; of what did not fail a note that would have fewer is left out."""


def smoke_document(examination: Examination, *, verbose: bool = False, quiet: bool = False) -> Document:
    """The report for people. verbose: also each rank, and what passed, by name; quiet: a line a finding, and the verdict."""
    verdict = verdict_of(examination)
    found = [*own_findings(examination), *host_findings(examination)]
    return Document(
        verdict=verdict,
        headline="" if quiet else headline(examination),
        rows=() if quiet else tuple(head(examination)),
        margin=MARGIN_COLUMNS,
        sections=() if quiet else tuple(_sections(examination, verbose=verbose)),
        lines=finding_lines(found) if quiet else (),
        outcome=outcome(examination),
        counts=counts(smoke_of(examination)),
        hints=more_on(found) if verdict is not Verdict.OK else (),
    )


def joint_training_document(smoke: Smoke, verdict: Verdict, named: Collection[int]) -> Document:
    """A training over several hosts, for the report of their meeting; empty where no rank was started. named: the ranks that findings
    name, for who does not know of all."""
    # Only who knows of all ranks can tell whose fault it was.
    blamed = culprits(smoke) if len(smoke.ranks) == smoke.world_size else frozenset(named)
    rows = (
        ("plan", smoke.chosen),
        ("engine", engine_text(smoke)),
        *([("NCCL", one_line(text))] if (text := nccl_text(smoke)) else []),
        *([("files", smoke.folder)] if smoke.folder else []),
    )
    return Document(
        verdict=verdict,
        headline=what_was_done(smoke) if smoke.ranks else "",
        rows=rows if smoke.ranks else (),
        sections=(_stages(smoke, blamed), *burn_in_sections(smoke), _untested(smoke))
        if group_stages(smoke).begun
        else (),
    )


def _sections(examination: Examination, *, verbose: bool) -> Iterator[Section]:
    facts = smoke_of(examination)
    blamed = culprits(facts)
    own = own_findings(examination)
    yield _stages(facts, blamed)
    if verbose:
        yield Section(tuple(_rank_item(rank, blamed) for rank in facts.ranks))
    yield from burn_in_sections(facts)
    yield from scaling_sections(facts, examination.snapshot)
    yield from finding_sections(own)
    if verbose or not own:
        yield from _accounts(facts, blamed)
    if host_results(examination):
        yield from _host(examination)
    yield _untested(facts)
    results = [*own_results(examination), *(host_results(examination) if verbose else ())]
    yield from not_tested_sections(unknown_reasons(results), idle_reasons(results) if verbose else {}, verbose=verbose)
    yield passed_section(examination.passed if verbose else ())


# --- ranks by stages --------------------------------------------------------------------------------------------------------


def _stages(facts: Smoke, blamed: Collection[int]) -> Section:
    """The table: a row a stage that was begun, a mark a rank, or several that fared alike."""
    names = group_stages(facts).begun
    if not names:
        return Section()
    fates = {rank: tuple(map(stages.__getitem__, names)) for rank, stages in marks(facts, blamed).items()}

    def build(width: int, unicode: bool) -> list[Block]:
        margin = max(len(one_line(name)) for name in names)
        grouped = columns(fates, max(8, width - 2 - margin - 2))
        return [
            _table(facts, blamed, names, grouped, width, unicode=unicode),
            *_legend(facts, grouped, unicode=unicode),
        ]

    return Section((Fitted(build),))


def _table(
    facts: Smoke, blamed: Collection[int], names: list[str], grouped: list[RanksColumn], width: int, *, unicode: bool
) -> Table:
    margin = max(len(one_line(name)) for name in names)
    labels = " ".join(column.label for column in grouped)
    times = [slowest(facts, name) for name in names]
    room = width - 2 - margin - 2 - len(labels) - 2 - max(len("slowest"), *map(len, times)) - 2
    rows = []
    for place, name in enumerate(names):
        failed = not all(column.marks[place] in (Mark.PASSED, Mark.NOT_TESTED) for column in grouped)
        words = note(facts, name, blamed) if failed or room >= MIN_NOTE_COLUMNS else ""
        spaced = tuple(piece for column in grouped for piece in (" ", column.cell(place, unicode=unicode)))[1:]
        marked_note = StyledText(words, "bold red" if failed else "dim") if words else ""
        rows.append(Row((one_line(name), spaced, times[place]), marked_note))
    headings = (Column(f"{'rank':>{margin}}"), Column(labels), Column("slowest", right=True, leaves=5))
    return Table(headings, tuple(rows))


def _legend(facts: Smoke, grouped: list[RanksColumn], *, unicode: bool) -> Iterator[Paragraph]:
    if missed := group_stages(facts).not_run:
        yield Paragraph(StyledText(listed(map(one_line, missed), 30), "dim"), StyledText("not run", "dim"), 9, 2)
    there = {mark for column in grouped for mark in column.marks}
    if there - {Mark.PASSED}:
        spans = [
            span
            for mark in LEGEND
            if mark in there
            for span in (StyledText("   "), mark.shown(unicode=unicode), StyledText(f" {mark.meaning}", "dim"))
        ]
        yield Paragraph(tuple(spans[1:]), indent=2)


def _rank_item(rank: RankRun, blamed: Collection[int]) -> Paragraph:
    """A rank in a line, for -v."""
    where = f"{one_line(rank.host)} pid {rank.pid}" if rank.pid else one_line(rank.host)
    memory = f", at most {human(rank.memory)}" if rank.memory else ""
    text = f"{where}, {one_line(rank.device)}{memory}: {ending_text(rank, blamed)}"
    return Paragraph(text, StyledText(f"rank {rank.rank}", "dim"), MARGIN_COLUMNS)


def _accounts(facts: Smoke, blamed: Collection[int]) -> Iterator[Section]:
    """Quote the ranks that failed or hung, the first of each kind: what no finding tells is told here."""
    for ranks, lines in accounts(facts, blamed)[:MAX_ACCOUNTS]:
        yield Section(tuple(Paragraph(line, indent=2) for line in lines), ranks)
    if facts.problem:
        yield Section((LabelledRows((("engine", one_line(facts.problem)),), MARGIN_COLUMNS),))


# --- what was found ---------------------------------------------------------------------------------------------------------


def _host(examination: Examination) -> Iterator[Section]:
    """Show what else is wrong on this host, which may be the cause."""
    heading = "What `ddpdoctor check` finds on this host"
    found = host_findings(examination)
    if found:
        yield Section((), heading)
        yield from finding_sections(found)
        return
    results = host_results(examination)
    passed = sum(result.passed for result in results)
    unknown = sum(map(len, unknown_reasons(results).values()))
    rest = f", {unknown} could not be tested" if unknown else ""
    text = f"Nothing that would explain it: {plural(passed, 'check')} passed{rest}."
    yield Section((Paragraph(text, indent=2),), heading)


def _untested(facts: Smoke) -> Section:
    """The stages that can't be run here, by reason."""
    stages = not_tested(facts)
    items = (
        Paragraph((f"{', '.join(names)}: ", StyledText(reason, "dim")), indent=2) for reason, names in stages.items()
    )
    return Section(tuple(items), StyledText("Not tested here", "bold magenta")) if stages else Section()
