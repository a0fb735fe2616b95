"""Whether a rank moves by what works for it: its DataLoader's workers, and the processes that it has started."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
import pytest

from ddpdoctor.facts.hang import Frame, RankLook, Watched
from ddpdoctor.knowledge.torch_frames import place_of
from ddpdoctor.watching.counters import Helpers
from ddpdoctor.watching.deep_look import DeepLook
from ddpdoctor.watching.movement import Movement, movements, words_for
from tests.support.deep_looks import KIB, MIB, NEVER, SLEEPS, AtMoments, Seen, deep_look, in_between, in_last, why
from tests.support.hangs import (
    GETS_ITEM,
    IDLE_WORKER,
    LIB,
    TORCH,
    Stack,
    collective,
    hang,
    in_worker,
    loader,
    own,
    rank,
    saving,
)

# --- a rank that waits for its DataLoader -------------------------------------------------------------------------------------

READS: Final = in_worker(GETS_ITEM)
WORKER: Final = 5000


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Seen(now=loader()), ""),
        (Seen(now=loader(), main_bytes=in_last(1)), "batches come"),
        (Seen(now=loader(), main_bytes=in_between(1)), "batches come"),
        (Seen(now=loader(), cpu=in_last(0.42)), "batches come"),
        (Seen(now=loader(), cpu=in_last(0.40)), ""),
        (Seen(now=loader(), moved_bytes=in_last(1)), "it read 1 B"),
        (Seen(now=loader(), moved_bytes=in_between(1)), "it read 1 B"),
        (Seen(now=loader(), resident=in_last(MIB)), ""),
    ],
)
def test_whether_batches_come(one: Seen, says: str) -> None:
    assert why(one, workers={WORKER: Seen(now=READS)}) == says
    assert why(one) == says


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (Seen(now=READS), ""),
        (Seen(now=READS, moved_bytes=in_last(64 * KIB + 1)), "its worker 5000 works: it read or wrote 64 KiB"),
        (Seen(now=READS, moved_bytes=in_between(64 * KIB + 1)), "its worker 5000 works: it read or wrote 64 KiB"),
        (Seen(now=READS, moved_bytes=in_last(64 * KIB)), ""),
        (Seen(now=READS, samples=200, elsewhere=9), "its worker 5000 works: it comes to different calls"),
        (Seen(now=READS, earlier=in_worker(Frame("decode", "/home/ada/data.py", 30))), "its worker 5000 works: it was in decode"),
        (Seen(now=READS, wakes=in_between(4)), "its worker 5000 works: its main thread woke up 4 times"),
        (Seen(now=READS, wakes=in_between(3)), ""),
        (Seen(now=READS, cpu=(0, 2, 12, 14)), ""),
        (Seen(now=in_worker(), waits_in="pipe_read"), ""),
        (Seen(now=(), wakes=in_last(1)), "its worker 5000 works: it does something, and its stack can't be read"),
        (Seen(now=()), ""),
        (Seen(now=IDLE_WORKER, wakes=in_between(50)), ""),
    ],
    ids=[
        "stands", "reads", "read between", "reads little", "different calls", "elsewhere before", "awake", "polls", "endless loop",
        "in the loop itself", "unseen", "unseen and still", "idle",
    ],
)  # fmt: skip
def test_its_workers_count(worker: Seen, says: str) -> None:
    found = why(Seen(now=loader()), workers={WORKER: worker})
    assert found.startswith(says)
    assert bool(found) is bool(says)


def test_one_worker_that_works_is_enough() -> None:
    workers = {WORKER: Seen(now=READS), WORKER + 1: Seen(now=READS, moved_bytes=in_last(MIB))}
    assert why(Seen(now=loader()), workers=workers) == "its worker 5001 works: it read or wrote 1 MiB"


@pytest.mark.parametrize(("cpu", "says"), [(0.03, "its worker 5000 works: it comes to different calls"), (0.02, "")])
def test_a_worker_that_works_a_little_beside_a_frozen_rank_is_none_that_polls(cpu: float, says: str) -> None:
    stack = in_worker(GETS_ITEM)
    worker = Seen(now=stack, samples=200, elsewhere=90, moved=90, cpu=in_last(cpu))
    assert why(Seen(now=loader()), workers={5000: worker}, asleep=(0,)) == says


def test_a_worker_that_was_not_there_before_is_judged_by_this_look_alone() -> None:
    worker = Seen(now=READS, wakes=in_between(50))
    before = deep_look(0, Seen(now=loader()), workers={WORKER + 1: worker})
    assert movements(deep_look(1, Seen(now=loader()), workers={WORKER: worker}), before, ())[1].why == ""


def test_a_worker_that_was_seen_once() -> None:
    one = msgspec.structs.replace(rank(1, loader()), workers=(Watched(pid=WORKER, looks=(RankLook(frames=READS),)),))
    looked = hang(rank(0, collective()), one)
    told = movements(DeepLook(began=0.0, ended=2.0, hang=looked), None, ())
    assert told[1].why == "whether its worker 5000 moved can't be told"


# --- what a rank has started --------------------------------------------------------------------------------------------------


def helpers(cpu: AtMoments = NEVER, moved: AtMoments = NEVER, pids: Sequence[Collection[int]] = ((6000,),) * 4) -> Any:
    """What has been counted of them by each of the moments."""
    return [
        Helpers(pids=frozenset(pids[moment]), cpu=cpu[moment], transferred=int(MIB + moved[moment]))
        for moment in range(4)
    ]


WAITS_FOR_CHILD: Final[Stack] = (Frame("Popen.wait", f"{LIB}/subprocess.py", 1264), *own("upload", 70))


@pytest.mark.parametrize(
    ("now", "started", "says"),
    [
        (SLEEPS, helpers(), ""),
        # From the beginning of the look before: fourteen seconds.
        (SLEEPS, helpers(cpu=in_last(2.9)), "processes that it has started use 0.2 cores, and moved 0 B"),
        (SLEEPS, helpers(cpu=in_last(2.8)), ""),
        (SLEEPS, helpers(cpu=in_between(3)), "processes that it has started use 0.2 cores, and moved 0 B"),
        (SLEEPS, helpers(cpu=(5, 5, 5, 5)), ""),
        (SLEEPS, helpers(moved=in_last(MIB + 1)), "processes that it has started use 0.0 cores, and moved 1 MiB"),
        (SLEEPS, helpers(moved=in_last(MIB)), ""),
        (SLEEPS, helpers(pids=((6000,), (6000,), (6000,), (6000, 6001))), "it has started other processes"),
        (SLEEPS, helpers(pids=((6000, 6001), (6000,), (6000,), (6000,))), ""),
        (SLEEPS, helpers(cpu=in_last(-2.0), moved=in_last(-MIB)), ""),
        (SLEEPS, helpers(cpu=in_last(2.9), moved=in_last(-MIB)), "processes that it has started use 0.2 cores, and moved 0 B"),
        # Where it waits for them, the least counts.
        (WAITS_FOR_CHILD, helpers(cpu=in_last(0.75)), "processes that it has started use 0.1 cores, and moved 0 B"),
        (WAITS_FOR_CHILD, helpers(cpu=in_last(0.7)), ""),
        (WAITS_FOR_CHILD, helpers(moved=in_last(1)), "processes that it has started use 0.0 cores, and moved 1 B"),
        (WAITS_FOR_CHILD, helpers(), ""),
        (saving(), helpers(moved=in_last(1)), "processes that it has started use 0.0 cores, and moved 1 B"),
        (loader(), helpers(moved=in_last(MIB + 1)), "processes that it has started use 0.0 cores, and moved 1 MiB"),
        (loader(), helpers(moved=in_last(MIB)), ""),
        # Beside a rank that waits in a collective a logger may do what it likes.
        (collective("broadcast"), helpers(moved=in_last(100 * MIB)), ""),
        (SLEEPS, [None, None, None, Helpers(pids=frozenset({6000}))], ""),
        (SLEEPS, [Helpers(pids=frozenset({6000})), None, None, None], ""),
    ],
)  # fmt: skip
def test_what_it_has_started(now: Stack, started: Sequence[Helpers | None], says: str) -> None:
    assert why(Seen(now=now), helpers=started) == says


@pytest.mark.parametrize(
    ("cpu", "says"), [(0.42, "processes that it has started use 0.2 cores, and moved 0 B"), (0.4, "")]
)
def test_what_it_has_started_within_the_only_look(cpu: float, says: str) -> None:
    before = (0.0, 50.0, 0.0, cpu)
    assert why(Seen(now=SLEEPS), helpers=helpers(cpu=before), alone=True) == says


def test_other_kinds_of_places_in_which_it_waits_for_what_it_has_started() -> None:
    compiles = (Frame("wait", f"{TORCH}/_inductor/async_compile.py", 300), *own("train", 70))
    loads = (Frame("_load", f"{TORCH}/serialization.py", 2000), *own("resume", 70))
    for stack in (compiles, loads):
        assert why(Seen(now=stack), helpers=helpers(moved=in_last(1))).endswith("moved 1 B")


def test_what_is_said_of_one_that_moves() -> None:
    place = place_of(RankLook(frames=own("evaluate", 50)))
    assert words_for(Movement("it computes"), place) == "in evaluate (train.py:50): it computes"
