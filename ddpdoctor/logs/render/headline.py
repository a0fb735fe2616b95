"""The first and the last sentence of a report on a log: what failed, and how sure that is."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.text import capital, clip, listed, one_line, plural, ranks_named
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LoggedException
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.script_errors import BlamedCode, fault_of, known_meaning, module_missing, server_unreached
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, misses_what_it_was_to_make
from ddpdoctor.logs.diagnosis import HostVerdict, LogJudgement
from ddpdoctor.logs.exceptions import is_cut, raiser_of
from ddpdoctor.logs.launch_failures import gives_up
from ddpdoctor.logs.render.words import first_words, how_it_ended, more, named, place, quoted, who_first, within

_ENDS: Final = {
    RunOutcome.STOPPED: "The run was ended from outside",
    RunOutcome.UNRECOGNISED: "No verdict: something failed that is not known here",
    RunOutcome.EFFECTS_ONLY: "No verdict: the cause is not in what was read",
}


def headline(judgement: LogJudgement) -> str:
    """The whole in a sentence."""
    here = one_line(judgement.examination.snapshot.host) or "this host"
    contradicted = f"; but the facts of {here} contradict it" if judgement.is_contradicted else ""
    return f"{_told(judgement)}{_of_attempts(judgement)}{contradicted}"


def _told(judgement: LogJudgement) -> str:
    log, verdict = judgement.log, judgement.verdict
    if judgement.stops_without_a_word:
        return f"{_nothing(judgement)}, but it stops before what good runs go on with{_first_new(judgement)}"
    if verdict.outcome is RunOutcome.NOTHING:
        return f"{_nothing(judgement)}{_survived(log, verdict)}"
    if verdict.outcome is RunOutcome.EFFECTS_ONLY:
        return _only_followed(judgement)
    who, words = who_first(log, verdict), clip(first_words(verdict))
    if verdict.outcome is RunOutcome.UNRECOGNISED:
        return f"{who}: {words}{_adds(judgement)}; no sign that is known here says why"
    if verdict.outcome is RunOutcome.USER_ERROR and verdict.raised:
        sure = all(opinion.suspect.sure for opinion in judgement.opinions[:1])
        return f"{who}, {_whose_fault(verdict.raised, log, sure=sure)}: {words}"
    first = judgement.blamed
    summary = named(first) if first else first_words(verdict)
    doubt = doubtful(judgement)
    if verdict.ended_well:
        return f"Nothing says that the run failed{f'; {doubt}' if doubt else ', and yet'}: {within(summary)}"
    if first and first.suspect.compared:
        return f"{capital(first.suspect.why)}: {within(summary)}"
    if doubt:
        return f"{who}; {doubt}: {within(summary)}"
    if verdict.outcome is RunOutcome.STOPPED:
        return summary
    new = _first_new(judgement) if verdict.outcome is RunOutcome.USER_ERROR and judgement.new_before_it else ""
    return f"{who}: {within(summary)}{new}"


def _whose_fault(raised: LoggedException, log: Log, *, sure: bool) -> str:
    fault = fault_of(raised, log)
    perhaps = "" if sure else "most likely " if fault is BlamedCode.UNKNOWN else "perhaps "
    if server_unreached(raised):
        return f"{perhaps}at a server that can't be reached"
    if fault is BlamedCode.LIBRARY and not sure:
        return f"of an error within {raiser_of(raised)}; perhaps the script uses it wrongly"
    return f"{perhaps}of an ordinary error in the script"


def _only_followed(judgement: LogJudgement) -> str:
    log, verdict, exited = judgement.log, judgement.verdict, judgement.verdict.exited
    said = "This log tells" if len(log.files) == 1 else "These logs tell"
    told = f"{said} what followed, and not what failed first"
    if verdict.silent:
        told = f"{capital(ranks_named(verdict.silent))} {_how_silent(log, verdict, judgement.catalogue)}"
    elif exited and not (verdict.raised or verdict.effects or exited.error):
        told = f"{capital(how_it_ended(exited))}; why, {'this log doesn' if len(log.files) == 1 else 'these logs don'}'t say"
    first = next(iter(judgement.opinions), None)
    if first and first.suspect.compared:
        told = f"{told}; {first.suspect.why}" if verdict.silent else capital(first.suspect.why)
    elif first:
        told = f"{told}; perhaps: {within(named(first))}"
    if verdict.said:
        return f"{told}; before that it says: {clip(quoted(verdict.said[0].text))}"
    return f"{told}{_first_new(judgement)}"


def _how_silent(log: Log, verdict: LogVerdict, catalogue: Catalogue) -> str:
    """A rank of which there is not a word has not fallen silent; where the others counted who came, it never did."""
    if any(last_words.rank in verdict.silent for last_words in log.last):
        return "fell silent, and the others tell only what followed"
    one_rank = len(verdict.silent) == 1
    counted = any(effect.words.get("came") for effect in verdict.effects)
    if counted and {effect.slug for effect in verdict.effects} == {catalogue.slug_for(LogTopic.MISSING_NODE)}:
        return f"never came, and the others waited for {'it' if one_rank else 'them'} in vain"
    return f"{'says' if one_rank else 'say'} nothing at all, and the others tell only what followed"


def _adds(judgement: LogJudgement) -> str:
    """What other lines say of an error that no sign knows."""
    verdict = judgement.verdict
    if verdict.raised and is_cut(verdict.raised) and verdict.said:
        return f"; before that it says: {clip(quoted(verdict.said[-1].text))}"
    beside = [line for line in more(judgement)[:1] if not gives_up(line.text)]
    return f"; it adds: {clip(quoted(beside[0].text))}" if beside else ""


def _first_new(judgement: LogJudgement) -> str:
    """ "; new in this run: lane 3 is degraded"."""
    found = judgement.comparison.new_errors if judgement.comparison else ()
    return f"; new in this run: {clip(quoted(found[0].text))}" if found else ""


def doubtful(judgement: LogJudgement) -> str:
    """ "perhaps", "most likely", where neither the log nor a host's facts prove what the first suspicion says; else ""."""
    verdict = judgement.verdict
    # Of an exception it is told whose fault it is.
    judged = verdict.outcome is RunOutcome.ILLNESS or (verdict.outcome is RunOutcome.USER_ERROR and not verdict.raised)
    first = judgement.blamed if judged else None
    if first is None or first.suspect.sure or first.stands(HostVerdict.CONFIRMED):
        return ""
    return "most likely" if len(judgement.opinions) > 1 else "perhaps"


def _nothing(judgement: LogJudgement) -> str:
    """That nothing was found, of several attempts or runs in the last one, which is not to say that all is well."""
    log, others = judgement.log, judgement.verdict.elsewhere
    failed = sum(map(failed_itself, others))
    if failed and log.ended:
        do = "does" if failed == 1 else "do"
        return f"The last run speaks of no failure; {plural(failed, 'earlier run')} in this log {do}"
    if others and not log.ended:
        before = f"; before it {'one' if failed == 1 else failed} failed" if failed else ""
        return f"The last of {len(others) + 1} attempts speaks of no failure{before}"
    if any(file.problem for file in log.files):
        return "What could be read speaks of no failure"
    return f"Nothing in {'this log' if len(log.files) == 1 else 'these logs'} speaks of a failure"


def _survived(log: Log, verdict: LogVerdict) -> str:
    """ "; one line speaks of an error, and the run went on: run.log:17"."""
    if not verdict.survived:
        return ""
    many = "one line speaks of an error" if len(verdict.survived) == 1 else "errors are spoken of"
    return f"; {many}, and the run went on: {listed((place(log, line) for line in verdict.survived), 3)}"


def failed_itself(verdict: LogVerdict) -> bool:
    """Whether a run, or an attempt, is known to have failed: of one that ended well there may be a warning."""
    return verdict.outcome is not RunOutcome.NOTHING and not verdict.ended_well


def _of_attempts(judgement: LogJudgement) -> str:
    """ "; that was the last of 3 attempts", or "; 2 earlier runs in this log failed", between which others may have come to their end."""
    verdict = judgement.verdict
    if not verdict.elsewhere or verdict.outcome is RunOutcome.NOTHING:
        return ""
    others = [log_verdict.attempt for log_verdict in verdict.elsewhere]
    count = len(others) + 1
    if max(others) < verdict.attempt and judgement.log.ended:
        failed = sum(map(failed_itself, verdict.elsewhere))
        return f"; {plural(failed, 'earlier run')} in this log failed" if failed else ""
    if max(others) < verdict.attempt:
        return f"; that was the last of {count} attempts"
    kind = "run" if judgement.log.ended else "attempt"
    is_first = min(others) > verdict.attempt
    which = f"the first of {count} {kind}s" if is_first else f"{kind} {verdict.attempt + 1} of {count}"
    behind = [log_verdict for log_verdict in verdict.elsewhere if log_verdict.attempt > verdict.attempt]
    missed = any(misses_what_it_was_to_make(log_verdict, verdict) for log_verdict in behind)
    return (
        f"; that was {which}, and those behind it {'lack what it should have written' if missed else 'name no cause'}"
    )


# --- the end ----------------------------------------------------------------------------------------------------------------


def outcome(judgement: LogJudgement) -> str:
    """The last line's sentence."""
    verdict, cause = judgement.verdict, judgement.cause_in_script
    if verdict.outcome is RunOutcome.ILLNESS:
        return _how_sure(judgement)
    if verdict.outcome is RunOutcome.USER_ERROR:
        if verdict.raised and (module := module_missing(verdict.raised)):
            return f"The Python that ran the script doesn't find {module}; nothing else speaks of an illness"
        if verdict.raised and server_unreached(verdict.raised):
            return "A server that the script asks doesn't answer; nothing speaks of a mistake in the script"
        if judgement.new_before_it:
            return "The script ended itself, and doesn't say why; what is new in this run may be the reason"
        if judgement.opinions and not judgement.opinions[0].suspect.sure:
            return _not_surely_the_scripts(verdict.raised, judgement.log)
        if verdict.raised and known_meaning(verdict.raised, judgement.log):
            return (
                "What those words mean is told above; nothing else speaks of an illness of the machine or its packages"
            )
        return "An ordinary error of the script; nothing speaks of an illness of the machine or its packages"
    if verdict.outcome is RunOutcome.EFFECTS_ONLY and cause:
        return f"The log doesn't name the cause; {cause.finding.place} does"
    if judgement.stops_without_a_word:
        return "No verdict: it stops earlier than good runs, and doesn't say why"
    return _ENDS.get(verdict.outcome) or _nothing(judgement)


def _not_surely_the_scripts(raised: LoggedException | None, log: Log) -> str:
    if raised and fault_of(raised, log) is BlamedCode.LIBRARY:
        package = raiser_of(raised)
        return f"The script's use of {package} is at fault, or {package} itself: the log alone can't tell"
    return "Most likely an ordinary error of the script; the log alone can't prove it"


def _how_sure(judgement: LogJudgement) -> str:
    """Whether an illness is proven, and by what."""
    first, count = judgement.blamed, len(judgement.opinions)
    if judgement.verdict.ended_well:
        return "A warning; nothing in it says that the run failed"
    if judgement.is_contradicted:
        return "The log's words and the facts of the host contradict each other"
    if first and first.suspect.sure:
        others = "another one" if count == 2 else f"{count - 1} others"
        return f"The log names the likeliest cause, and {others}" if count > 1 else "The log names the cause"
    if first and first.stands(HostVerdict.CONFIRMED):
        return "The log doesn't prove it alone; the facts of the host do"
    if cause := judgement.cause_in_script:
        return f"The log doesn't prove it alone; {cause.finding.place} does"
    return f"The log alone can't decide between these {count}" if count > 1 else "The log alone can't prove it"
