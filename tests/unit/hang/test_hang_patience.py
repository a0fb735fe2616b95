"""A rank that is still for some seconds may be about to go on: a failure is what waiting can't mend."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, WARN, Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.hang import NOT_FOUND, WatchedRank
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.judging import judge_hang
from ddpdoctor.hang.render_words import outcome
from tests.support.hangs import (
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
    found = judge_hang(Snapshot(host="node01"), hang(*ranks, **more), catalogue())
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


@pytest.mark.parametrize(
    ("ranks", "slug", "said"),
    [
        ((rank(0, collective(), moved=40), SLEEPS), "rank-busy-outside-collectives", "rank 0: moved 40 B"),
        ((rank(0, collective(), wakes=1), SLEEPS), "rank-busy-outside-collectives", "rank 0: its main thread woke up 1 time"),
        ((WAITS, rank(1, own("fetch", 31), waits_in="hrtimer_nanosleep", wakes=3)), "rank-busy-outside-collectives", "rank 1: its main thread woke up 3 times"),
        ((WAITS, SLEEPS, rank(2, own("other", 9), cores=0.4)), "rank-busy-outside-collectives", "rank 2: used 0.4 cores"),
        ((rank(0, collective(), wakes=2), rank(1, collective("barrier", 50))), "collective-desync", "rank 0: its main thread woke up 2 times"),
        ((rank(0, destroying()), rank(1, destroying(), moved=9)), "exit-hang", "rank 1: moved 9 B"),
    ],
)  # fmt: skip
def test_whatever_moved_makes_it_slow_and_no_failure(ranks: tuple[WatchedRank, ...], slug: str, said: str) -> None:
    assert judged(*ranks, between=60.0) == [(slug, WARN)]
    looked = judge_hang(Snapshot(host="node01"), hang(*ranks, between=60.0), catalogue())
    [(_, _, finding)] = looked.findings
    assert f"it goes on, slowly perhaps: within 60.0 s {said}" in [evidence.text for evidence in finding.evidence]
    told = (
        "Some of its ranks work"
        if "cores" in said
        else "This job is slow, as far as 60.0 s tell: something of it moved"
    )
    assert outcome(looked).startswith(told)


@pytest.mark.parametrize("waits_in", ["do_wait", "anon_pipe_read", "flock_lock_inode_wait", "sk_wait_data"])
def test_who_waits_for_somebody_that_is_not_watched_may_go_on(waits_in: str) -> None:
    assert judged(WAITS, rank(1, own("convert", 31), waits_in=waits_in), between=60.0) == [
        ("rank-busy-outside-collectives", WARN)
    ]


def test_a_wait_for_its_own_threads_is_no_stillness_while_these_work() -> None:
    still = rank(1, own("upload", 31), waits_in="futex_do_wait")
    assert judged(WAITS, still, between=60.0) == [("rank-busy-outside-collectives", FAIL)]
    assert still.watched is not None
    first, last = still.watched.looks
    uploads = msgspec.structs.replace(last, other_wakes=130)
    at_work = msgspec.structs.replace(still, watched=msgspec.structs.replace(still.watched, looks=(first, uploads)))
    assert judged(WAITS, at_work, between=60.0) == [("rank-busy-outside-collectives", WARN)]


def test_what_was_not_counted_is_not_still() -> None:
    looks = tuple(msgspec.structs.replace(look, main_wakes=Unknown("no")) for look in SLEEPS.watched.looks)  # type: ignore[union-attr]
    unknown = msgspec.structs.replace(SLEEPS, watched=msgspec.structs.replace(SLEEPS.watched, looks=looks))  # type: ignore[type-var]
    assert judged(WAITS, unknown, between=60.0) == [("rank-busy-outside-collectives", WARN)]


def test_different_calls_are_certain_only_where_all_ranks_are_seen_and_return_when_they_are_done() -> None:
    apart = (WAITS, rank(1, collective("barrier", 50)))
    assert judged(*apart, between=3.1) == [("collective-desync", FAIL)]
    for unsure in ({"world_size": 4}, {"backend": "nccl"}):
        assert judged(*apart, between=3.1, **unsure) == [("collective-desync", WARN)]
        assert judged(*apart, between=30.1, **unsure) == [("collective-desync", FAIL)]


def test_a_rank_that_is_traced_for_a_moment_is_not_stopped() -> None:
    held = rank(1, own("fetch", 31), state="t")
    assert judged(WAITS, held, between=3.1) == [("rank-stopped", FAIL)]
    first = msgspec.structs.replace(held.watched.looks[0], state="S")  # type: ignore[union-attr]
    looks = (first, *held.watched.looks[1:])  # type: ignore[union-attr]
    once = msgspec.structs.replace(held, watched=msgspec.structs.replace(held.watched, looks=looks))  # type: ignore[type-var]
    assert judged(WAITS, once, between=3.1) == [("rank-busy-outside-collectives", WARN)]


@pytest.mark.parametrize("gone", [NOT_FOUND, "no such process", "Z: it has ended, and its parent has not taken note"])
def test_a_rank_that_is_gone_fails_at_once_wherever_the_others_wait_for_it(gone: str) -> None:
    """At the rendezvous, too, where they wait for its key in the store."""
    slug = "rendezvous-waiting" if gone == NOT_FOUND else "peer-rank-crashed"
    assert judged(rank(0, rendezvous(), wakes=300), rank(1, gone=gone), between=3.1) == [(slug, FAIL)]


def test_ranks_that_wait_at_the_rendezvous_for_other_hosts_are_early() -> None:
    assert judged(rank(0, rendezvous()), rank(1, rendezvous()), between=60.0, world_size=4) == [
        ("rendezvous-waiting", WARN)
    ]


@pytest.mark.parametrize(("waited", "severity"), [(5, WARN), (600, FAIL)])
def test_a_dump_may_know_how_long_the_others_have_waited(waited: int, severity: Severity) -> None:
    recorded = (
        dump(0, call(1), call(2, state="started"), written=1002.0 + waited),
        dump(1, call(1), written=1002.0 + waited),
    )
    assert judged(WAITS, SLEEPS, between=3.1, recorded=recorded) == [("rank-busy-outside-collectives", severity)]


def test_a_rank_that_is_gone_before_the_others_wait_for_it() -> None:
    gone = rank(1, gone="Z: it has ended, and its parent has not taken note")
    found = judge_hang(Snapshot(host="node01"), hang(rank(0, own("load", 31)), gone), catalogue())
    [(check, severity, finding)] = found.findings
    assert (check.slug, severity) == ("peer-rank-crashed", WARN)
    assert finding.summary == "rank 1 is gone; the others will wait for it at their next collective"
    assert "zombies" not in str(finding.fixes), "rank 0 may do its last work alone"


def test_a_rank_that_saves_after_the_others_have_ended_is_well() -> None:
    gone = rank(1, gone="it ended while it was looked at")
    assert judged(rank(0, saving(), moved=1 << 20), gone) == []


def test_what_goes_over_sockets_is_not_called_nothing() -> None:
    found = judge_hang(Snapshot(host="node01"), hang(SENDS, rank(1, collective())), catalogue())
    [(_, _, finding)] = found.findings
    text = " ".join(evidence.text for evidence in finding.evidence)
    assert "used no processor within 5.0 s; what it sends over sockets isn't counted" in text
    assert "did nothing" not in f"{text} {finding.cause}"
