"""Who lags, by what was seen of a job that stands still."""

from __future__ import annotations

import os

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.hang import WatchedRank
from ddpdoctor.facts.plan import NO_PLAN
from ddpdoctor.facts.processes import Process
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang import examining
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.watching.alarm import examine_still_job, odd_ones, who_lags
from tests.support.hangs import collective, hang, own, rank

IN_A_BRANCH = (*collective("barrier")[:2], *own("validate", 12))


@pytest.mark.parametrize(
    ("ranks", "culprits"),
    [
        ([rank(0, collective()), rank(1, own("wait", 12)), rank(2, collective())], (1,)),
        ([rank(0, collective()), rank(1, own("wait", 12))], ()),
        ([rank(number, collective()) for number in range(3)], ()),
        ([rank(0, collective(line=44)), rank(1, IN_A_BRANCH), rank(2, collective())], (1,)),
        (
            [rank(0, collective(line=44)), rank(1, own("wait", 12)), *(rank(2 + n, collective()) for n in range(3))],
            (1,),
        ),
    ],
    ids=[
        "one stands elsewhere",
        "no more here than there",
        "all in one place",
        "at two lines of a step",
        "most at one line of it",
    ],
)
def test_without_a_finding_the_odd_ones_are_named(ranks: list[WatchedRank], culprits: tuple[int, ...]) -> None:
    text, named = who_lags(Examination(Snapshot(hang=hang(*ranks)), NO_PLAN, ()))
    assert named == culprits
    assert "all_reduce" in text


def test_the_odd_one_may_stand_at_another_line_of_the_same_function() -> None:
    assert odd_ones(hang(*(rank(number, own("main", line)) for number, line in enumerate((32, 44, 32, 32))))) == (1,)


def test_what_the_job_has_loaded_of_nccl_is_known_of_an_alarm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "mapped_nccl", lambda pid, proc: (2, 31, 0))
    job = TrainingJob(name=str(os.getpid()), ranks=(Process(pid=os.getpid(), start=1, parent=0),), world_size=1)
    judged = examine_still_job(job, hang(rank(0, own("wait", 12))), catalogue(), ras=False)
    assert judged.snapshot.hang.nccl == "2.31.0"
