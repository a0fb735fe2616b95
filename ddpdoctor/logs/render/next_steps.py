"""Advice on what to do next, where the log alone leads no further."""

from __future__ import annotations

import re
from signal import Signals
from typing import Final

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.text import one_line, ranks_named
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.logs.analyze.endings import signal_of
from ddpdoctor.logs.analyze.error_meanings import meaning_of
from ddpdoctor.logs.analyze.related_lines import nccl_may_say_more
from ddpdoctor.logs.analyze.sightings import host_named
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome
from ddpdoctor.logs.diagnosis import LogJudgement
from ddpdoctor.logs.exceptions import exception_in, is_bare, is_mistake, is_of_parent
from ddpdoctor.logs.launch_failures import is_of_launching
from ddpdoctor.logs.render.words import first_words, more

_KILLED: Final = re.compile(r"(?:\S+: )?Killed\b")


def _is_of_one_process(log: Log) -> bool:
    return not log.ranks and not log.launcher and not log.world_size and len(log.files) == 1


def _host(judgement: LogJudgement) -> str:
    lead = judgement.verdict.lead
    if lead and lead.host:
        return host_named(one_line(lead.host))
    return "its host" if _is_of_one_process(judgement.log) else "the host of that rank"


def next_steps(judgement: LogJudgement, *, watched: bool = False) -> tuple[Fix, ...]:
    """List what leads on where the log alone doesn't. watched: it is that of `ddpdoctor run` already."""
    verdict, log = judgement.verdict, judgement.log
    if verdict.outcome is RunOutcome.UNRECOGNISED:
        return _of_the_unknown(judgement, _host(judgement))
    if (
        verdict.outcome is RunOutcome.USER_ERROR
        and verdict.raised
        and is_bare(verdict.raised)
        and not is_mistake(verdict.raised)
    ):
        return (Fix(f"Where the script isn't at fault, look at {_host(judgement)}", ("ddpdoctor check",)),)
    if not judgement.names_no_cause:
        return ()
    steps = []
    if verdict.raised and is_of_parent(verdict.raised):
        text = "The process that started this one failed, or ended, before it had handed everything over: its own traceback says why"
        steps.append(Fix(text))
    if not _is_of_one_process(log):
        text = f"Read the logs of all ranks and hosts together{_silent(judgement)}"
        steps.append(Fix(text, ("ddpdoctor diagnose-log FOLDER",)))
    steps += [*_left_early(judgement), _kernel_knows(judgement.catalogue)]
    if not watched:
        steps.append(
            Fix("So that the next run keeps every rank's words, start it with", ("ddpdoctor run -- torchrun ...",))
        )
    return tuple(steps)


def _of_the_unknown(judgement: LogJudgement, there: str) -> tuple[Fix, ...]:
    verdict = judgement.verdict
    words = first_words(verdict)
    texts = [words, *(log_line.text for log_line in more(judgement))]
    if any(map(is_of_launching, texts)):
        return ()
    named = verdict.lead and exception_in(msgspec.structs.replace(verdict.lead, text=words))
    if named and (meaning := meaning_of(named, judgement.log)):
        return meaning.fixes
    steps = [_kernel_knows(judgement.catalogue)] if _was_killed(verdict) else []
    steps.append(Fix(f"Look at {there}", ("ddpdoctor check",)))
    if nccl_may_say_more(verdict.lead, verdict.raised, judgement.log, words):
        steps.append(Fix("Let the next run say more", ("export NCCL_DEBUG=INFO",)))
    text = (
        "If it turns out to be an illness of the machine, its network or its packages, tell ddpdoctor's maintainers: the log's "
        "lines around that place, and"
    )
    return (*steps, Fix(text, ("ddpdoctor check --markdown",)))


def _kernel_knows(catalogue: Catalogue) -> Fix:
    return Fix(
        "A rank that was killed could write nothing: its host's kernel knows",
        (f"ddpdoctor check --select {catalogue.slug_for(Signals.SIGKILL)}",),
    )


def _was_killed(verdict: LogVerdict) -> bool:
    by_signal = verdict.exited is not None and signal_of(verdict.exited) == Signals.SIGKILL
    return by_signal or bool(verdict.lead and not verdict.raised and _KILLED.match(verdict.lead.text))


def _left_early(judgement: LogJudgement) -> tuple[Fix, ...]:
    """Advise where the launcher had nobody to end: a rank that is gone may have come to its end by itself, with fewer batches."""
    ended, catalogue = judgement.log.exited, judgement.catalogue
    effects = {effect.slug for effect in judgement.verdict.effects}
    nobody_told = ended and not any(process_exit.told_to for process_exit in ended)
    if not nobody_told or effects != {catalogue.slug_for(HangCause.CRASHED)}:
        return ()
    text = "The launcher ended nobody, so another rank may have come to its end first: count each rank's batches before the loop"
    return (Fix(text, (f"ddpdoctor explain {catalogue.slug_for(HangCause.UNEVEN)}",)),)


def _silent(judgement: LogJudgement) -> str:
    """Name the ranks that say nothing in what was read, where that is known."""
    log = judgement.log
    missing = {*range(log.world_size or 0), *judgement.verdict.silent} - {*log.ranks} if log.ranks else ()
    say = "says" if len(missing) == 1 else "say"
    return f", first those of {ranks_named(missing)}, which {say} nothing in what was read" if missing else ""
