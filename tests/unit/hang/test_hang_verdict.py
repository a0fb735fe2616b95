"""One cause, with whose it is; and nobody where nobody can be told apart. The fixtures have the plain cases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import NotApplicable, diagnose
from ddpdoctor.facts.hang import Frame, Hang, WatchedRank
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.verdict import verdict_for, verdict_of
from ddpdoctor.knowledge.hang_causes import HangCause
from tests.support.hangs import (
    C10D,
    GETS_ITEM,
    LIB,
    backward,
    call,
    collective,
    destroying,
    dump,
    forward,
    hang,
    in_worker,
    loader,
    own,
    rank,
    rendezvous,
    saving,
    watched,
)
from tests.support.registered_checks import find_check


def kind_and_ranks(*ranks: WatchedRank, **more: object) -> tuple[HangCause, tuple[int, ...]] | None:
    found = verdict_of(hang(*ranks, **more))
    return (found.kind, found.ranks) if found else None


SLEEPS: dict[str, Any] = {"waits_in": "hrtimer_nanosleep"}
SPINS: dict[str, Any] = {"state": "R", "waits_in": "", "cores": 1.0}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # What can do nothing at all comes before where the others are.
        ([rank(0, collective()), rank(1, own(), state="T"), rank(2, own(), **SLEEPS)], (HangCause.STOPPED, (1,))),
        ([rank(0, collective()), rank(1, own(), state="D"), rank(2, loader())], (HangCause.KERNEL, (1,))),
        # Of several that don't wait, the one that stands still, and not the one that moves.
        ([rank(0, own(), **SPINS), rank(1, own(), **SLEEPS), rank(2, collective())], (HangCause.BUSY, (1,))),
        # A checkpoint of another rank than 0 is no rank 0 alone.
        ([rank(0, collective("barrier")), rank(1, saving(), moved=9 << 20)], (HangCause.BUSY, (1,))),
        ([rank(0, own(), **SLEEPS), rank(1, collective())], (HangCause.BUSY, (0,))),
        ([rank(0, own(), **SPINS), rank(1, collective())], (HangCause.SLOW_0, (0,))),
        ([rank(0, rendezvous()), rank(1, own("load", 9), **SLEEPS)], (HangCause.RENDEZVOUS, (1,))),
        # Who is still expected may never have been started; a zombie was.
        ([rank(0, rendezvous()), rank(1, gone="no process on this host is this rank")], (HangCause.RENDEZVOUS, (1,))),
        ([rank(0, rendezvous()), rank(1, gone="Z: it has ended")], (HangCause.CRASHED, (1,))),
        ([rank(0, collective()), rank(1, gone="no such process")], (HangCause.CRASHED, (1,))),
        # One cause: who left the loop is not also one of other calls.
        ([rank(0, backward()), rank(1, collective("barrier", 41))], (HangCause.UNEVEN, (1,))),
        ([rank(0, backward()), rank(1, destroying()), rank(2, collective("barrier", 41))], (HangCause.UNEVEN, (1,))),
        ([*(rank(n, collective("all_reduce", 40)) for n in (0, 2)), rank(1, collective("barrier", 41))], (HangCause.UNEVEN, (1,))),
        # One against one: rank 0 may as well evaluate alone, with a collective in it.
        ([rank(0, collective("all_reduce", 40)), rank(1, collective("barrier", 41))], (HangCause.DESYNC, (0, 1))),
        # A group is made by all ranks, and isn't a step of a loop.
        ([rank(0, (Frame("new_group", C10D, 5863), *own("main", 42))), rank(1, collective("barrier", 44))], (HangCause.DESYNC, (0, 1))),
        # Before the step, and in most ranks, a barrier is no end of a loop.
        ([rank(0, backward()), rank(1, collective("barrier", 33))], (HangCause.DESYNC, (0, 1))),
        ([rank(0, collective("broadcast", 40)), *(rank(n, collective("barrier", 41)) for n in (1, 2))], (HangCause.DESYNC, (0,))),
        # A few ranks may have many batches more: a backward is in a loop, whoever is in it.
        ([rank(0, backward()), *(rank(n, collective("barrier", 41)) for n in (1, 2))], (HangCause.UNEVEN, (1, 2))),
        # The forward one rank may also run alone.
        ([rank(0, forward()), *(rank(n, collective("barrier", 41)) for n in (1, 2))], (HangCause.DESYNC, (0,))),
        ([rank(0, forward()), rank(1, collective("barrier", 41))], (HangCause.DESYNC, (0, 1))),
        ([*(rank(n, forward()) for n in (0, 2)), rank(1, collective("barrier", 41))], (HangCause.UNEVEN, (1,))),
        ([rank(0, collective()), rank(1, collective())], (HangCause.STALLED, (0, 1))),
        ([rank(0, own(), **SLEEPS), rank(1, own(), **SLEEPS)], (HangCause.STALLED, (0, 1))),
        ([rank(0, own(), **SPINS), rank(1, own(), **SPINS)], None),
        ([rank(0, saving(), moved=9 << 20), rank(1, destroying())], None),
        ([rank(0, collective()), rank(1, collective("all_reduce", 40), collective("all_reduce", 44))], None),
        ([rank(0, gone="no such process"), rank(1, destroying(), own())], None),
    ],
)  # fmt: skip
def test_over_gloo(ranks: list[WatchedRank], expected: tuple[HangCause, tuple[int, ...]] | None) -> None:
    assert kind_and_ranks(*ranks) == expected


@pytest.mark.parametrize(
    "stacks",
    [
        (collective("all_reduce", 40), collective("all_reduce", 40), collective("broadcast", 44)),
        (backward(), backward(), collective("barrier", 41)),
        (collective("send", 50), collective("all_reduce", 40), collective("all_reduce", 40)),
    ],
)
def test_in_a_job_of_several_groups_no_stack_says_who_is_wrong(stacks: tuple[tuple[Frame, ...], ...]) -> None:
    ranks = [rank(number, stack) for number, stack in enumerate(stacks)]
    assert kind_and_ranks(*ranks, groups=3) == (HangCause.STALLED, (0, 1, 2))
    found = verdict_of(hang(*ranks))
    assert found
    assert found.kind is not HangCause.STALLED


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0, own("main", 41), **SPINS), rank(1, own("main", 41), **SPINS)], (HangCause.STALLED, (0, 1))),
        ([rank(0, own("main", 41), **SPINS), rank(1, own("main", 44), **SPINS)], (HangCause.STALLED, (0, 1))),
        ([rank(0, own("main", 41), **SPINS), rank(1, loader())], (HangCause.LOADER, (1,))),
        ([rank(0, own("main", 41), **SPINS), rank(1, own("main", 9), **SLEEPS)], (HangCause.BUSY, (1,))),
        ([rank(0, own("f", 50), own("f", 51), **SPINS), rank(1, collective("barrier"), **SPINS)], (HangCause.SLOW_0, (0,))),
        ([rank(0, backward(), **SPINS), rank(1, collective("barrier", 41), **SPINS)], (HangCause.UNEVEN, (1,))),
    ],
)  # fmt: skip
def test_over_nccl(ranks: list[WatchedRank], expected: tuple[HangCause, tuple[int, ...]]) -> None:
    assert kind_and_ranks(*ranks, backend="nccl") == expected


def fixes_of(job: Hang, slug: str) -> list[str]:
    snapshot = Snapshot(hang=job)
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check(slug)])
    return [fix.text for fix in result.findings[0].fixes]


def test_who_validates_alone_is_told_how() -> None:
    validates = hang(rank(0, forward()), *(rank(n, collective("barrier", 41)) for n in (1, 2)))
    assert "model.module" in fixes_of(validates, "collective-desync")[0]
    other = hang(rank(0, collective("all_reduce", 40)), rank(1, collective("barrier", 41)))
    assert not any("model.module" in text for text in fixes_of(other, "collective-desync"))


def test_the_user_s_frames_are_seen_behind_those_of_a_library() -> None:
    prompt = tuple(Frame(f"cmd{number}", f"{LIB}/cmd.py", number) for number in range(9))
    asks = (*prompt, *own("evaluate", 61), *own("main", 70))
    snapshot = Snapshot(hang=hang(rank(0, asks, **SLEEPS), rank(1, collective())))
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check("rank-busy-outside-collectives")])
    [stack] = [evidence.text for evidence in result.findings[0].evidence if "is in cmd0" in evidence.text]
    assert "cmd0 (cmd.py:0) <- 7 more <- cmd8 (cmd.py:8) <- evaluate (/home/ada/train.py:61) <- " in stack
    assert "main (/home/ada/train.py:70)" in stack


def test_a_data_set_without_workers_is_told_no_timeout_that_needs_one() -> None:
    data = f"{LIB}/site-packages/torch/utils/data"
    fetches = (
        Frame("fetch", f"{data}/_utils/fetch.py", 54),
        Frame("_next_data", f"{data}/dataloader.py", 789),
        *own("main", 31),
    )
    alone = hang(rank(0, (GETS_ITEM, *fetches), **SLEEPS), rank(1, collective()))
    assert any("num_workers=1, timeout=120" in text for text in fixes_of(alone, "dataloader-stuck"))
    with_workers = hang(rank(0, loader(), workers=(watched(51, in_worker(GETS_ITEM)),)), rank(1, collective()))
    assert any(
        text.endswith("names the worker: DataLoader(..., timeout=120)")
        for text in fixes_of(with_workers, "dataloader-stuck")
    )
    snapshot = Snapshot(hang=alone)
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check("dataloader-stuck")])
    assert "num_workers=0" in result.findings[0].cause
    assert "It sleeps." in result.findings[0].cause


def test_who_is_to_look_again_is_told_which_job() -> None:
    slow = Snapshot(hang=hang(rank(0, saving(), moved=9 << 20), rank(1, collective("barrier"))))
    (result,) = diagnose(slow, plan_for(slow), [find_check("slow-rank0-timeout")])
    assert ("ddpdoctor jobs --hang 3990",) in [fix.commands for fix in result.findings[0].fixes]


def test_a_helper_that_is_called_from_two_lines_is_told_apart_by_these() -> None:
    found = verdict_of(
        hang(
            *(
                rank(n, (*collective("all_reduce", 90)[:2], *own("reduce", 7), *own("main", line)))
                for n, line in ((0, 40), (1, 50))
            )
        )
    )
    assert found
    assert found.kind is HangCause.DESYNC
    assert [culprit.place.frame.line for culprit in found.culprits if culprit.place.frame] == [40, 50]


@pytest.mark.parametrize(
    ("waits_in", "words"),
    [("hrtimer_nanosleep", "It sleeps."), ("wait_woken", "terminal"), ("do_wait", "another process"), ("", "")],
)
def test_the_kernel_tells_what_code_in_c_waits_for(waits_in: str, words: str) -> None:
    snapshot = Snapshot(hang=hang(rank(0, collective()), rank(1, own(), waits_in=waits_in)))
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check("rank-busy-outside-collectives")])
    assert words in result.findings[0].cause
    assert result.findings[0].summary.startswith("rank 1 sleeps in " if "sleeps" in words else "rank 1 stands in ")


def test_at_the_end_of_python_the_thread_that_does_not_end_is_shown() -> None:
    end = (Frame("_shutdown", f"{LIB}/threading.py", 1583),)
    one = rank(0, end)
    assert one.watched
    looks = tuple(
        msgspec.structs.replace(look, others=(("uploader", own("upload", 77)),)) for look in one.watched.looks
    )
    snapshot = Snapshot(
        hang=hang(msgspec.structs.replace(one, watched=msgspec.structs.replace(one.watched, looks=looks)))
    )
    (result,) = diagnose(snapshot, plan_for(snapshot), [find_check("exit-hang")])
    assert any("'uploader' is in upload" in seen.text for seen in result.findings[0].evidence)


def test_workers_that_load_show_that_a_job_over_nccl_moves() -> None:
    moving = watched(5001, in_worker(GETS_ITEM), moved=30 << 20)
    assert kind_and_ranks(rank(0, own(), workers=(moving,), **SPINS), rank(1, own(), **SPINS), backend="nccl") is None


def test_the_flight_recorder_tells_apart_what_stacks_do_not() -> None:
    dumps = (dump(0, call(57), call(58, state="started")), dump(1, call(57)))
    ranks = (rank(0, own(), **SPINS), rank(1, own(), **SPINS))
    assert kind_and_ranks(*ranks, backend="nccl", recorded=dumps) == (HangCause.BEHIND, (1,))


def test_what_stacks_tell_comes_before_a_dump_that_may_be_old() -> None:
    dumps = (dump(0, call(57)), dump(1, call(57), call(58)))
    assert kind_and_ranks(rank(0, collective()), rank(1, own(), **SLEEPS), recorded=dumps) == (HangCause.BUSY, (1,))


def test_nobody_is_blamed_for_a_rank_that_could_not_be_looked_into() -> None:
    found = verdict_of(hang(rank(0, collective()), rank(1)))
    assert found
    assert (found.kind, [one.number for one in found.unseen]) == (HangCause.STALLED, [1])
    with pytest.raises(NotKnown, match="another user"):
        verdict_of(hang(rank(0), rank(1), hidden=("They are another user's.",)))


def test_dumps_of_gloo_that_agree_tell_nothing() -> None:
    dumps = tuple(dump(n, call(7, "gloo:all_reduce", "scheduled")) for n in (0, 1))
    with pytest.raises(NotKnown, match="gloo"):
        verdict_of(Hang(recorded=dumps, world_size=2))


@pytest.mark.parametrize("name", ["gloo:all_reduce", "nccl:all_reduce"])
def test_a_dump_that_is_missing_is_named(name: str) -> None:
    dumps = tuple(dump(n, call(7, name), ranks=(0, 1, 2)) for n in (0, 1))
    with pytest.raises(NotKnown, match=r"No dump of rank 2, of 3 ranks: .* often the culprit"):
        verdict_of(Hang(recorded=dumps))
    assert verdict_of(Hang(recorded=(*dumps, dump(2, call(7, name), ranks=(0, 1, 2))))) is None


def test_ranks_that_are_all_gone_without_a_dump_tell_nothing() -> None:
    with pytest.raises(NotKnown, match="gone"):
        verdict_of(hang(rank(0, gone="no such process"), rank(1, gone="no such process")))


def test_only_the_check_of_that_kind_speaks() -> None:
    job = hang(rank(0, collective()), rank(1, own(), **SLEEPS))
    assert verdict_for(job, HangCause.BUSY)
    (other,) = diagnose(Snapshot(hang=job), plan_for(Snapshot(hang=job)), [find_check("collective-desync")])
    assert other.not_tested
    assert other.not_tested.reason == "the ranks hang for another reason: see rank-busy-outside-collectives"
    with pytest.raises(NotApplicable, match="no running job"):
        verdict_for(Hang(), HangCause.BUSY)


@pytest.mark.parametrize(
    ("world_size", "says"),
    [
        (4, "rank 0 waits in backward (train.py:37) and rank 1 waits in broadcast (train.py:40); nothing is known of ranks 2 and 3: not on this"),
        (2, "ranks stand apart, and who waits for whom can't be told: rank 0 waits in backward (train.py:37) and rank 1 waits in"),
    ],
)  # fmt: skip
def test_that_ranks_of_other_hosts_are_not_known_is_said_first(world_size: int, says: str) -> None:
    snapshot = Snapshot(
        hang=hang(rank(0, backward()), rank(1, collective("broadcast")), world_size=world_size, groups=3)
    )
    (found,) = diagnose(snapshot, plan_for(snapshot), [find_check("collective-stalled")])
    assert found.findings[0].summary.startswith(says)
