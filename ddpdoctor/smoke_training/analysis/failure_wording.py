"""Words on the ranks of a smoke training: what each came to, which waited where, and the evidence of a failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ddpdoctor.base.findings import Evidence
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import capital, clip, listed, plural, ranks_named, signal_name
from ddpdoctor.facts.smoke import RankEnding, RankRun, Smoke
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.smoke_training.analysis.failure_attribution import TrainingFailure, TrainingFailureKind, lost_another
from ddpdoctor.smoke_training.analysis.rank_position import is_waiting, stage_of

LOG_WORDS_BY_EXIT_CODE: Final = {
    -9: "failed (exitcode: -9) Signal 9 (SIGKILL) received by PID",
    -7: "killed by signal: Bus error",
}
"""Ends without a word, as a launcher's log tells them."""

CPP_SOURCE: Final = compile_lazily(
    r"\[enforce fail at [^\]\s]+:\d+\] (?:\S[^\n]{0,200}?\. (?=[A-Z]))?|\[[\w./+-]+\.(?:cc|cpp|cu|h|hpp):\d+\] ?"
)
"""The place in a library's own C++, with the condition that wasn't met, before its message: of use to its authors, and so long that
nothing may be left of the message itself."""

MAX_FRAMES: Final = 6
VERBS: Final = {
    (True, True): ("waits", "wait"), (True, False): ("waited", "waited"),
    (False, True): ("is", "are"), (False, False): ("was", "were"),
}  # fmt: skip
"""Singular and plural, by whether the ranks wait for another, and whether they still do."""
MAX_SHOWN_GROUPS: Final = 4
"""Groups of ranks of which the same is said."""


def name_ranks(runs: Sequence[RankRun], smoke: Smoke) -> str:
    """ "rank 1"; with several hosts "rank 9 (node02)", "ranks 8-15 (node02)"."""
    hosts = list(dict.fromkeys(run.host for run in runs if run.host))
    where = f" ({listed(hosts, most=3)})" if smoke.nnodes > 1 and hosts else ""
    return ranks_named(run.rank for run in runs) + where


def describe_place(run: RankRun) -> str:
    """Name the place of a rank: its stage, or the step that says more: "all_reduce of 4 MiB", "training (training step 3 of 10)"."""
    stage = stage_of(run)
    if not run.step or run.step == stage:
        return stage
    return run.step if run.step.startswith(stage) else f"{stage} ({run.step})"


def strip_cpp_source(words: str) -> str:
    """An error's message without the places in C++ that it came from."""
    return CPP_SOURCE.sub("", words)


def describe_ending(run: RankRun, *, several: bool = False) -> str:
    """Say how a rank ended, as the end of a sentence that begins with the rank, or with several ranks."""
    where, was, words = describe_place(run), "were" if several else "was", strip_cpp_source(run.words)
    if run.ending is RankEnding.ENDED and run.last is None:
        return f"{was} ended before {'their' if several else 'its'} first stage"
    ways = {
        RankEnding.FINISHED: "finished",
        RankEnding.RAISED: f"{'lost another rank' if lost_another(run) else 'failed'} in {where}: {words}",
        RankEnding.WRONG: f"found a wrong result in {where}: {words}",
        RankEnding.EXITED: f"ended with exit code {run.exit_code} in {where}, without a word",
        RankEnding.KILLED: f"{was} killed by {signal_name(run.exit_code or 0)} in {where}",
        RankEnding.HUNG: f"{was} still in {where} when the time was up",
        RankEnding.ENDED: f"{was} in {where} when all were ended",
        RankEnding.NEVER_CAME: f"{was} never heard of",
    }
    return ways[run.ending]


def words_of(runs: Iterable[RankRun]) -> str:
    """All words of these ranks, and their ends as a log would tell them: for the log signs of the checks."""
    words = [
        text
        for run in runs
        for text in (run.words, run.last_line, LOG_WORDS_BY_EXIT_CODE.get(run.exit_code or 0, ""))
        if text
    ]
    return "\n".join(dict.fromkeys(words))


def describe_others(found: TrainingFailure, smoke: Smoke) -> str:
    """ "Ranks 0 and 2 wait for it in all_reduce of 4 B." "" where nobody waited."""
    waited = [
        run
        for run in found.others
        if run.ending is RankEnding.HUNG or (run.ending is RankEnding.ENDED and run.last) or lost_another(run)
    ]
    groups: dict[tuple[bool, str], list[RankRun]] = {}
    for run in waited:
        groups.setdefault((_is_waiting_for_culprits(run, found), describe_place(run)), []).append(run)
    if not groups:
        return ""
    it = "it" if len(found.culprits) == 1 else "them"
    hung = all(run.ending is RankEnding.HUNG for run in waited)
    parts = []
    for (waits_for, where), runs in sorted(groups.items(), key=lambda group: -len(group[1])):
        verb = VERBS[waits_for, hung][len(runs) > 1]
        parts.append(f"{name_ranks(runs, smoke)} {verb}{f' for {it}' if waits_for else ''} in {where}")
    text = listed(parts, most=3)
    return f"{capital(text)}."


def _is_waiting_for_culprits(run: RankRun, found: TrainingFailure) -> bool:
    """Whether a rank waits for the culprits; of one that hangs it must be known."""
    return found.kind is not TrainingFailureKind.HUNG or is_waiting(run) or lost_another(run)


def evidence_of_failure(found: TrainingFailure, smoke: Smoke) -> tuple[Evidence, ...]:
    """Evidence of what the culprits came to, their last lines and stacks; then of the others in groups."""
    groups: dict[tuple[object, ...], list[RankRun]] = {}
    for culprit in found.culprits:
        groups.setdefault(_likeness(culprit), []).append(culprit)
    in_order = list(groups.values())
    more = sum(map(len, in_order[MAX_SHOWN_GROUPS:]))
    return (
        *(
            of_rank
            for runs in in_order[:MAX_SHOWN_GROUPS]
            for of_rank in _of_ranks(runs, smoke, vanished=found.kind is TrainingFailureKind.FAILED)
        ),
        *((told(smoke, "ranks", f"and {plural(more, 'more rank')}"),) if more else ()),
        *_of_others(found.others, smoke),
    )


def _likeness(run: RankRun) -> tuple[object, ...]:
    """A key that is the same for ranks of which the same would be said but for numbers, as of GPUs, pids and addresses. Of wrong
    results the numbers are what matters."""
    said = [describe_ending(run), run.last_line]
    if run.ending is not RankEnding.WRONG:
        said = [re.sub(r"0x[0-9a-f]+|\d+", "N", text) for text in said]
    return *said, run.stack, run.process_state


def _of_ranks(runs: Sequence[RankRun], smoke: Smoke, *, vanished: bool) -> list[Evidence]:
    """Evidence of ranks that are alike, of the first in full."""
    first, *others = runs
    found = _of_rank(first, smoke, vanished=vanished)
    if others:
        pids = listed((run.pid for run in others if run.pid), most=8)
        found.append(told(smoke, "ranks", f"the same of {name_ranks(others, smoke)}{f' (pid {pids})' if pids else ''}"))
    return found


def _of_rank(run: RankRun, smoke: Smoke, *, vanished: bool) -> list[Evidence]:
    who = f"rank {run.rank}"
    details = [f"on {run.host}" if run.host else "", f"pid {run.pid}" if run.pid else "", run.device]
    how = (
        f"was gone in {describe_place(run)}, without a word"
        if vanished and run.ending is RankEnding.ENDED
        else describe_ending(run)
    )
    when = "" if run.ending is RankEnding.NEVER_CAME else f", after {run.ended_after:.1f} s"
    found = [told(smoke, "ranks", f"{who} ({', '.join(filter(None, details))}) {how}{when}")]
    if run.process_state:
        found.append(Evidence(f"{who} is {run.process_state}", "/proc/PID/stat, wchan"))
    if run.last_line:
        found.append(Evidence(f'the last line of {who}: "{run.last_line}"', "its standard output and error"))
    if run.stack:
        found.append(_stack(run, MAX_FRAMES))
    return found


def _stack(run: RankRun, frames: int) -> Evidence:
    was = "was" if run.ending in (RankEnding.RAISED, RankEnding.WRONG) else "is"
    return Evidence(f"rank {run.rank} {was} in {' <- '.join(run.stack[:frames])}", run.stack_source)


def _of_others(runs: Sequence[RankRun], smoke: Smoke) -> Iterable[Evidence]:
    groups: dict[str, list[RankRun]] = {}
    for run in runs:
        # Addresses and ports differ, and say nothing here.
        groups.setdefault(re.sub(r"\[[0-9a-f.:]+\]:\d+", "", describe_ending(run)), []).append(run)
    for members in sorted(groups.values(), key=lambda group: -len(group))[:MAX_SHOWN_GROUPS]:
        text = describe_ending(members[0], several=len(members) > 1)
        held = sorted({member.process_state for member in members if member.process_state})
        text += f" ({', '.join(held)})" if held else ""
        yield told(smoke, "ranks", clip(f"{name_ranks(members, smoke)} {text}", 300))
        if members[0].stack:
            yield _stack(members[0], 2)
