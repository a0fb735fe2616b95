"""Whatever ranks do, no check crashes, one cause is named at most, and only ranks that are in the job."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import SkipReason, diagnose
from ddpdoctor.facts.hang import Hang, RankLook, RasCount, Recorded, Watched, WatchedRank
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.hangs import (
    GETS_ITEM,
    IDLE_WORKER,
    backward,
    call,
    collective,
    destroying,
    dump,
    forward,
    in_worker,
    loader,
    own,
    rendezvous,
    saving,
)

CHECKS = tuple(check for check in all_checks() if "hang" in check.groups)
STACKS = st.sampled_from([
    (), collective(), collective("barrier", 41), collective("broadcast", 35), collective("recv"), backward(), forward(),
    rendezvous(), loader(), saving(), destroying(), own(), own("evaluate", 50), in_worker(GETS_ITEM), IDLE_WORKER,
])  # fmt: skip


@st.composite
def looks(draw: st.DrawFn) -> RankLook:
    return RankLook(
        seconds=draw(st.floats(0, 10)),
        frames=draw(STACKS),
        state=draw(st.sampled_from("RSSSDTtZ")),
        waits_in=draw(st.sampled_from(["", "futex_do_wait", "hrtimer_nanosleep", "n_tty_read", "nv_open"])),
        cpu_seconds=draw(st.floats(0, 1e5)),
        switches=draw(st.integers(0, 9)),
        transferred=draw(st.integers(0, 1 << 40)),
    )


@st.composite
def processes(draw: st.DrawFn, pid: int) -> Watched:
    still: bool = draw(st.booleans())  # Often nothing has changed.
    found: list[RankLook] = draw(st.lists(looks(), max_size=3))
    return Watched(pid=pid, looks=(found[0], found[0]) if still and found else tuple(found))


@st.composite
def ranks(draw: st.DrawFn, number: int) -> WatchedRank:
    there = draw(st.booleans() | st.just(True))
    return WatchedRank(
        rank=number,
        host=draw(st.sampled_from(["", "node01"])),
        watched=draw(processes(4000 + number)) if there else None,
        workers=tuple(draw(st.lists(processes(5000), max_size=2))),
        gone="" if there else draw(st.sampled_from(["", "no such process"])),
    )


@st.composite
def dumps(draw: st.DrawFn, number: int) -> Recorded:
    names = st.sampled_from(["nccl:all_reduce", "nccl:broadcast", "gloo:barrier"])
    states = st.sampled_from(["scheduled", "started", "completed"])
    last = draw(st.integers(0, 4))
    entries = [call(number, draw(names), draw(states)) for number in range(last)]
    return dump(number, *entries, group=draw(st.sampled_from(["0:default_pg", "1:"])), written=draw(st.floats(0, 4000)))


@st.composite
def hangs(draw: st.DrawFn) -> Hang:
    size = draw(st.integers(1, 4))
    kinds = st.lists(st.tuples(st.sampled_from(["AllReduce", "Broadcast"]), st.integers(0, 3)), max_size=2)
    counts = [
        RasCount(communicator="0x1", rank=n, pid=4000 + n, first=tuple(draw(kinds)), second=tuple(draw(kinds)))
        for n in range(draw(st.sampled_from([0, 0, size])))
    ]
    return Hang(
        world_size=draw(st.sampled_from([0, size, size + 2])),
        backend=draw(st.sampled_from(["", "gloo", "nccl", "nccl and gloo"])),
        ranks=tuple(draw(ranks(n)) for n in range(draw(st.integers(0, size)))),
        recorded=tuple(draw(dumps(n)) for n in range(draw(st.sampled_from([0, 0, size])))),
        counts=tuple(counts),
    )


@settings(max_examples=150)
@given(hangs())
def test_any_job_has_one_cause_at_most_and_names_its_own_ranks(hang: Hang) -> None:
    snapshot = Snapshot(host="node01", hang=hang)
    results = diagnose(snapshot, plan_for(snapshot), CHECKS)
    crashed = [
        result.not_tested for result in results if result.not_tested and result.not_tested.why is SkipReason.CRASHED
    ]
    assert not crashed
    findings = [found for result in results for found in result.findings]
    assert len(findings) <= 1
    there = (
        {rank.rank for rank in hang.ranks}
        | {recording.rank for recording in hang.recorded}
        | {count.rank for count in hang.counts}
    )
    for finding in findings:
        assert finding.rank is None or finding.rank in there
        assert len(finding.summary) <= 160
        assert finding.evidence
        assert finding.fixes
        named = re.match(r"ranks? (\d+)\b", finding.summary)
        assert named is None or int(named[1]) in there
