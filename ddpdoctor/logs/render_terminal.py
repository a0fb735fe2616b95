"""`diagnose-log` for a person at a terminal: who failed first and of what, why, the lines, the fix; then what else it may be, what
only followed, what is harmless, and what could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from ddpdoctor.base.findings import Evidence, Fix, Severity
from ddpdoctor.base.text import one_line, plural, visible
from ddpdoctor.logs.analyze.deciding_commands import deciding
from ddpdoctor.logs.analyze.sightings import lines
from ddpdoctor.logs.analyze.verdict import RunOutcome
from ddpdoctor.logs.diagnosis import Diagnosis, HostVerdict, LogJudgement
from ddpdoctor.logs.render_followed import fell_with_it, followed, harmless, noise
from ddpdoctor.logs.render_steps import next_steps
from ddpdoctor.logs.render_words import (
    NOT_IN_A_LOG,
    blamed,
    ended_before,
    first_words,
    headline,
    how_it_ended,
    judged_as,
    last_calls,
    more,
    named,
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
from ddpdoctor.report.terminal import VERDICT_STYLES, Hanging, evidence_text, show_found

MARGIN: Final = 6
MOST_LINES: Final = 2
"""Of a hypothesis that isn't the first."""
MOST_ATTEMPTS: Final = 6
MOST_STACKS: Final = 8
STANDING_STYLES: Final = {
    HostVerdict.CONFIRMED: "bold red",
    HostVerdict.CONTRADICTED: "bold green",
    HostVerdict.NOT_CONFIRMED: "bold",
    HostVerdict.NOT_TESTED: "bold magenta",
}


def show_log(
    console: Console, judgement: LogJudgement, *, verbose: bool = False, quiet: bool = False, watched: bool = False
) -> None:
    """Prints the report. `watched`: the log is that of `ddpdoctor run`. `quiet`: the verdict in one line; `verbose`: also the traceback's last calls, every kind of effect with its
    first line, and why noise is harmless."""
    if quiet:
        _show_line(console, judgement)
        return
    _show_head(console, judgement)
    _show_first(console, judgement)
    _show_traceback(console, judgement, verbose=verbose)
    _show_stacks(console, judgement)
    _show_others(console, judgement)
    _show_followed(console, judgement, verbose=verbose)
    _show_attempts(console, judgement)
    _show_also(console, judgement, verbose=verbose)
    _show_harmless(console, judgement, verbose=verbose)
    _show_unread(console, judgement)
    _show_next(console, judgement, watched=watched)
    _show_last(console, judgement)


def _show_line(console: Console, judgement: LogJudgement) -> None:
    verdict = judged_as(judgement)
    first = blamed(judgement)
    slug = f"{first.check.slug}: " if first else ""
    text = f"{slug}{one_line(headline(judgement))}"
    console.print(Text(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict]).append(text, "not bold"), soft_wrap=True)


def _show_head(console: Console, judgement: LogJudgement) -> None:
    verdict = judged_as(judgement)
    word = verdict.value.upper()
    head = Text(one_line(headline(judgement)), "bold")
    console.print(Hanging(Text(word, VERDICT_STYLES[verdict]), head, max(MARGIN, len(word) + 2)))
    console.print()
    for label, text in rows(judgement.log):
        console.print(Hanging(Text(label, "dim"), Text(one_line(text)), MARGIN))
    console.print()


# --- what failed first ------------------------------------------------------------------------------------------------------


def _show_first(console: Console, judgement: LogJudgement) -> None:
    """The likeliest, as every command shows a finding; where nothing is recognised the first error itself."""
    if first := blamed(judgement):
        finding = msgspec.structs.replace(first.finding, summary=title(judgement, first), evidence=_evidence(first))
        severity = Severity.WARN if judgement.verdict.ended_well else Severity.FAIL
        show_found(console, [(first.check, severity, finding)])
        _show_held(console, first)
        return
    verdict = judgement.verdict
    if verdict.said:
        console.print(Text("What it says of an error before that", "bold"))
        for log_line in verdict.said:
            console.print(
                Hanging(Text(), evidence_text(Evidence(quoted(log_line.text), place(judgement.log, log_line))), 2)
            )
        console.print()
    if ended := ended_before(judgement):
        console.print(Text("What its launcher says of processes that ended", "bold"))
        for each in ended:
            evidence = Evidence(how_it_ended(*each), place(judgement.log, each[0].line))
            console.print(Hanging(Text(), evidence_text(evidence), 2))
        console.print()
    if verdict.lead is None or verdict.raised:
        return
    label = (
        "The last words of the rank that fell silent"
        if verdict.lead.rank in verdict.silent
        else "The first error in it"
    )
    console.print(Text(label, "bold"))
    where = place(judgement.log, verdict.lead)
    console.print(Hanging(Text(), evidence_text(Evidence(first_words(verdict), where)), 2))
    _show_more(console, judgement)
    if verdict.exited and verdict.lead != verdict.exited.line:
        console.print(Hanging(Text(), Text(how_it_ended(verdict.exited)), 2))
    console.print()


def _evidence(opinion: Diagnosis) -> tuple[Evidence, ...]:
    return tuple(Evidence(quoted(evidence.text), evidence.source) for evidence in opinion.finding.evidence)


def _show_held(console: Console, opinion: Diagnosis) -> None:
    held = opinion.held
    if held:
        label = Text(held.standing.value, STANDING_STYLES[held.standing])
        console.print(Hanging(label, Text(one_line(held.words)), len(held.standing.value) + 2))
        console.print()


def _show_traceback(console: Console, judgement: LogJudgement, *, verbose: bool) -> None:
    """Of an error that no illness explains, always."""
    verdict, raised = judgement.verdict, judgement.verdict.raised
    explained = verdict.outcome in (RunOutcome.ILLNESS, RunOutcome.STOPPED)
    if raised is None or not raised.frames or (explained and not verbose):
        return
    console.print(
        Text("The last calls of its traceback", "bold").append(
            f"  ({place(judgement.log, raised.began)})", "dim not bold"
        )
    )
    for call in last_calls(raised):
        console.print(Hanging(Text(), Text(call), 2))
    console.print(Hanging(Text(), Text(first_words(verdict), "bold"), 2))
    _show_more(console, judgement)
    console.print()


def _show_stacks(console: Console, judgement: LogJudgement) -> None:
    """Where its processes stood, as their fault handlers wrote it."""
    found = stacks(judgement)
    if not found:
        return
    console.print(Text("Where its processes stood when they wrote their stacks", "bold"))
    for why, evidence in found[:MOST_STACKS]:
        text = Evidence(f"{f'{why}: ' if why else ''}{quoted(evidence.text)}", evidence.source)
        console.print(Hanging(Text(), evidence_text(text), 2))
    if len(found) > MOST_STACKS:
        console.print(Hanging(Text(), Text(f"and {plural(len(found) - MOST_STACKS, 'other stack')}", "dim"), 2))
    console.print()


def _show_more(console: Console, judgement: LogJudgement) -> None:
    for log_line in more(judgement):
        console.print(
            Hanging(Text(), evidence_text(Evidence(quoted(log_line.text), place(judgement.log, log_line))), 2)
        )


# --- what else it may be ----------------------------------------------------------------------------------------------------


def _show_others(console: Console, judgement: LogJudgement) -> None:
    """Hypotheses, each with the command that would decide it."""
    first = blamed(judgement)
    others = judgement.opinions[1:] if first else judgement.opinions
    if not others:
        return
    console.print(Text("Or else" if first else "It may be", "bold"))
    for diagnosis in others:
        head = Text(one_line(named(diagnosis))).append(f"  [{diagnosis.check.slug}]", "dim")
        console.print(Hanging(Text(), head, 2))
        if diagnosis.suspect.why:
            console.print(_part("why", Text(one_line(diagnosis.suspect.why))))
        for number, evidence in enumerate(lines(judgement.log, diagnosis.suspect.sightings, MOST_LINES)):
            text = evidence_text(Evidence(quoted(evidence.text), evidence.source))
            console.print(_part("" if number else "seen", text))
        if diagnosis.held:
            console.print(_part("here", Text(f"{diagnosis.held.standing.value}: {one_line(diagnosis.held.words)}")))
        elif decide := deciding(diagnosis.check, diagnosis.suspect.sightings, judgement.log):
            _show_fix(console, decide)
        else:
            console.print(_part("more", Text(f"ddpdoctor explain {diagnosis.check.slug}", "cyan")))
    console.print()


def _show_fix(console: Console, fix: Fix) -> None:
    console.print(_part("test", Text(one_line(fix.text))))
    for command in fix.commands:
        # Unwrapped, whatever the width: it is there to be copied.
        console.print(Text(" " * 12 + visible(command), "cyan"), soft_wrap=True)


def _part(label: str, text: Text) -> Hanging:
    return Hanging(Text(label, "dim"), text, MARGIN, indent=4)


# --- what is no cause -------------------------------------------------------------------------------------------------------


def _show_followed(console: Console, judgement: LogJudgement, *, verbose: bool) -> None:
    kinds = followed(judgement.log, judgement.verdict)
    if not kinds:
        return
    count = fell_with_it(judgement.log, judgement.verdict)
    console.print(Text("What only followed", "bold").append(f"  ({_ranks(count)})" if count else "", "dim not bold"))
    if verbose:
        for text, line in kinds:
            console.print(Hanging(Text(), evidence_text(Evidence(text, place(judgement.log, line))), 2))
    else:
        shown = [text for text, _ in kinds]
        console.print(Hanging(Text(), Text(_some(shown), "dim"), 2))
    console.print()


def _ranks(count: int) -> str:
    return "1 more rank fell" if count == 1 else f"{count} more ranks fell"


def _some(texts: Sequence[str], most: int = 4) -> str:
    more = f"; {len(texts) - most} more kinds, -v shows them" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def _show_attempts(console: Console, judgement: LogJudgement) -> None:
    """What the launcher started the ranks again after."""
    others = other_attempts(judgement)
    if not others:
        return
    console.print(Text("The other attempts", "bold"))
    if len(others) > MOST_ATTEMPTS:
        console.print(Hanging(Text(), Text(f"{len(others) - MOST_ATTEMPTS} more, --json has them all", "dim"), 2))
    for words, line in others[-MOST_ATTEMPTS:]:
        where = place(judgement.log, line) if line else ""
        console.print(Hanging(Text(), evidence_text(Evidence(words, where)), 2))
    console.print()


def _show_also(console: Console, judgement: LogJudgement, *, verbose: bool) -> None:
    """What the log speaks of, too, and this failure doesn't come from."""
    for words, line in own_errors(judgement.verdict):
        console.print(Hanging(Text(), evidence_text(Evidence(words, place(judgement.log, line))), 0))
        console.print()
    if not judgement.also:
        return
    if verbose:
        console.print(Text("Also in it, and not the cause of this", "bold"))
        console.print()
        show_found(console, [(diagnosis.check, Severity.INFO, diagnosis.finding) for diagnosis in judgement.also])
        return
    console.print(Text("Also in it, and not the cause of this", "bold"))
    for diagnosis in judgement.also:
        text = Text(one_line(named(diagnosis))).append(f"  [{diagnosis.check.slug}]", "dim")
        console.print(Hanging(Text(), text, 2))
    console.print()


def _show_harmless(console: Console, judgement: LogJudgement, *, verbose: bool) -> None:
    found = noise(judgement.log, judgement.catalogue)
    if found and not verbose:
        console.print(Hanging(Text(), Text(f"{harmless(judgement.log, judgement.catalogue)}; -v says why", "dim"), 0))
        console.print()
    if not found or not verbose:
        return
    console.print(Text("Harmless", "bold"))
    for one in found:
        console.print(Hanging(Text(), Text(quoted(one.text)).append(f"  ({one.times}x)", "dim"), 2))
        console.print(Hanging(Text(), Text(one_line(one.why), "dim"), 4))
    console.print()


def _show_unread(console: Console, judgement: LogJudgement) -> None:
    if more := only_counted(judgement.log):
        console.print(Hanging(Text(), Text(more, "dim"), 0))
        console.print()
    sentences = unread(judgement.log)
    if not sentences:
        return
    console.print(Text("Could not be read", "bold magenta"))
    for sentence in sentences:
        console.print(Hanging(Text(), Text(sentence), 2))
    console.print()


# --- what to do -------------------------------------------------------------------------------------------------------------


def _show_next(console: Console, judgement: LogJudgement, *, watched: bool) -> None:
    """Where the log alone leads no further."""
    steps = next_steps(judgement, watched=watched)
    if not steps:
        return
    console.print(Text("What to do next", "bold"))
    for fix in steps:
        console.print(Hanging(Text(), Text(one_line(fix.text)), 2))
        for command in fix.commands:
            console.print(Text(" " * 4 + visible(command), "cyan"), soft_wrap=True)
    console.print()


def _show_last(console: Console, judgement: LogJudgement) -> None:
    verdict = judged_as(judgement)
    line = Text().append(f"{verdict.value.upper()}  ", VERDICT_STYLES[verdict])
    line.append(f"{outcome(judgement)}.", "bold")
    if judgement.verdict.outcome is RunOutcome.NOTHING:
        line.append(f" {NOT_IN_A_LOG}.", "dim")
    if (first := blamed(judgement)) and judgement.verdict.outcome is RunOutcome.ILLNESS:
        line.append(f"\nMore on the first: ddpdoctor explain {first.check.slug}", "dim")
    console.print(Hanging(Text(), line, 0))
