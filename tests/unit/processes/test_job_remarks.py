"""What stands out among a job's ranks, and what doesn't."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, INFO, WARN
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.gpus import GpuHolder, Gpus
from ddpdoctor.facts.processes import Process, RankPlace
from ddpdoctor.processes.job_words import Oddity, Remark, pids_in
from ddpdoctor.processes.jobs import jobs_of
from ddpdoctor.processes.rank_remarks import remarks_on
from tests.support.running import GIB, gpus, launcher, on_their_gpus, processes, rank

RANKS = tuple(rank(number) for number in range(4))
NO_GPUS = Gpus(devices=())
CONTEXT = 500 << 20


def remarks(*listed: Process, on: Gpus | Unknown = NO_GPUS) -> tuple[Remark, ...]:
    looked = processes(*listed)
    (job,) = jobs_of(looked)
    return remarks_on(job, looked, on)


def oddities(*listed: Process, on: Gpus | Unknown = NO_GPUS) -> dict[Oddity, tuple[int, ...]]:
    """What stands out, to the ranks of which that is said."""
    return {remark.oddity: remark.ranks for remark in remarks(*listed, on=on)}


def test_of_a_healthy_job_nothing_stands_out() -> None:
    assert not remarks(launcher(), *RANKS)
    assert not remarks(launcher(), *RANKS, on=gpus(on_their_gpus(RANKS)))
    assert not remarks(launcher(), *RANKS, on=Unknown("no NVML"))


def test_missing() -> None:
    (one,) = remarks(launcher(), *RANKS[:3])
    assert (one.oddity, one.ranks, one.pids, one.severity) == (Oddity.MISSING, (3,), (), WARN)
    assert one.text.startswith("rank 3 is missing: 4 ranks belong on this host")


def test_while_the_job_starts_none_is_missing() -> None:
    assert not remarks(launcher(), *(rank(number, age=3.0) for number in range(3)))


def test_doubled() -> None:
    (one,) = remarks(launcher(), *RANKS, rank(3, pid=9000))
    assert (one.oddity, one.ranks, one.pids, one.severity) == (Oddity.DOUBLED, (3,), (4723, 9000), FAIL)


def test_perhaps_several_runs() -> None:
    """Nobody says where they meet, and no socket tells: it is said, and nothing is advised."""
    ranks = [
        rank(number, 2, pid=pid, settings=(Setting("RANK", str(number)), Setting("WORLD_SIZE", "2")))
        for pid, number in ((20, 0), (21, 0), (22, 1), (23, 1))
    ]
    found = remarks(*ranks)
    assert [(one.oddity, one.ranks, one.severity) for one in found if one.oddity.value != "by hand"] == [
        (Oddity.SEVERAL_RUNS, (0,), INFO),
        (Oddity.SEVERAL_RUNS, (1,), INFO),
    ]


@pytest.mark.parametrize(
    "twin",
    [
        rank(3, pid=9000, state="Z"),
        rank(3, pid=9000, place=RankPlace(rank=3, world_size=4, source="the order in which its parent started them")),
    ],
    ids=["has ended", "a guess"],
)
def test_not_doubled(twin: Process) -> None:
    assert Oddity.DOUBLED not in oddities(launcher(), *RANKS, twin)


def test_dead_and_ending() -> None:
    dead, ending = rank(1, state="Z"), rank(2, ended_threads=True, waits_in="do_exit")
    assert oddities(launcher(), RANKS[0], dead, ending, RANKS[3]) == {Oddity.DEAD: (1,), Oddity.ENDING: (2,)}


def test_one_rank_stopped_is_worse_than_all_of_them() -> None:
    one = remarks(launcher(), *RANKS[:3], rank(3, state="T"))
    assert [(each.oddity, each.ranks, each.severity) for each in one] == [(Oddity.STOPPED, (3,), FAIL)]
    assert one[0].text.endswith("state T; 3 others aren't stopped")
    (pair,) = remarks(launcher(), rank(0), rank(1, state="T"))[:1]
    assert pair.text.endswith("state T; 1 other isn't stopped")
    every = remarks(launcher(), *(rank(number, state="T") for number in range(4)))
    assert [(each.oddity, each.severity) for each in every] == [(Oddity.STOPPED, WARN)]


def test_a_stopped_launcher() -> None:
    (one,) = remarks(launcher(state="T"), *RANKS)
    assert (one.oddity, one.ranks, one.pids) == (Oddity.STOPPED, (), (4711,))


def test_debugged() -> None:
    assert oddities(launcher(), *RANKS[:3], rank(3, tracer=77)) == {Oddity.TRACED: (3,)}
    assert remarks(launcher(), *RANKS[:3], rank(3, state="t", tracer=77))[0].severity is WARN


def test_orphaned() -> None:
    orphans = [rank(number, parent=1) for number in range(4)]
    assert oddities(*orphans) == {Oddity.ORPHANED: (0, 1, 2, 3)}
    assert Oddity.ORPHANED not in oddities(launcher(), *RANKS)


def test_started_by_hand_they_are_no_orphans() -> None:
    """With nohup, say: there is no launcher that could be missing."""
    told = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    idle = {"recent_cpu": 0.0, "recent_bytes": 0, "recent_switches": 0, "devices": ()}
    settings = tuple(setting for setting in RANKS[0].settings if setting.name in told)  # type: ignore[union-attr]
    (one,) = remarks(*(rank(number, parent=1, settings=settings, **idle) for number in range(4)))
    assert (one.oddity, one.ranks, one.severity) == (Oddity.BY_HAND, (0, 1, 2, 3), INFO)
    by_slurm = RankPlace(rank=0, world_size=1, source="SLURM_PROCID")
    (one,) = remarks(rank(0, 1, parent=1, settings=settings, place=by_slurm, **idle))
    assert one.oddity is Oddity.ORPHANED


def test_two_on_one_gpu() -> None:
    held = on_their_gpus(RANKS)
    held[2], held[3] = [*held[2], *held[3]], []
    assert oddities(launcher(), *RANKS, on=gpus(held)) == {Oddity.SHARED_GPU: (2, 3), Oddity.OTHER_GPU: (3,)}


def test_extra_contexts_on_gpu_0() -> None:
    held = on_their_gpus(RANKS)
    held[0] += [GpuHolder(pid=4721, memory=CONTEXT), GpuHolder(pid=4723, memory=CONTEXT)]
    assert oddities(launcher(), *RANKS, on=gpus(held)) == {Oddity.EXTRA_CONTEXT: (1, 3)}


def test_a_model_that_is_split_over_two_gpus_is_where_it_belongs() -> None:
    two = [rank(number, 2) for number in range(2)]
    held = {index: [GpuHolder(pid=4720 + index // 2, memory=31 * GIB)] for index in range(4)}
    assert not remarks(launcher(), *two, on=gpus(held))


def test_ranks_in_another_order() -> None:
    held = on_their_gpus(RANKS)
    held[2], held[3] = held[3], held[2]
    assert oddities(launcher(), *RANKS, on=gpus(held)) == {Oddity.OTHER_GPU: (2, 3)}


def test_a_launcher_that_shows_each_rank_its_own_gpu() -> None:
    ranks = []
    for one in RANKS:
        assert one.place is not None
        assert isinstance(one.settings, tuple)
        shown = Setting("CUDA_VISIBLE_DEVICES", str(3 - one.place.rank))
        ranks.append(msgspec.structs.replace(one, settings=(*one.settings, shown)))
    held = {3 - index: holders for index, holders in on_their_gpus(ranks).items()}
    assert not remarks(launcher(), *ranks, on=gpus(held))


def test_on_the_cpu() -> None:
    idle = rank(3, devices=())
    held = on_their_gpus(RANKS[:3])
    assert oddities(launcher(), *RANKS[:3], idle, on=gpus(held)) == {Oddity.ON_CPU: (3,)}
    assert not remarks(launcher(), *RANKS[:3], rank(3, devices=(), age=20.0), on=gpus(held))


def test_in_a_container_that_sees_no_pids_nobody_is_called_on_the_cpu() -> None:
    hidden = [rank(number, devices=Unknown("Permission denied")) for number in range(4)]
    held = {index: [GpuHolder(pid=0, memory=31 * GIB)] for index in range(4)}
    assert not remarks(launcher(), *hidden, on=gpus(held))


def test_pids_in() -> None:
    text = "Job 5: rank 3 (pid 4711), ranks 1 and 2 (pids 12, 13 and 14), pids 20, 21 and 68 more; 31 GiB, 4 of 8, port 29500"
    assert pids_in(text) >= {5, 4711, 12, 13, 14, 20}
    assert not pids_in(text) & {3, 1, 2, 6, 8, 68, 31, 4, 29500}
