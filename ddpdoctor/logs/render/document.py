"""The report of `diagnose-log`: who failed first and of what, why, the lines, the fix; then what else it may be, what
only followed, what is harmless, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import capital, clip, human, listed, one_line, plural, ranks_named
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LogFile, LoggedException, LogLine, ProcessExit, SignMatch
from ddpdoctor.logs.analyze.deciding_commands import deciding
from ddpdoctor.logs.analyze.endings import endings
from ddpdoctor.logs.analyze.rank_attribution import scores_of
from ddpdoctor.logs.analyze.sightings import common_folder, lines, stack_lines
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome
from ddpdoctor.logs.diagnosis import Diagnosis, HostVerdict, LogJudgement
from ddpdoctor.logs.exceptions import is_cut, is_of_launcher, kind_of, short_name, tells_of_another
from ddpdoctor.logs.render.comparison import comparison_section
from ddpdoctor.logs.render.headline import doubtful, failed_itself, headline, outcome
from ddpdoctor.logs.render.next_steps import next_steps
from ddpdoctor.logs.render.words import (
    file_name,
    first_rank_and_host,
    first_words,
    how_it_ended,
    last_calls,
    more,
    named,
    noise,
    own_errors,
    place,
    quoted,
    unread,
    who_first,
    within,
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
MAX_FILES: Final = 3
MAX_ENDS: Final = 2
MAX_LINES: Final = 2
"""Shown of a hypothesis that isn't the first."""
MAX_ATTEMPTS: Final = 6
MAX_STACKS: Final = 8
MAX_EFFECTS: Final = 4
MAX_NAME: Final = 40
"""Characters."""
MAX_ERROR: Final = 90
"""Characters."""
MAX_NOISE_NAMES: Final = 3
NOT_IN_A_LOG: Final = (
    "A log says nothing of a job that hangs (ddpdoctor jobs --hang looks at one that runs), nor of what a process that was killed "
    "could not say any more, and nothing that was written elsewhere"
)
_HELD_STYLES: Final = {
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
    first, log, verdict = judgement.blamed, judgement.log, judgement.verdict
    if quiet:
        slug = f"{first.check.slug}: " if first else ""
        line = (verdict_span(judgement.word), f"  {slug}{one_line(headline(judgement))}")
        return Document(verdict=judgement.word, lines=(line,))
    explained = explanation_sections(judgement.explanations)
    return Document(
        verdict=judgement.word,
        headline=headline(judgement),
        rows=tuple((label, one_line(text)) for label, text in _rows(log) if text),
        margin=MARGIN,
        sections=(
            *_first(judgement),
            *(explained if first else ()),
            _traceback(judgement, verbose=verbose),
            _why_that_rank(verdict) if verbose else Section(),
            _stacks(judgement),
            _others(judgement),
            comparison_section(judgement, verbose=verbose),
            *(() if first else explained),
            _followed(log, verdict, verbose=verbose),
            _attempts(judgement),
            *_also(judgement, verbose=verbose),
            _harmless(log, judgement.catalogue, verbose=verbose),
            *_unread(log),
            _next(judgement, watched=watched),
        ),
        outcome=outcome(judgement),
        counts=f"{NOT_IN_A_LOG}." if verdict.outcome is RunOutcome.NOTHING else "",
        hints=(f"More on the first: {first.check.more}",) if first and verdict.outcome is RunOutcome.ILLNESS else (),
    )


def _rows(log: Log) -> Iterator[tuple[str, str]]:
    """(label, text): which files, and what they tell of the run."""
    yield "log" if len(log.files) == 1 else "logs", name_files(log.files)
    yield from (("", note) for note in log.notes)
    size = ""
    if log.world_size:
        speak = f", of which {len(log.ranks)} speak" if 0 < len(log.ranks) < log.world_size else ""
        size = f"{plural(log.world_size, 'rank')}{speak}"
    elif log.ranks:
        size = f"{plural(len(log.ranks), 'rank')} named in it"
    yield "run", ", ".join(filter(None, (log.launcher, size, listed(map(one_line, log.hosts), 4))))


def name_files(files: Sequence[LogFile]) -> str:
    """Say in a line which files were read: names, sizes, lines."""
    read = [file for file in files if file.bytes]
    if not read:
        return "nothing"
    folder = common_folder(tuple(files))
    inside = [file for file in read if folder and file.name.startswith(folder)]
    names = [file_name(file) for file in read if file not in inside]
    if inside:
        names.append(f"{plural(len(inside), 'file')} in {one_line(folder)}")
    count = sum(file.lines for file in read)
    size = human(sum(file.bytes for file in read))
    return f"{listed(names, MAX_FILES)} ({size}, {count:,} {'line' if count == 1 else 'lines'})"


# --- pieces of sections -----------------------------------------------------------------------------------------------------


def _section(title: Words, blocks: Iterable[Block]) -> Section:
    """Blocks under a title; none of it where there are no blocks."""
    told = tuple(blocks)
    return Section(told, title) if told else Section()


def _title(words: str, in_small: str) -> Words:
    return (StyledText(words, "bold"), StyledText(f"  ({in_small})", "dim"))


def _item(text: Words, indent: int = 2) -> Paragraph:
    return Paragraph(text, indent=indent)


def _dim(text: str) -> StyledText:
    return StyledText(text, "dim")


def _seen(log: Log, text: str, line: LogLine | None, indent: int = 2) -> Paragraph:
    """Quote what is said in a log, and where."""
    return _item(evidence_words(Evidence(text, place(log, line) if line else "")), indent)


def _quotes(log: Log, log_lines: Iterable[LogLine]) -> tuple[Paragraph, ...]:
    return tuple(_seen(log, quoted(log_line.text), log_line) for log_line in log_lines)


# --- what failed first ------------------------------------------------------------------------------------------------------


def _first(judgement: LogJudgement) -> Iterator[Section]:
    """The likeliest, as every command shows a finding; where nothing is recognised the first error itself."""
    log, verdict = judgement.log, judgement.verdict
    if first := judgement.blamed:
        # No surer than the headline.
        doubt = doubtful(judgement)
        summary = f"{capital(doubt)}: {within(named(first))}" if doubt else named(first)
        evidence = tuple(Evidence(quoted(piece.text), piece.source) for piece in first.finding.evidence)
        finding = msgspec.structs.replace(first.finding, summary=summary, evidence=evidence)
        yield from finding_sections([(first.check, WARN if verdict.ended_well else FAIL, finding)])
        if held := first.held:
            word = StyledText(held.standing.value, _HELD_STYLES[held.standing])
            yield Section((Paragraph(one_line(held.words), word, len(word.text) + 2),))
        return
    yield _section("What it says of an error before that", _quotes(log, verdict.said))
    ends = (_seen(log, how_it_ended(*ended), ended[0].line) for ended in _ended_before(judgement))
    yield _section("What its launcher says of processes that ended", ends)
    if verdict.lead is None or verdict.raised:
        return
    silent = verdict.lead.rank in verdict.silent
    blocks = [_seen(log, first_words(verdict), verdict.lead), *_quotes(log, more(judgement))]
    if verdict.exited and verdict.lead != verdict.exited.line:
        blocks.append(_item(how_it_ended(verdict.exited)))
    yield _section("The last words of the rank that fell silent" if silent else "The first error in it", blocks)


def _ended_before(judgement: LogJudgement) -> list[list[ProcessExit]]:
    """List processes that ended by themselves, where only what followed is known; together those of one line."""
    if judgement.verdict.outcome is not RunOutcome.EFFECTS_ONLY or judgement.verdict.exited:
        return []
    by_themselves = (end for end in endings(judgement.log) if end.exit_code is not None and not end.told_to)
    of_one_line = grouped(by_themselves, lambda end: (end.line.order, end.exit_code, end.pid))
    return list(of_one_line.values())[:MAX_ENDS]


def _traceback(judgement: LogJudgement, *, verbose: bool) -> Section:
    """Show the last calls: of an error that no illness explains, always."""
    verdict, raised = judgement.verdict, judgement.verdict.raised
    explained = verdict.outcome in (RunOutcome.ILLNESS, RunOutcome.STOPPED)
    if raised is None or not raised.frames or (explained and not verbose):
        return Section()
    error = _item(StyledText(first_words(verdict), "bold"))
    blocks = (*map(_item, last_calls(raised)), error, *_quotes(judgement.log, more(judgement)))
    return _section(_title("The last calls of its traceback", place(judgement.log, raised.began)), blocks)


def _why_that_rank(verdict: LogVerdict) -> Section:
    """List for each rank what speaks for it, with its points, the likeliest first."""
    scores = scores_of(verdict.evidence)
    speaking = grouped(verdict.evidence, lambda piece: piece.rank)
    items = (
        f"{'not known' if rank is None else f'rank {rank}'}: "
        + ", ".join(f"{piece.words} {piece.score}" for piece in speaking[rank])
        for rank in sorted(scores, key=lambda rank: -scores[rank])
    )
    return _section(_title("Whose failure it is", "the most points win"), map(_item, items))


def _stacks(judgement: LogJudgement) -> Section:
    """Show where its processes stood, as their fault handlers wrote it, of the same places one; not those that the findings show."""
    shown = {evidence for opinion in judgement.opinions for evidence in opinion.finding.evidence}
    found: dict[object, Paragraph] = {}
    for stack in judgement.log.stacks:
        (evidence,) = stack_lines(judgement.log, stack)
        if evidence not in shown and stack.frames:
            text = f"{quoted(stack.reason)}: {quoted(evidence.text)}" if stack.reason else quoted(evidence.text)
            item = _item(evidence_words(Evidence(text, evidence.source)))
            found.setdefault((stack.line.rank, evidence.text), item)
    items = list(found.values())[:MAX_STACKS]
    if left_out := len(found) - len(items):
        items.append(_item(_dim(f"and {plural(left_out, 'other stack')}")))
    return _section("Where its processes stood when they wrote their stacks", items)


# --- what else it may be ----------------------------------------------------------------------------------------------------


def _others(judgement: LogJudgement) -> Section:
    """Hypotheses, each with the command that would decide it."""
    title, others = ("Or else", judgement.opinions[1:]) if judgement.blamed else ("It may be", judgement.opinions)
    return _section(title, (block for diagnosis in others for block in _hypothesis(judgement.log, diagnosis)))


def _hypothesis(log: Log, diagnosis: Diagnosis) -> Iterator[Block]:
    yield _named(diagnosis)
    sightings = diagnosis.suspect.sightings
    if diagnosis.suspect.why:
        yield _part("why", one_line(diagnosis.suspect.why))
    for number, evidence in enumerate(lines(log, sightings, MAX_LINES)):
        yield _part("" if number else "seen", evidence_words(Evidence(quoted(evidence.text), evidence.source)))
    if diagnosis.held:
        yield _part("here", f"{diagnosis.held.standing.value}: {one_line(diagnosis.held.words)}")
    elif decide := deciding(diagnosis.check, sightings, log):
        yield _part("test", one_line(decide.text))
        yield from (Command(command, 12) for command in decide.commands)
    else:
        yield _part("more", StyledText(diagnosis.check.more, "cyan"))


def _named(diagnosis: Diagnosis) -> Paragraph:
    return _item((one_line(named(diagnosis)), _dim(f"  [{diagnosis.check.slug}]")))


def _part(label: str, text: Words) -> Paragraph:
    return Paragraph(text, _dim(label), MARGIN, 4)


# --- what is no cause -------------------------------------------------------------------------------------------------------


def _followed(log: Log, verdict: LogVerdict, *, verbose: bool) -> Section:
    """Tell what ranks say that fell with another, and what their launcher says of them; each kind once, with its first line."""
    lost = _lost(log, verdict)
    ended = [process_exit for process_exit in log.exited if process_exit.told_to]
    kinds = [
        (f'"{quoted(sign)}" {_said_by(matches)}', matches[0].line)
        for sign, matches in grouped(verdict.effects, lambda effect: effect.sign).items()
    ]
    for alike in grouped(lost, kind_of).values():
        error = f"{short_name(alike[0].exception)}: {alike[0].message}"
        kinds.append((f'"{clip(quoted(error), MAX_ERROR)}" {_said_by(alike)}', alike[0].line))
    if ended:
        ranks = {process_exit.rank for process_exit in ended if process_exit.rank is not None}
        whose = ranks_named(ranks) if ranks else plural(len(ended), "process", "processes")
        kinds.append((f"{one_line(ended[0].said_by)} ended {whose}", ended[0].line))
    first = verdict.lead.rank if verdict.lead else None
    said = [*(effect.line for effect in verdict.effects), *(raised.line for raised in lost)]
    fell = {line.rank for line in said} | {process_exit.rank for process_exit in ended}
    # Where nothing tells which was the first, they can't be counted.
    count = 0 if verdict.outcome is RunOutcome.EFFECTS_ONLY else len(fell - {None, first})
    title = _title("What only followed", f"{plural(count, 'more rank')} fell") if count else "What only followed"
    if verbose or not kinds:
        return _section(title, (_seen(log, text, line) for text, line in kinds))
    some = "; ".join(text for text, _ in kinds[:MAX_EFFECTS])
    rest = f"; {len(kinds) - MAX_EFFECTS} more kinds, -v shows them" if len(kinds) > MAX_EFFECTS else ""
    return _section(title, [_item(_dim(f"{some}{rest}"))])


def _lost(log: Log, verdict: LogVerdict) -> list[LoggedException]:
    """Exceptions that only tell of another failure, of ranks or of the launcher for them, as far as no sign tells of them."""
    told = {(effect.line.file, effect.line.number) for effect in verdict.effects}
    return [
        raised
        for raised in log.raised
        if raised != verdict.raised
        and not is_cut(raised)
        and (tells_of_another(raised) or is_of_launcher(raised))
        and (raised.line.file, raised.line.number) not in told
    ]


def _said_by(said: Sequence[SignMatch | LoggedException]) -> str:
    ranks = {each.line.rank for each in said if each.line.rank is not None}
    if not ranks:
        return f"({sum(each.times for each in said)}x)"
    return f"({ranks_named(ranks)})" if len(ranks) <= 2 else f"({len(ranks)} ranks)"


def _attempts(judgement: LogJudgement) -> Section:
    """List the attempts after which the launcher started the ranks again, or how other runs failed, each way once."""
    log, others = judgement.log, judgement.verdict.elsewhere
    if log.ended:
        # Of the same exception again and again only the first and the last are kept.
        told = {_of_attempt(log, other): other for other in others if other.lead and failed_itself(other)}
    else:
        told = {f"Attempt {other.attempt}: {_of_attempt(log, other)}": other for other in others}
    items = [_seen(log, words, other.lead) for words, other in list(told.items())[-MAX_ATTEMPTS:]]
    if left_out := len(told) - len(items):
        items.insert(0, _item(_dim(f"{left_out} more, --json has them all")))
    return _section(f"The other {'runs that failed' if log.ended else 'attempts'}", items)


def _of_attempt(log: Log, verdict: LogVerdict) -> str:
    """ "rank 3 failed first: KeyError: 'lr'"."""
    if verdict.lead is None:
        return "nothing speaks of a failure"
    rank, _ = first_rank_and_host(verdict)
    who = "" if rank is None else f"{who_first(log, verdict)}: "
    if verdict.outcome in (RunOutcome.EFFECTS_ONLY, RunOutcome.STOPPED):
        stopped = verdict.outcome is RunOutcome.STOPPED
        who = f"{'it was ended from outside' if stopped else 'only what followed is told'}: "
    return f"{within(who)}{clip(first_words(verdict))}"


def _also(judgement: LogJudgement, *, verbose: bool) -> Iterator[Section]:
    """List what the log speaks of, too, and the run didn't end by, though it may have led there, as NaN does."""
    for words, line in own_errors(judgement.verdict):
        yield Section((_seen(judgement.log, words, line, indent=0),))
    heading, also = "Also in it, and not what ended it", judgement.also
    if verbose and also:
        yield Section((), heading)
        yield from finding_sections([(diagnosis.check, INFO, diagnosis.finding) for diagnosis in also])
    else:
        yield _section(heading, map(_named, also))


def _harmless(log: Log, catalogue: Catalogue, *, verbose: bool) -> Section:
    found = noise(log, catalogue)
    if verbose:
        blocks: list[Block] = []
        for message in found:
            blocks += [
                _item((quoted(message.text), _dim(f"  ({message.times}x)"))),
                _item(_dim(one_line(message.why)), 4),
            ]
        return _section("Harmless", blocks)
    if not found:
        return Section()
    names = (f'"{clip(quoted(message.text), MAX_NAME)}" ({message.times}x)' for message in found)
    told = f"{plural(len(found), 'message')} that healthy runs print, too: {listed(names, MAX_NOISE_NAMES)}"
    return Section((Paragraph(_dim(f"{told}; -v says why")),))


def _unread(log: Log) -> Iterator[Section]:
    if log.more:
        counted = f"{plural(log.more, 'further message')} of the kinds that are told here were only counted"
        yield Section((Paragraph(_dim(counted)),))
    yield _section(StyledText("Could not be read", "bold magenta"), map(_item, unread(log)))


# --- what to do -------------------------------------------------------------------------------------------------------------


def _next(judgement: LogJudgement, *, watched: bool) -> Section:
    """Advise what to do where the log alone leads no further."""
    blocks: list[Block] = []
    for fix in next_steps(judgement, watched=watched):
        blocks += [_item(one_line(fix.text)), *map(Command, fix.commands)]
    return _section("What to do next", blocks)
