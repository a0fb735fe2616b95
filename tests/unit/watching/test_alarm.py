"""Who lags, by what was seen of a job that stands still."""

from __future__ import annotations

import pytest

from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.hang import WatchedRank
from ddpdoctor.facts.plan import NO_PLAN
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.watching.alarm import who_lags
from tests.support.hangs import collective, hang, own, rank


@pytest.mark.parametrize(
    ("ranks", "culprits"),
    [
        ([rank(0, collective()), rank(1, own("wait", 12)), rank(2, collective())], (1,)),
        ([rank(0, collective()), rank(1, own("wait", 12))], ()),
        ([rank(number, collective()) for number in range(3)], ()),
    ],
    ids=["one stands elsewhere", "no more here than there", "all in one place"],
)
def test_without_a_finding_the_odd_ones_are_named(ranks: list[WatchedRank], culprits: tuple[int, ...]) -> None:
    text, named = who_lags(Examination(Snapshot(hang=hang(*ranks)), NO_PLAN, ()))
    assert named == culprits
    assert "all_reduce" in text
