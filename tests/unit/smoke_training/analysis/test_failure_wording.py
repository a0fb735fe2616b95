"""What is said of ranks that failed: the message before its place in C++, and of ranks that are alike once."""

from __future__ import annotations

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.checks.smoke.abnormal_ends import smoke_rank_failed
from ddpdoctor.checks.smoke.run import smoke_ended_early
from ddpdoctor.engine.registry import NotApplicable
from ddpdoctor.facts.smoke import RankEnding, RankRun, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.smoke_training.analysis.failure_wording import strip_cpp_source
from ddpdoctor.smoke_training.analysis.verdict import judge_training
from ddpdoctor.smoke_training.render_words import accounts, culprits
from tests.support.smokes import rank_run, smoke_of_ranks

GLOO = "/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
NO_ADDRESS = f"RuntimeError: [enforce fail at {GLOO}device.cc:84] ifa != nullptr. Unable to find address for: nope"
STACK = ("init_process_group (torch/distributed/distributed_c10d.py:1899)",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (NO_ADDRESS, "RuntimeError: Unable to find address for: nope"),
        (f"RuntimeError: [enforce fail at {GLOO}x.cc:8] size() == 1. ", "RuntimeError: size() == 1. "),
        (f"RuntimeError: [{GLOO}pair.cc:537] Connection closed", "RuntimeError: Connection closed"),
        ("DistNetworkError: [c10d] no answer on [::1]:29500", "DistNetworkError: [c10d] no answer on [::1]:29500"),
        ("IndexError: list[/data/a.txt:3] is odd", "IndexError: list[/data/a.txt:3] is odd"),
    ],
)
def test_the_message_comes_without_its_place_in_cpp(words: str, said: str) -> None:
    assert strip_cpp_source(words) == said


@pytest.mark.parametrize(
    ("problem", "why", "command"),
    [
        ("torch's engine was ended by SIGKILL", "the memory of the host", "ulimit -Ht; ulimit -St"),
        ("torch's engine was ended by SIGXCPU", "CPU time was used up (ulimit -t)", "ulimit -Ht; ulimit -St"),
        ("no file may be larger than 0 B here (ulimit -f)", "The size of files is limited", "ulimit -f unlimited"),
    ],
)
def test_what_ends_the_engine_is_explained(problem: str, why: str, command: str) -> None:
    facts = smoke_of_ranks(
        2, {rank: rank_run(rank, RankEnding.NEVER_CAME, pid=0) for rank in range(2)}, problem=problem
    )
    (one,) = not_started(facts)
    assert why in one.cause
    assert command in [command for fix in one.fixes for command in fix.commands]


def test_an_engine_that_is_stopped_is_explained_as_a_rank_is() -> None:
    fates = {rank: rank_run(rank, RankEnding.NEVER_CAME, pid=0, process_state="stopped") for rank in range(2)}
    problem = "no rank had begun after 90 s: torch's engine (process 12) is stopped"
    (one,) = not_started(smoke_of_ranks(2, fates, problem=problem))
    assert one.cause == "Its process is stopped: something sent it SIGSTOP or SIGTSTP."
    assert "`kill -CONT`" in one.fixes[0].text


@pytest.mark.parametrize("ending", [RankEnding.FINISHED, RankEnding.ENDED])
def test_no_rank_is_blamed_where_what_started_them_ended(ending: RankEnding) -> None:
    fates = {rank: rank_run(rank, ending, "shutdown") for rank in range(2)}
    facts = smoke_of_ranks(2, fates, problem="torch's engine was ended by SIGKILL")
    (one,) = smoke_ended_early(facts)
    assert one.summary == "The training ended early: torch's engine was ended by SIGKILL"
    assert one.rank is None
    assert culprits(facts) == frozenset()
    with pytest.raises(NotApplicable, match="smoke-ended-early"):
        list(smoke_rank_failed(facts, Unknown("not asked")))


def not_started(facts: Smoke) -> list[Finding]:
    results = judge_training(Snapshot(host="node07"), facts, catalogue()).results
    return [found for result in results if result.check.slug == "smoke-not-started" for found in result.findings]


def failed(size: int, **of_rank: RankRun) -> Finding:
    fates = {rank: raises(rank) for rank in range(size)} | {int(name[1:]): one for name, one in of_rank.items()}
    (one,) = smoke_rank_failed(smoke_of_ranks(size, fates), Unknown("not asked"))
    return one


def raises(rank: int, words: str = NO_ADDRESS, **more: object) -> RankRun:
    given: dict[str, object] = {"stack": STACK, "stack_source": "its traceback"} | more
    return rank_run(rank, RankEnding.RAISED, "barrier", words=words, **given)


def test_summary_and_account_begin_with_the_message() -> None:
    one = failed(2)
    assert one.summary == "ranks 0 and 1 failed in barrier: RuntimeError: Unable to find address for: nope"
    assert NO_ADDRESS in one.said
    ((_, lines),) = accounts(smoke_of_ranks(1, {0: raises(0)}), {0})
    assert lines[0] == "raised in barrier: RuntimeError: Unable to find address for: nope"


def test_ranks_that_failed_alike_are_told_once() -> None:
    told = [evidence.text for evidence in failed(8).evidence]
    assert len(told) == 3
    assert told[0].startswith("rank 0 (on node07, pid 1000, cpu) failed in barrier")
    assert told[2] == "the same of ranks 1-7 (pid 1001, 1002, 1003, 1004, 1005, 1006 and 1007)"


def test_one_that_failed_elsewhere_or_with_another_last_line_is_told_apart() -> None:
    other = raises(2, stack=("broadcast (a.py:3)",))
    told = [evidence.text for evidence in failed(4, r2=other).evidence]
    assert "the same of ranks 1 and 3 (pid 1001 and 1003)" in told
    assert any(one.startswith("rank 2 was in broadcast") for one in told)
    apart = failed(8, **{f"r{rank}": raises(rank, last_line="x" * rank) for rank in range(8)})
    assert "and 4 more ranks" in [evidence.text for evidence in apart.evidence]
