"""The report of `diagnose-log`: who failed first and of what, why, the lines, the fix; then what else it may be, what
only followed, what is harmless, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Evidence, Severity
from ddpdoctor.base.text import one_line, plural
from ddpdoctor.facts.log import LogLine
from ddpdoctor.logs.analyze.deciding_commands import deciding
from ddpdoctor.logs.analyze.rank_attribution import scores_of
from ddpdoctor.logs.analyze.sightings import lines
from ddpdoctor.logs.analyze.verdict import RunOutcome
from ddpdoctor.logs.diagnosis import Diagnosis, HostVerdict, LogJudgement
from ddpdoctor.logs.render.comparison import comparison_section
from ddpdoctor.logs.render.next_steps import next_steps
from ddpdoctor.logs.render.words import (
    NOT_IN_A_LOG,
    blamed,
    ended_before,
    fell_with_it,
    first_words,
    followed,
    harmless,
    headline,
    how_it_ended,
    judged_as,
    last_calls,
    more,
    named,
    noise,
    only_counted,
    other_attempts,
    outcome,
    own_errors,
    place,
    quoted,
    rows,
    stacks,
    title,
    unread,
)
from ddpdoctor.report.check_results import explanation_sections, finding_sections
from ddpdoctor.report.document import (
    Block,
    Command,
    Document,
    Paragraph,
    Section,
    StyledText,
    Words,
    evidence_words,
    verdict_span,
)

MARGIN: Final = 6
MAX_LINES: Final = 2
"""Shown of a hypothesis that isn't the first."""
MAX_ATTEMPTS: Final = 6
MAX_STACKS: Final = 8
MAX_EFFECTS: Final = 4
HELD_STYLES: Final = {
    HostVerdict.CONFIRMED: "bold red",
    HostVerdict.CONTRADICTED: "bold green",
    HostVerdict.NOT_CONFIRMED: "bold",
    HostVerdict.NOT_TESTED: "bold magenta",
}


def log_document(
    judgement: LogJudgement, *, verbose: bool = False, quiet: bool = False, watched: bool = False
) -> Document:
    """The report for people.

    Args:
        judgement: of the log.
        verbose: also the traceback's last calls, what tells the rank, every kind of effect with its first line, and why noise is harmless.
        quiet: the verdict in one line.
        watched: the log is that of `ddpdoctor run`.
    """
    verdict = judged_as(judgement)
    first = blamed(judgement)
    if quiet:
        slug = f"{first.check.slug}: " if first else ""
        return Document(verdict=verdict, lines=((verdict_span(verdict), f"  {slug}{one_line(headline(judgement))}"),))
    is_illness = judgement.verdict.outcome is RunOutcome.ILLNESS
    explained = explanation_sections(judgement.explanations)
    return Document(
        verdict=verdict,
        headline=headline(judgement),
        rows=tuple((label, one_line(text)) for label, text in rows(judgement.log)),
        margin=MARGIN,
        sections=(
            *_first(judgement),
            *(explained if first else ()),
            _traceback(judgement, verbose=verbose),
            _why_that_rank(judgement) if verbose else Section(),
            _stacks(judgement),
            _others(judgement),
            comparison_section(judgement, verbose=verbose),
            *(() if first else explained),
            _followed(judgement, verbose=verbose),
            _attempts(judgement),
            *_also(judgement, verbose=verbose),
            _harmless(judgement, verbose=verbose),
            *_unread(judgement),
            _next(judgement, watched=watched),
        ),
        outcome=outcome(judgement),
        counts=f"{NOT_IN_A_LOG}." if judgement.verdict.outcome is RunOutcome.NOTHING else "",
        hints=(f"More on the first: {first.check.more}",) if first and is_illness else (),
    )


# --- what failed first ------------------------------------------------------------------------------------------------------


def _first(judgement: LogJudgement) -> Iterator[Section]:
    """The likeliest, as every command shows a finding; where nothing is recognised the first error itself."""
    if first := blamed(judgement):
        evidence = tuple(Evidence(quoted(piece.text), piece.source) for piece in first.finding.evidence)
        finding = msgspec.structs.replace(first.finding, summary=title(judgement, first), evidence=evidence)
        severity = Severity.WARN if judgement.verdict.ended_well else Severity.FAIL
        yield from finding_sections([(first.check, severity, finding)])
        if held := first.held:
            word = StyledText(held.standing.value, HELD_STYLES[held.standing])
            yield Section((Paragraph(one_line(held.words), word, len(word.text) + 2),))
        return
    verdict = judgement.verdict
    if verdict.said:
        yield Section(_quotes(judgement, verdict.said), "What it says of an error before that")
    if ended := ended_before(judgement):
        ends = tuple(_seen(judgement, how_it_ended(*end), end[0].line) for end in ended)
        yield Section(ends, "What its launcher says of processes that ended")
    if verdict.lead is None or verdict.raised:
        return
    fell_silent = verdict.lead.rank in verdict.silent
    blocks = [_seen(judgement, first_words(verdict), verdict.lead), *_quotes(judgement, more(judgement))]
    if verdict.exited and verdict.lead != verdict.exited.line:
        blocks.append(Paragraph(how_it_ended(verdict.exited), indent=2))
    yield Section(
        tuple(blocks), "The last words of the rank that fell silent" if fell_silent else "The first error in it"
    )


def _seen(judgement: LogJudgement, text: str, line: LogLine | None, indent: int = 2) -> Paragraph:
    """Quote what is said in a log, and where."""
    return Paragraph(evidence_words(Evidence(text, place(judgement.log, line) if line else "")), indent=indent)


def _quotes(judgement: LogJudgement, log_lines: Iterable[LogLine]) -> tuple[Paragraph, ...]:
    return tuple(_seen(judgement, quoted(log_line.text), log_line) for log_line in log_lines)


def _traceback(judgement: LogJudgement, *, verbose: bool) -> Section:
    """Show the last calls: of an error that no illness explains, always."""
    verdict, raised = judgement.verdict, judgement.verdict.raised
    explained = verdict.outcome in (RunOutcome.ILLNESS, RunOutcome.STOPPED)
    if raised is None or not raised.frames or (explained and not verbose):
        return Section()
    return Section(
        (
            *(Paragraph(call, indent=2) for call in last_calls(raised)),
            Paragraph(StyledText(first_words(verdict), "bold"), indent=2),
            *_quotes(judgement, more(judgement)),
        ),
        _title("The last calls of its traceback", place(judgement.log, raised.began)),
    )


def _why_that_rank(judgement: LogJudgement) -> Section:
    """List for each rank what speaks for it, with its points, the likeliest first."""
    evidence = judgement.verdict.evidence
    ranks = sorted(scores_of(evidence).items(), key=lambda scored: -scored[1])
    items = (
        Paragraph(
            f"{'not known' if rank is None else f'rank {rank}'}: "
            + ", ".join(f"{piece.words} {piece.score}" for piece in evidence if piece.rank == rank),
            indent=2,
        )
        for rank, _ in ranks
    )
    return Section(tuple(items), _title("Whose failure it is", "the most points win")) if evidence else Section()


def _title(words: str, in_small: str) -> Words:
    return (StyledText(words, "bold"), StyledText(f"  ({in_small})", "dim"))


def _stacks(judgement: LogJudgement) -> Section:
    """Show where its processes stood, as their fault handlers wrote it."""
    found = stacks(judgement)
    if not found:
        return Section()
    items = [
        Paragraph(evidence_words(Evidence(f"{f'{why}: ' if why else ''}{quoted(stack.text)}", stack.source)), indent=2)
        for why, stack in found[:MAX_STACKS]
    ]
    if len(found) > MAX_STACKS:
        items.append(Paragraph(StyledText(f"and {plural(len(found) - MAX_STACKS, 'other stack')}", "dim"), indent=2))
    return Section(tuple(items), "Where its processes stood when they wrote their stacks")


# --- what else it may be ----------------------------------------------------------------------------------------------------


def _others(judgement: LogJudgement) -> Section:
    """Hypotheses, each with the command that would decide it."""
    first = blamed(judgement)
    others = judgement.opinions[1:] if first else judgement.opinions
    blocks = tuple(block for diagnosis in others for block in _hypothesis(judgement, diagnosis))
    return Section(blocks, "Or else" if first else "It may be") if others else Section()


def _hypothesis(judgement: LogJudgement, diagnosis: Diagnosis) -> Iterator[Block]:
    yield _named(diagnosis)
    if diagnosis.suspect.why:
        yield _part("why", one_line(diagnosis.suspect.why))
    for number, evidence in enumerate(lines(judgement.log, diagnosis.suspect.sightings, MAX_LINES)):
        yield _part("" if number else "seen", evidence_words(Evidence(quoted(evidence.text), evidence.source)))
    if diagnosis.held:
        yield _part("here", f"{diagnosis.held.standing.value}: {one_line(diagnosis.held.words)}")
    elif decide := deciding(diagnosis.check, diagnosis.suspect.sightings, judgement.log):
        yield _part("test", one_line(decide.text))
        for command in decide.commands:
            yield Command(command, 12)
    else:
        yield _part("more", StyledText(diagnosis.check.more, "cyan"))


def _named(diagnosis: Diagnosis) -> Paragraph:
    return Paragraph((one_line(named(diagnosis)), StyledText(f"  [{diagnosis.check.slug}]", "dim")), indent=2)


def _part(label: str, text: Words) -> Paragraph:
    return Paragraph(text, StyledText(label, "dim"), MARGIN, 4)


# --- what is no cause -------------------------------------------------------------------------------------------------------


def _followed(judgement: LogJudgement, *, verbose: bool) -> Section:
    kinds = followed(judgement.log, judgement.verdict)
    if not kinds:
        return Section()
    count = fell_with_it(judgement.log, judgement.verdict)
    fell = "1 more rank fell" if count == 1 else f"{count} more ranks fell"
    items = (
        tuple(_seen(judgement, text, line) for text, line in kinds)
        if verbose
        else (Paragraph(StyledText(_some([text for text, _ in kinds]), "dim"), indent=2),)
    )
    return Section(items, _title("What only followed", fell) if count else "What only followed")


def _some(texts: Sequence[str]) -> str:
    rest = len(texts) - MAX_EFFECTS
    return "; ".join(texts[:MAX_EFFECTS]) + (f"; {rest} more kinds, -v shows them" if rest > 0 else "")


def _attempts(judgement: LogJudgement) -> Section:
    """List the attempts after which the launcher started the ranks again."""
    others = other_attempts(judgement)
    if not others:
        return Section()
    left_out = len(others) - MAX_ATTEMPTS
    note = (Paragraph(StyledText(f"{left_out} more, --json has them all", "dim"), indent=2),) if left_out > 0 else ()
    shown = (_seen(judgement, words, line) for words, line in others[-MAX_ATTEMPTS:])
    return Section((*note, *shown), "The other attempts")


def _also(judgement: LogJudgement, *, verbose: bool) -> Iterator[Section]:
    """List what the log speaks of, too, and this failure doesn't come from."""
    for words, line in own_errors(judgement.verdict):
        yield Section((_seen(judgement, words, line, indent=0),))
    if not judgement.also:
        return
    heading = "Also in it, and not the cause of this"
    if verbose:
        yield Section((), heading)
        yield from finding_sections(
            [(diagnosis.check, Severity.INFO, diagnosis.finding) for diagnosis in judgement.also]
        )
    else:
        yield Section(tuple(map(_named, judgement.also)), heading)


def _harmless(judgement: LogJudgement, *, verbose: bool) -> Section:
    found = noise(judgement.log, judgement.catalogue)
    if not found:
        return Section()
    if not verbose:
        return Section((Paragraph(StyledText(f"{harmless(judgement.log, judgement.catalogue)}; -v says why", "dim")),))
    items = [
        item
        for message in found
        for item in (
            Paragraph((quoted(message.text), StyledText(f"  ({message.times}x)", "dim")), indent=2),
            Paragraph(StyledText(one_line(message.why), "dim"), indent=4),
        )
    ]
    return Section(tuple(items), "Harmless")


def _unread(judgement: LogJudgement) -> Iterator[Section]:
    if counted := only_counted(judgement.log):
        yield Section((Paragraph(StyledText(counted, "dim")),))
    if sentences := unread(judgement.log):
        items = tuple(Paragraph(sentence, indent=2) for sentence in sentences)
        yield Section(items, StyledText("Could not be read", "bold magenta"))


# --- what to do -------------------------------------------------------------------------------------------------------------


def _next(judgement: LogJudgement, *, watched: bool) -> Section:
    """Advise what to do where the log alone leads no further."""
    steps = next_steps(judgement, watched=watched)
    blocks: list[Block] = []
    for fix in steps:
        blocks += [Paragraph(one_line(fix.text), indent=2), *map(Command, fix.commands)]
    return Section(tuple(blocks), "What to do next") if steps else Section()
