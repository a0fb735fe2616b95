"""A rank that is still for some seconds may be about to go on: a failure is what waiting can't mend."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.hang import WatchedRank
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.findings import FAIL, WARN, Severity
from ddpdoctor.jobs.judging import judge_hang
from tests.hangs import (
    GETS_ITEM,
    call,
    collective,
    destroying,
    dump,
    hang,
    in_worker,
    loader,
    own,
    rank,
    rendezvous,
    saving,
    watched,
)

WAITS = rank(0, collective())
SLEEPS = rank(1, own("fetch", 31), waits_in="hrtimer_nanosleep")
RECEIVES = rank(1, own("fetch", 31), waits_in="sk_wait_data")
SENDS = rank(0, saving(), waits_in="sk_stream_wait_memory")
SLOW_WORKER = rank(1, loader(), workers=(watched(51, in_worker(GETS_ITEM), waits_in="hrtimer_nanosleep"),))
DOWNLOADS = rank(1, loader(), workers=(watched(51, in_worker(GETS_ITEM), waits_in="wait_woken"),))
STOPPED_WORKER = rank(1, loader(), workers=(watched(51, in_worker(GETS_ITEM), state="T"),))


def judged(*ranks: WatchedRank, **more: object) -> list[tuple[str, Severity]]:
    found = judge_hang(Snapshot(host="node01"), hang(*ranks, **more))
    return [(check.slug, severity) for check, severity, _ in found.findings]


@pytest.mark.parametrize(
    ("ranks", "slug", "long"),
    [
        ((WAITS, SLEEPS), "rank-busy-outside-collectives", FAIL),
        ((WAITS, RECEIVES), "rank-busy-outside-collectives", WARN),
        ((SENDS, rank(1, collective())), "slow-rank0-timeout", WARN),
        ((rank(0, saving()), rank(1, collective())), "slow-rank0-timeout", WARN),
        ((WAITS, SLOW_WORKER), "dataloader-stuck", FAIL),
        ((WAITS, DOWNLOADS), "dataloader-stuck", WARN),
        ((WAITS, rank(1, own(), state="D", waits_in="folio_wait_bit")), "rank-in-kernel", FAIL),
        ((rank(0, rendezvous()), rank(1, rendezvous())), "rendezvous-waiting", FAIL),
        ((rank(0, destroying()), rank(1, destroying())), "exit-hang", FAIL),
    ],
)  # fmt: skip
def test_what_rests_on_stillness_fails_once_it_was_watched_for_long(
    ranks: tuple[WatchedRank, ...], slug: str, long: Severity
) -> None:
    assert judged(*ranks, between=3.1) == [(slug, WARN)]
    assert judged(*ranks, between=30.4) == [(slug, long)]


@pytest.mark.parametrize(
    ("ranks", "slug"),
    [
        ((WAITS, rank(1, collective("barrier", 50))), "collective-desync"),
        ((WAITS, rank(1, own(), state="T")), "rank-stopped"),
        ((WAITS, rank(1, gone="Z: it has ended")), "peer-rank-crashed"),
        ((WAITS, rank(1, own(), waits_in="n_tty_read")), "rank-waits-for-input"),
        ((WAITS, STOPPED_WORKER), "dataloader-stuck"),
    ],
)
def test_what_waiting_can_t_mend_fails_at_once(ranks: tuple[WatchedRank, ...], slug: str) -> None:
    assert judged(*ranks, between=3.1) == [(slug, FAIL)]


@pytest.mark.parametrize(("waited", "severity"), [(5, WARN), (600, FAIL)])
def test_a_dump_may_know_how_long_the_others_have_waited(waited: int, severity: Severity) -> None:
    recorded = (
        dump(0, call(1), call(2, state="started"), written=1002.0 + waited),
        dump(1, call(1), written=1002.0 + waited),
    )
    assert judged(WAITS, SLEEPS, between=3.1, recorded=recorded) == [("rank-busy-outside-collectives", severity)]


def test_a_rank_that_is_gone_before_the_others_wait_for_it() -> None:
    gone = rank(1, gone="Z: it has ended, and its parent has not taken note")
    found = judge_hang(Snapshot(host="node01"), hang(rank(0, own("load", 31)), gone))
    [(check, severity, finding)] = found.findings
    assert (check.slug, severity) == ("peer-rank-crashed", WARN)
    assert finding.summary == "rank 1 is gone; the others will wait for it at their next collective"
    assert "zombies" not in str(finding.fixes), "rank 0 may do its last work alone"


def test_a_rank_that_saves_after_the_others_have_ended_is_well() -> None:
    gone = rank(1, gone="it ended while it was looked at")
    assert judged(rank(0, saving(), moved=1 << 20), gone) == []


def test_what_goes_over_sockets_is_not_called_nothing() -> None:
    found = judge_hang(Snapshot(host="node01"), hang(SENDS, rank(1, collective())))
    [(_, _, finding)] = found.findings
    text = " ".join(one.text for one in finding.evidence)
    assert "used no processor within 5.0 s; what it sends over sockets isn't counted" in text
    assert "did nothing" not in f"{text} {finding.cause}"
