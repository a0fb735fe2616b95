"""What is said of ranks that failed: the message before its place in C++, and of ranks that are alike once."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.smoke import smoke_rank_failed
from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.smoke import Ending, RankRun
from ddpdoctor.findings import Finding
from ddpdoctor.knowledge.smoke_words import message
from ddpdoctor.report.smoke_words import accounts
from tests.smokes import rank_run, smoke_of_ranks

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
    assert message(words) == said


def failed(size: int, **of_rank: RankRun) -> Finding:
    fates = {rank: raises(rank) for rank in range(size)} | {int(name[1:]): one for name, one in of_rank.items()}
    (one,) = smoke_rank_failed(smoke_of_ranks(size, fates), Unknown("not asked"))
    return one


def raises(rank: int, words: str = NO_ADDRESS, **more: object) -> RankRun:
    given: dict[str, object] = {"stack": STACK, "stack_source": "its traceback"} | more
    return rank_run(rank, Ending.RAISED, "barrier", words=words, **given)


def test_summary_and_account_begin_with_the_message() -> None:
    one = failed(2)
    assert one.summary == "ranks 0 and 1 failed in barrier: RuntimeError: Unable to find address for: nope"
    assert NO_ADDRESS in one.said
    ((_, lines),) = accounts(smoke_of_ranks(1, {0: raises(0)}), {0})
    assert lines[0] == "raised in barrier: RuntimeError: Unable to find address for: nope"


def test_ranks_that_failed_alike_are_told_once() -> None:
    told = [one.text for one in failed(8).evidence]
    assert len(told) == 3
    assert told[0].startswith("rank 0 (on node07, pid 1000, cpu) failed in barrier")
    assert told[2] == "the same of ranks 1-7 (pid 1001, 1002, 1003, 1004, 1005, 1006 and 1007)"


def test_one_that_failed_elsewhere_or_with_another_last_line_is_told_apart() -> None:
    other = raises(2, stack=("broadcast (a.py:3)",))
    told = [one.text for one in failed(4, r2=other).evidence]
    assert "the same of ranks 1 and 3 (pid 1001 and 1003)" in told
    assert any(one.startswith("rank 2 was in broadcast") for one in told)
    apart = failed(8, **{f"r{rank}": raises(rank, last_line="x" * rank) for rank in range(8)})
    assert "and 4 more ranks" in [one.text for one in apart.evidence]
