"""One rank of three does what ranks do: how it ended, where, and with which words, is told right and in time, and nothing is
left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.facts.smoke import RankEnding, RankRun, Smoke, StageState
from ddpdoctor.smoke_training.analysis.failure_attribution import attribute_failure
from ddpdoctor.smoke_training.training_order import Fault
from tests.support.smoke_runs import STAGES, Estate, by_rank, order, train

SECONDS = 5.0
"""What a stage may take."""

BEGINNING = ("import", "device", "rendezvous", "process group", "shutdown")


class Case(msgspec.Struct, frozen=True):
    """A fault of rank 1 and what must be said of it. stack: a function of our own, or of torch, that must be in it."""

    fault: Fault
    ending: RankEnding
    exit_code: int | None = None
    words: str = ""
    last_line: str = ""
    stack: str = ""
    process_state: str = ""

    def __str__(self) -> str:
        return f"{self.fault.kind} at {self.fault.stage}"


def case(kind: str, stage: str, ending: RankEnding, when: str = "begin", **expected: object) -> Case:
    return Case(Fault(1, stage, kind, when), ending, **expected)  # type: ignore[arg-type]


ENDS = (
    case(
        "raise",
        "import",
        RankEnding.RAISED,
        exit_code=1,
        words="RuntimeError: a fault for a test",
        stack="_end_or_wait",
    ),
    case("exit", "process group", RankEnding.EXITED, exit_code=7),
    case("kill", "training", RankEnding.KILLED, "call", exit_code=-9),
    case("raise", "training", RankEnding.RAISED, "call", exit_code=1, words="RuntimeError: a fault for a test"),
    case("kill", "import", RankEnding.KILLED, exit_code=-9),
)
HANGS = (
    case("sleep", "all_reduce", RankEnding.HUNG, "call", last_line="this rank sleeps now", stack="_end_or_wait"),
    case("stop", "training", RankEnding.HUNG, "call", process_state="stopped"),
    case("sleep", "rendezvous", RankEnding.HUNG, last_line="this rank sleeps now", stack="_end_or_wait"),
    case("sleep", "shutdown", RankEnding.HUNG, last_line="this rank sleeps now", stack="_end_or_wait"),
)


def run_all(cases: tuple[Case, ...], folder: Path) -> dict[str, tuple[Estate, Smoke]]:
    """Side by side: they mostly wait."""

    async def go() -> dict[str, tuple[Estate, Smoke]]:
        estates = [Estate(folder / str(number)) for number in range(len(cases))]
        rans = await asyncio.gather(
            *(
                train(estate, order(one.fault, seconds=SECONDS, stages=stages_of(one)))
                for estate, one in zip(estates, cases, strict=True)
            )
        )
        return {str(one): (estate, ran) for one, estate, ran in zip(cases, estates, rans, strict=True)}

    return asyncio.run(go())


def stages_of(one: Case) -> tuple[str, ...]:
    return STAGES if one.fault.stage not in BEGINNING else BEGINNING


def must_be(one: Case, ran: Smoke) -> None:
    ranks = by_rank(ran)
    culprit = ranks[1]
    assert ran.problem == ""
    blamed = attribute_failure(ran.ranks)
    assert blamed is not None
    assert ([run.rank for run in blamed.culprits], blamed.stage) == ([1], one.fault.stage)
    assert culprit.ending is one.ending
    assert culprit.exit_code == one.exit_code
    assert culprit.last is not None
    assert culprit.last.name == one.fault.stage
    assert culprit.last.state is (StageState.HUNG if one.ending is RankEnding.HUNG else StageState.FAILED)
    assert culprit.words == one.words
    assert culprit.last_line == one.last_line
    assert culprit.process_state == one.process_state
    if one.stack:
        assert any(one.stack in frame for frame in culprit.stack), culprit.stack
    for other in (ranks[0], ranks[2]):
        # What they came to is the consequence: none of them ended by itself, or without a word.
        assert other.ending in (RankEnding.RAISED, RankEnding.ENDED, RankEnding.HUNG), (other.ending, other.exit_code)


@pytest.mark.slow
def test_a_rank_that_ends_is_told_from_those_that_end_with_it(short_path: Path) -> None:
    found = run_all(ENDS, short_path)
    for end in ENDS:
        must_be(end, found[str(end)][1])


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_in_time_with_its_stack(short_path: Path) -> None:
    found = run_all(HANGS, short_path)
    for hang in HANGS:
        estate, ran = found[str(hang)]
        must_be(hang, ran)
        culprit = by_rank(ran)[1]
        assert culprit.last is not None
        # Those that wait for it may have begun the stage a moment before.
        assert SECONDS - 1 <= culprit.last.seconds <= SECONDS + 3 + estate.behind(culprit.last.seconds + SECONDS)
        for run in (by_rank(ran)[0], by_rank(ran)[2]):
            assert run.ending in (RankEnding.HUNG, RankEnding.ENDED)
            assert waits_in_torch(run), run
    # What isn't left has been there: a rank that hangs does so for seconds, so that somebody has looked meanwhile.
    for estate, _ in found.values():
        assert estate.most_processes >= 5
        assert estate.shared
        assert estate.files
    assert any(estate.ports for estate, _ in found.values())


def waits_in_torch(one: RankRun) -> bool:
    return one.stack_source == "faulthandler" and any("torch/distributed" in frame for frame in one.stack)
