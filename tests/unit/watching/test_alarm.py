"""Who lags, by what was seen of a job that stands still."""

from __future__ import annotations

import os
from itertools import starmap

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.hang import WatchedRank
from ddpdoctor.facts.plan import NO_PLAN
from ddpdoctor.facts.processes import Process, RankPlace
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang import examining
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.watching.alarm import debug_server_of, examine_still_job, who_lags
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


def test_what_the_job_has_loaded_of_nccl_is_known_of_an_alarm_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "mapped_nccl", lambda pid, proc: (2, 31, 0))
    job = TrainingJob(name=str(os.getpid()), ranks=(Process(pid=os.getpid(), start=1, parent=0),), world_size=1)
    judged = examine_still_job(job, hang(rank(0, own("wait", 12))), catalogue(), ras=False)
    assert judged.snapshot.hang.nccl == "2.31.0"


def served(number: int, **settings: str) -> Process:
    """A rank with these settings."""
    place = RankPlace(rank=number, source="RANK")
    return Process(
        pid=4000 + number, start=1, parent=1, place=place, settings=tuple(starmap(Setting, settings.items()))
    )


@pytest.mark.parametrize(
    ("ranks", "address"),
    [
        ([served(0, DDPDOCTOR_DEBUG_SERVER="25999"), served(1, DDPDOCTOR_DEBUG_SERVER="25999")], "localhost:25999"),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999", MASTER_ADDR="node0")], "node0:25999"),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999", MASTER_ADDR="fe80::1")], "'[fe80::1]:25999'"),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999")], ""),
        ([served(2, DDPDOCTOR_DEBUG_SERVER="25999", MASTER_ADDR="node0; rm -r ~")], ""),
        ([served(0, DDPDOCTOR_DEBUG_SERVER="$(id)")], ""),
        ([served(0, MASTER_ADDR="node0")], ""),
    ],
    ids=["here", "on another host", "by IPv6", "nobody says where", "no host", "no port", "without one"],
)
def test_where_the_debug_server_of_a_job_is_asked(ranks: list[Process], address: str) -> None:
    assert debug_server_of(TrainingJob(name="3990", ranks=tuple(ranks))) == address
