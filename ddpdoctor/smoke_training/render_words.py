"""The words of a smoke training's report: what was trained, how far each rank came, what could not be tested."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ddpdoctor.base.durations import duration_words
from ddpdoctor.base.text import listed, one_line, plural, signal_name
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.facts.smoke import SWITCHED_ON, RankEnding, RankRun, Smoke, StageState
from ddpdoctor.report.summary import summary
from ddpdoctor.smoke_training.analysis.failure_attribution import (
    TrainingFailureKind,
    attribute_failure,
    has_ended_early,
    lost_another,
)
from ddpdoctor.smoke_training.analysis.failure_wording import strip_cpp_source
from ddpdoctor.smoke_training.analysis.verdict import (
    has_only_scaling_failed,
    has_passed,
    nothing_ran,
    own_findings,
    smoke_of,
    verdict_of,
)
from ddpdoctor.smoke_training.render_marks import Mark, ranks_text

TRAINING = "training"
MAX_FRAMES = 4
LONG_START_SECONDS = 1.0
"""Seconds."""


def headline(examination: Examination) -> str:
    """The whole in a sentence."""
    facts = smoke_of(examination)
    found = own_findings(examination)
    if verdict_of(examination) is Verdict.UNKNOWN:
        return f"No verdict, since nothing could be run: {facts.problem or 'no rank was ever heard of'}"
    if found and verdict_of(examination) in (Verdict.FAIL, Verdict.WARN):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"{found[0][2].summary}{more}"
    if verdict_of(examination) is Verdict.FAIL:
        return _what_failed(facts)
    return what_was_done(facts)


def what_was_done(facts: Smoke) -> str:
    """ "4 ranks on 2 hosts trained over gloo on CPU in 9.3 s; 16 stages passed, 4 could not be tested here"."""
    stages = group_stages(facts)
    rest = f", {len(stages.untested)} could not be tested here" if stages.untested else ""
    stopped = f"; the burn-in was stopped by {facts.burn_in.stopped}" if facts.burn_in.stopped else ""
    return (
        f"{_who_did_what(facts)} in {facts.seconds:.1f} s; {plural(len(stages.passed), 'stage')} passed{rest}{stopped}"
    )


def _who_did_what(facts: Smoke) -> str:
    hosts = f" on {facts.nnodes} hosts" if facts.nnodes > 1 else ""
    did = "trained" if TRAINING in group_stages(facts).passed else "met"
    return f"{plural(facts.world_size, 'rank')}{hosts} {did} over {facts.backend} on {device_word(facts)}"


def device_word(facts: Smoke) -> str:
    """ "CPU", "GPU", and the GPU's name where all ranks have the same."""
    if facts.backend != "nccl":
        return "CPU"
    names = {rank.device.partition(", ")[2] for rank in facts.ranks}
    name = names.pop() if len(names) == 1 else ""
    return f"GPU ({name})" if name else "GPU"


def _what_failed(facts: Smoke) -> str:
    """Say what failed where no check says more."""
    for name in facts.stages:
        fates = fates_at(facts, name, culprits(facts))
        if fates:
            return f"{name}: {fates}"
    return facts.problem or "not every rank came to its end"


def head(examination: Examination) -> list[tuple[str, str]]:
    """(label, text): where, in which Python, how many ranks and why."""
    facts = smoke_of(examination)
    told = dict(summary(examination))
    target_python = told.get("python", "") or facts.python
    if facts.torch and "torch" not in target_python:
        target_python = f"{target_python.removesuffix(')')}, torch {facts.torch}" + (
            ")" if target_python.endswith(")") else ""
        )
    rows = [
        ("host", told.get("host", "") or examination.snapshot.host),
        ("python", target_python),
        ("GPUs", told.get("GPUs", "")),
        ("plan", facts.chosen),
        ("engine", engine_text(facts)),
        ("NCCL", nccl_text(facts)),
        ("files", facts.folder),
    ]
    return [(label, one_line(text)) for label, text in rows if text]


def engine_text(facts: Smoke) -> str:
    """Say what started the ranks, how long it took and a stage may take."""
    if not facts.ranks:
        return ""
    began = _began_after(facts)
    first = f", {began:.1f} s of it until torch was imported and the ranks began" if began >= LONG_START_SECONDS else ""
    took = f"; {facts.seconds:.1f} s in all{first}" if facts.seconds else ""
    return f"{facts.engine}{took}{_limits(facts)}"


def nccl_text(facts: Smoke) -> str:
    """Say what NCCL's own diagnosis came to, or why it was not switched on; "" where NCCL wasn't used."""
    if facts.nccl_report:
        well, remarks = (sum(mark in line for line in facts.nccl_report) for mark in ("[OK]", "[INFO]"))
        return f"its own diagnosis ran: {plural(well, 'look')} found nothing, and it made {plural(remarks, 'remark')}"
    if not facts.nccl_diagnosis or not facts.ranks:
        return ""
    if facts.nccl_diagnosis == SWITCHED_ON:
        return "its own diagnosis was switched on, and printed nothing"
    return f"its own diagnosis was not switched on: {facts.nccl_diagnosis}"


def _limits(facts: Smoke) -> str:
    """ "; a stage may take 30 s, import and rendezvous 90 s"."""
    if not facts.deadline:
        return ""
    others = [stage for stage in facts.stages if facts.seconds_for(stage) != facts.deadline]
    more = f", {listed(others)} {facts.import_seconds:g} s" if others else ""
    more += f", the burn-in {duration_words(facts.burn_in.asked)}" if facts.burn_in.asked else ""
    return f"; a stage may take {facts.deadline:g} s{more}"


def _began_after(facts: Smoke) -> float:
    """Seconds until the first rank began its first stage."""
    began = [
        rank.ended_after - sum(stage.seconds for stage in rank.stages)
        for rank in facts.ranks
        if rank.ending is not RankEnding.NEVER_CAME
    ]
    return min((seconds for seconds in began if 0 < seconds < facts.seconds), default=0.0)


# --- how far each rank came -------------------------------------------------------------------------------------------------


def culprits(facts: Smoke) -> frozenset[int]:
    """The ranks whose fault it was, as far as that can be told: all that failed alike, none where all wait alike."""
    found = attribute_failure(facts.ranks)
    if found is None or has_ended_early(facts) or found.kind is TrainingFailureKind.TOGETHER:
        return frozenset()
    return frozenset(culprit.rank for culprit in found.culprits)


def marks(facts: Smoke, blamed: Collection[int]) -> dict[int, dict[str, Mark]]:
    """Mark all planned stages, by rank. blamed: ranks that a finding names."""
    found = {}
    for rank in facts.ranks:
        open_stage = Mark.FAILED if rank.rank in blamed else Mark.WAITED
        found[rank.rank] = dict.fromkeys(facts.stages, Mark.NOT_RUN) | {
            stage.name: _MARKS.get(stage.state, open_stage) for stage in rank.stages
        }
    return found


_MARKS = {StageState.PASSED: Mark.PASSED, StageState.NOT_RUN: Mark.NOT_RUN, StageState.NOT_TESTED: Mark.NOT_TESTED}


class StageGroups(NamedTuple):
    """The planned stages in their order: those that a rank at least began, and of these those that every rank passed; those that can't
    be run here; those that no rank came to."""

    begun: list[str]
    passed: list[str]
    untested: list[str]
    not_run: list[str]


def group_stages(facts: Smoke) -> StageGroups:
    """Group the stages by how far they were run."""
    states: dict[str, set[StageState]] = {name: set() for name in facts.stages}
    for rank in facts.ranks:
        for stage in rank.stages:
            states.setdefault(stage.name, set()).add(stage.state)
    groups = StageGroups([], [], [], [])
    for name in facts.stages:
        if states[name] & _BEGUN:
            groups.begun.append(name)
        elif StageState.NOT_TESTED in states[name]:
            groups.untested.append(name)
        else:
            groups.not_run.append(name)
        if states[name] == {StageState.PASSED}:
            groups.passed.append(name)
    return groups


_BEGUN = {StageState.PASSED, StageState.FAILED, StageState.HUNG}


def not_tested(facts: Smoke) -> dict[str, list[str]]:
    """Why stages can't be run here, to their names; where only some ranks say so, which."""
    who: dict[tuple[str, str], list[int]] = {}
    for rank in facts.ranks:
        for stage in rank.stages:
            if stage.state is StageState.NOT_TESTED:
                who.setdefault((stage.words or "no reason was given", stage.name), []).append(rank.rank)
    reasons: dict[str, list[str]] = {}
    for (reason, name), ranks in who.items():
        where = "" if len(ranks) == len(facts.ranks) else f" ({ranks_text(ranks)})"
        names = reasons.setdefault(one_line(reason), [])
        names.append(one_line(name) + where)
    return reasons


def slowest(facts: Smoke, name: str) -> str:
    """Say what the stage took on the slowest rank: "3.42 s"."""
    seconds = [stage.seconds for rank in facts.ranks for stage in rank.stages if stage.name == name]
    return f"{max(seconds, default=0.0):.2f} s"


def note(facts: Smoke, name: str, blamed: Collection[int]) -> str:
    """Note on a stage who failed in it, else what all ranks say of it."""
    fates = fates_at(facts, name, blamed)
    if fates:
        return fates
    words = {
        stage.words
        for rank in facts.ranks
        for stage in rank.stages
        if stage.name == name and stage.state is StageState.PASSED
    }
    return one_line(words.pop()) if len(words) == 1 else ""


def fates_at(facts: Smoke, name: str, blamed: Collection[int]) -> str:
    """ "rank 1 raised; ranks 0,2-3 were still in it"; "" where all passed that stage."""
    fates: dict[tuple[bool, str], list[int]] = {}
    for rank in facts.ranks:
        for stage in rank.stages:
            if stage.name == name and stage.state in (StageState.FAILED, StageState.HUNG):
                is_blamed = rank.rank in blamed
                fates.setdefault((not is_blamed, _fate(rank, blamed=is_blamed)), []).append(rank.rank)
    in_order = sorted(fates.items(), key=lambda item: item[0][0])
    return "; ".join(f"{ranks_text(ranks)} {fate}" for (_, fate), ranks in in_order)


def _fate(rank: RankRun, *, blamed: bool) -> str:
    """Say what became of a rank. blamed: it is one of those whose fault it was."""
    if rank.ending is RankEnding.KILLED:
        return f"was killed by {signal_name(rank.exit_code or 0)}"
    if rank.ending is RankEnding.EXITED:
        return f"exited with code {rank.exit_code}"
    if rank.ending is RankEnding.HUNG:
        return "hung" if blamed else "waited till the time was up"
    if rank.ending is RankEnding.ENDED:
        if rank.last is None:
            return "was ended"
        return "was ended in it" if blamed else "waited"
    if rank.ending is RankEnding.WRONG:
        return "had a wrong result" if blamed else "noticed"
    return "lost another rank" if lost_another(rank) else "raised"


# --- each rank --------------------------------------------------------------------------------------------------------------


def ending_text(rank: RankRun, blamed: Collection[int]) -> str:
    """ "raised in all_reduce after 3.1 s"."""
    if rank.ending is RankEnding.FINISHED:
        return f"finished after {rank.ended_after:.1f} s"
    after = "" if rank.ending is RankEnding.NEVER_CAME else f" after {rank.ended_after:.1f} s"
    return f"{_fate_and_place(rank, blamed)}{after}"


def _fate_and_place(rank: RankRun, blamed: Collection[int]) -> str:
    if rank.ending is RankEnding.NEVER_CAME:
        return "was never heard of"
    where = f"in {one_line(rank.last.name)}" if rank.last else "before its first stage"
    return f"{_fate(rank, blamed=rank.rank in blamed)} {where}"


def accounts(facts: Smoke, blamed: Collection[int]) -> list[tuple[str, tuple[str, ...]]]:
    """(ranks, lines): what those say that didn't finish, where several say the same once; those that are to blame first."""
    said: dict[tuple[str, ...], list[int]] = {}
    for rank in facts.ranks:
        if rank.ending is not RankEnding.FINISHED:
            said.setdefault(_account(rank, blamed), []).append(rank.rank)
    in_order = sorted(said.items(), key=lambda item: not any(rank in blamed for rank in item[1]))
    return [(ranks_text(ranks), lines) for lines, ranks in in_order]


def _account(rank: RankRun, blamed: Collection[int]) -> tuple[str, ...]:
    if rank.ending is RankEnding.NEVER_CAME:
        return (_fate_and_place(rank, blamed),)
    lines = [
        f"{_fate_and_place(rank, blamed)}: {strip_cpp_source(rank.words)}".rstrip(": "),
        f"at: {rank.step}" if rank.step else "",
        f"the last line that it printed: {rank.last_line}" if rank.last_line else "",
        rank.process_state,
        *(f"in {frame}" for frame in rank.stack[:MAX_FRAMES]),
    ]
    return tuple(one_line(line) for line in lines if line)


# --- the last line ----------------------------------------------------------------------------------------------------------


def counts(facts: Smoke) -> str:
    """ "6 stages passed, 1 failed, 9 were not run, 4 could not be tested here."."""
    if nothing_ran(facts):
        return ""
    stages = group_stages(facts)
    done, missed, idle = len(stages.passed), len(stages.not_run), len(stages.untested)
    failed = len(facts.stages) - done - missed - idle
    parts = [f"{plural(done, 'stage')} passed"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{missed} {'was' if missed == 1 else 'were'} not run"] if missed else []
    parts += [f"{idle} could not be tested here"] if idle else []
    return ", ".join(parts) + "."


def outcome(examination: Examination) -> str:
    """The verdict in words."""
    verdict, facts = verdict_of(examination), smoke_of(examination)
    if verdict is Verdict.UNKNOWN:
        return "No verdict: nothing could be run"
    if verdict is Verdict.FAIL and not facts.ranks:
        return "Nothing was started"
    if has_only_scaling_failed(examination):
        return "The training passed, but not at every number of ranks"
    if verdict is Verdict.FAIL and facts.burn_in.asked and has_passed(facts):
        return "The training came to its end, but not without faults"
    if verdict is Verdict.FAIL:
        return "No rank could be started" if nothing_ran(facts) else "The training did not pass"
    return f"{_who_did_what(facts)}" + (", with a warning" if verdict is Verdict.WARN else "")
