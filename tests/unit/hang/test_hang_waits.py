"""Waits over all groups: made-up jobs that are played until they rest, and judged by what their recorders then hold."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.facts.hang import Hang, Recorded, RecordedCollective, RecordedGroup
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.flight_recorder.call_order import other_way
from ddpdoctor.hang.flight_recorder.dump_format import parse_dump
from ddpdoctor.hang.flight_recorder.wait_graph import LagCause, RecordedHang, RecordedSign, waits_of
from ddpdoctor.hang.recorded_hang import record_of
from ddpdoctor.hang.verdict import verdict_of
from ddpdoctor.knowledge.hang_causes import HangCause
from tests.support.group_jobs import Fault, Job, Layout, Plan, Shape, some_job
from tests.support.hangs import call

SMALL = (2, 24)
SIZES = (*[SMALL] * 12, *[(25, 64)] * 5, *[(65, 192)] * 2, (256, 512))
"""Of every twenty jobs in turn: fewest and most ranks."""
THOROUGH_JOBS = {"nccl": 6_000, "gloo": 2_000, "gloo, with a pipeline": 2_000}
SAMPLE = 60
AT_ONCE = 200
"""Jobs in one test."""


def recorded(job: Job) -> tuple[Recorded, ...]:
    return tuple(parse_dump(data).recorded(rank, f"rank_{rank}", "", 0.0) for rank, data in sorted(job.dumps().items()))


def judged(job: Job, world_size: int = 0) -> RecordedHang | None:
    return record_of(Hang(recorded=recorded(job), world_size=world_size))


def sample_sizes(seed: int) -> tuple[int, int]:
    """Sizes for a run that must be quick: one is large."""
    return (256, 512) if seed == SAMPLE - 1 else SMALL


def all_sizes(seed: int) -> tuple[int, int]:
    return SIZES[seed % len(SIZES)]


def wrongly_named(
    seeds: Sequence[int], backend: str, sizes: Callable[[int], tuple[int, int]], *, pipes: bool = True
) -> list[object]:
    """Jobs whose answer is wrong; and how many name more than the faulty ranks, if these are a tenth: in one of 25 dumps tell no less."""
    wrong: list[object] = []
    wide = 0
    for seed in seeds:
        most = sizes(seed) if pipes else SMALL if sizes(seed) == SMALL else (25, 64)
        job = some_job(random.Random(seed), backend=backend, pipes=pipes, sizes=most)
        found = judged(job)
        if found and found.ranks == job.faulty:
            continue
        if found and is_as_narrow_as_can_be(job, found):
            wide += 1
        else:
            wrong.append((seed, job.faults, job.plan.layout.shape, found and (found.ranks, found.sign)))
    return wrong if wide < len(seeds) / 10 else [*wrong, f"{wide} of {len(seeds)} answers are wide"]


def is_as_narrow_as_can_be(job: Job, found: RecordedHang) -> bool:
    """Whether exactly those are named that the dumps can't tell from a faulty one.

    Of ranks in another branch: all that wait for it as it waits for them, where no more ranks of the same place show that they went
    the other way. Over gloo: ranks that have done all that its recorder has of them. They may be at their end, or in a send or a
    receive, of which it knows nothing.
    """
    named, faulty = {*found.ranks}, {*job.faulty}
    alive = set(range(job.world)) - set(job.dead)
    alike = {rank for rank in alive if job.waits_in_nothing_recorded(rank)}
    if job.branched and not (job.backend == "gloo" and faulty <= alike):
        # Of several groups that stand alike, one is shown.
        shown = faulty & named if found.sign is RecordedSign.EVEN else faulty
        undecided = shown and shown <= named <= job.waiting_for_each_other() and not job.can_be_told()
        return bool(undecided) or (job.hides_waits and _is_alike_to_a_stop(job, found, alike))
    return job.backend == "gloo" and not job.dead and found.unsure == found.ranks == tuple(sorted(alike | faulty))


def _is_alike_to_a_stop(job: Job, found: RecordedHang, alike: set[int]) -> bool:
    """Whether those are named of whom one would have left such dumps if it had stopped, or nobody is blamed."""
    blames = found.sign is not RecordedSign.EVEN
    return {*found.ranks} == alike if blames else {*found.ranks} <= job.waiting_for_each_other()


@pytest.mark.parametrize("first", range(0, 2 * SAMPLE, SAMPLE))
def test_over_nccl_exactly_the_faulty_ranks_are_named(first: int) -> None:
    assert wrongly_named(range(first, first + SAMPLE), "nccl", sample_sizes) == []


def test_over_gloo_exactly_the_faulty_ranks_are_named_without_a_pipeline() -> None:
    assert wrongly_named(range(SAMPLE), "gloo", sample_sizes, pipes=False) == []


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1_000, 1_000 + THOROUGH_JOBS["nccl"], AT_ONCE))
def test_the_same_in_thousands_of_jobs_over_nccl(first: int) -> None:
    assert wrongly_named(range(first, first + AT_ONCE), "nccl", all_sizes) == []


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1_000, 1_000 + THOROUGH_JOBS["gloo"], AT_ONCE))
def test_the_same_in_thousands_of_jobs_over_gloo(first: int) -> None:
    assert wrongly_named(range(first, first + AT_ONCE), "gloo", all_sizes, pipes=False) == []


SIXTEEN = {
    "two tensor ranks, four stages, errors in the last": (
        Shape(2, 4, 2, 2, wide_experts=True),
        "error in a kernel",
        (12, 14),
    ),
    "two tensor ranks, four stages, the GIL in the last two": (
        Shape(2, 4, 2, 2, wide_experts=True),
        "holds the GIL",
        (10, 15),
    ),
    "four tensor ranks, two stages, errors": (Shape(4, 2, 2, 2, wide_experts=True), "error in a kernel", (9, 14)),
    "four tensor ranks, two stages, the GIL": (Shape(4, 2, 2, 2, wide_experts=True), "holds the GIL", (9, 14)),
}
"""Jobs of 16 ranks as a public set of injected faults has them: Megatron's groups, and two ranks at fault in each."""


@pytest.mark.parametrize(("shape", "kind", "faulty"), SIXTEEN.values(), ids=SIXTEEN)
def test_two_of_sixteen_ranks_are_named_wherever_in_a_step_they_fail(
    shape: Shape, kind: str, faulty: tuple[int, ...]
) -> None:
    """The dumps hold only what is open."""
    plan = Plan(
        Layout(shape), steps=3, batches=4, layers=2, schedule="1F1B", later_sends=True, buckets=2, sync_layers=False
    )
    length = len(plan.program(faulty[0])) // plan.steps
    shown = 0
    for seed, at in enumerate(range(length, 2 * length)):
        chance = random.Random(seed)
        # They fail at the same time, and stages are not in the same place then.
        faults = [Fault(rank, kind, at + chance.randint(-6, 6)) for rank in faulty]
        job = Job(plan, faults, chance, "nccl")
        job.only_open = True
        # A rank that waits for the other one first, and a GPU that had just done nothing, show nothing.
        if job.faulty == faulty and not any(map(job.waits, faults)) and all(map(job.shows, faults)):
            shown += 1
            found = judged(job)
            assert found
            assert found.ranks == faulty, (seed, at)
        if shown == 4:
            break
    assert shown == 4


# --- over gloo with a pipeline ------------------------------------------------------------------------------------------------


class Named(Counter[str]):
    """How often the faulty rank was named alone, among others, or nobody was."""

    def add(self, seed: int, sizes: tuple[int, int]) -> None:
        job = some_job(random.Random(seed), backend="gloo", sizes=sizes)
        found = judged(job, job.world)
        of = (seed, job.faults, job.plan.layout.shape, found)
        if found is None:
            # All ranks that can tell anything are in sends and receives, of which they don't tell.
            assert all(job.waits_in_nothing_recorded(rank) for rank in set(range(job.world)) - set(job.dead)), of
            self["nobody"] += 1
        elif found.ranks == job.faulty:
            self["alone"] += 1
        else:
            assert is_as_narrow_as_can_be(job, found), of
            self["among others"] += 1
            self["ranks in such jobs"] += job.world
            self["named in such jobs"] += len(found.ranks)

    def check(self) -> None:
        """gloo records no sends and receives, so that two jobs in which another rank is at fault leave the same dumps: a superset is
        all that can be said then: in less than two fifths of the jobs (0.32 of 500; a rank that left no dump is told alone, and of five
        kinds of faults two and a third leave none) and of less than two thirds of their ranks."""
        jobs = self["alone"] + self["among others"] + self["nobody"]
        assert self["among others"] < jobs * 2 / 5, self
        assert self["nobody"] < jobs / 10, self
        assert self["named in such jobs"] < self["ranks in such jobs"] * 2 / 3, self


def test_over_gloo_with_a_pipeline_no_more_are_named_than_sends_that_are_not_recorded_leave_open() -> None:
    named = Named()
    for seed in range(SAMPLE):
        named.add(seed, sample_sizes(seed))
    named.check()


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1_000, 1_000 + THOROUGH_JOBS["gloo, with a pipeline"], AT_ONCE))
def test_the_same_in_thousands_of_jobs_over_gloo_with_a_pipeline(first: int) -> None:
    named = Named()
    for seed in range(first, first + AT_ONCE):
        named.add(seed, all_sizes(seed))
    named.check()


def test_two_jobs_in_which_another_rank_is_at_fault_leave_the_same_dumps_over_gloo() -> None:
    """So both ranks are named: one was held up before its send, the other before it came to receive that."""
    plan = Plan(
        Layout(Shape(tensor=2, pipe=2, data=1, expert=1)), steps=2, batches=1, layers=1,
        schedule="all forward, all backward", later_sends=False, buckets=1, sync_layers=False,
    )  # fmt: skip
    places = {rank: [at for at, op in enumerate(plan.program(rank)) if op.name == name][-1] for rank, name in ENDS}
    jobs = [Job(plan, [Fault(rank, "holds the GIL", at)], random.Random(1), "gloo") for rank, at in places.items()]
    assert [job.faulty for job in jobs] == [(0,), (2,)]
    assert jobs[0].dumps() == jobs[1].dumps()
    for job in jobs:
        found = judged(job, job.world)
        assert found
        assert {0, 2} <= {*found.ranks}


ENDS = ((0, "send"), (2, "recv"))
"""Ranks of the same place in the tensor group, at the two ends of the pipeline."""


# --- single jobs, by hand ---------------------------------------------------------------------------------------------------


def group(
    name: str, ranks: Iterable[int], *entries: RecordedCollective, first: int = 0, **more: object
) -> RecordedGroup:
    given: dict[str, object] = {"places": tuple(range(first, first + len(entries)))}
    return RecordedGroup(group=name, ranks=tuple(ranks), entries=entries, **{**given, **more})  # type: ignore[arg-type]


def dump(rank: int, *groups: RecordedGroup) -> Recorded:
    return Recorded(rank=rank, file=f"/dumps/rank_{rank}", host="node01", groups=groups)


def waits(number: int, name: str = "nccl:all_reduce", **more: object) -> RecordedCollective:
    return call(number, name, "scheduled", **more)


def waits_found(recorded: Sequence[Recorded], world_size: int) -> RecordedHang:
    found = waits_of(recorded, world_size)
    assert found
    return found


def test_who_waits_in_another_group_is_not_named() -> None:
    """Rank 1 hasn't come to the data group's call, since it waits for rank 0 in the tensor group."""
    found = waits_found(
        [
            dump(0, group("1:tp", (0, 1), call(4))),
            dump(1, group("1:tp", (0, 1), call(4), waits(5))),
            dump(2, group("2:tp", (2, 3), call(5)), group("3:dp", (0, 2), waits(2), first=5)),
            dump(3, group("2:tp", (2, 3), call(5)), group("4:dp", (1, 3), waits(2), first=5)),
        ],
        4,
    )
    assert [(lag.rank, lag.cause) for lag in found.lags] == [(0, LagCause.ABSENT)]
    assert found.waiting == (1, 2, 3)


def test_a_member_whose_dump_has_nothing_of_the_group_has_not_come_to_it() -> None:
    found = waits_found([dump(0, group("1:tp", (0, 1), waits(1))), dump(1)], 2)
    assert [(lag.rank, lag.cause, lag.call) for lag in found.lags] == [(1, LagCause.ABSENT, "all_reduce")]


def test_torchs_status_tells_who_has_come_where_what_is_done_is_left_out() -> None:
    """Rank 1 has sent its part of the broadcast."""
    own = group("1:tp", (0, 1, 2), waits(9, "nccl:broadcast"))
    came = group("1:tp", (0, 1, 2), last_enqueued=9, last_completed=9)
    found = waits_found(
        [dump(0, own), dump(1, came), dump(2, group("1:tp", (0, 1, 2), last_enqueued=8, last_completed=8))], 3
    )
    assert [(lag.rank, lag.others) for lag in found.lags] == [(2, (0,))]


def test_a_rank_without_a_dump_is_named_where_all_others_have_come() -> None:
    found = waits_found([dump(rank, group("1:tp", (0, 1, 2), waits(9))) for rank in (0, 2)], 3)
    assert [(lag.rank, lag.cause, lag.others) for lag in found.lags] == [(1, LagCause.SILENT, (0, 2))]
    late = waits_found([dump(0, group("1:tp", (0, 1, 2), waits(9))), dump(2, group("1:tp", (0, 1, 2), call(8)))], 3)
    assert ([lag.rank for lag in late.lags], late.missing) == ([2], (1,))


def test_a_rank_without_a_dump_is_named_where_what_is_known_has_no_end() -> None:
    """Rank 1 lacks the tensor group's second call, since the first is not done: rank 0 waits for rank 2 before it."""
    circle = [
        dump(0, group("2:dp", (0, 2), waits(1)), group("1:tp", (0, 1), waits(1), waits(2), first=1)),
        dump(1, group("1:tp", (0, 1), waits(1))),
    ]
    even = [dump(rank, group("3:pp", (3, 4), waits(1))) for rank in (3, 4)]
    for recorded, waiting in ((circle, (0, 1)), ([*circle, *even], (0, 1, 3, 4))):
        found = waits_found(recorded, 0)
        assert [(lag.rank, lag.cause, lag.others) for lag in found.lags] == [(2, LagCause.SILENT, (0,))]
        assert found.waiting == waiting


def test_of_circles_the_one_is_told_that_waits_for_no_other() -> None:
    """Ranks 2 and 3 wait for each other as well, and rank 3 for rank 0."""
    found = waits_found(
        [
            dump(0, group("1:a", (0, 1), waits(3)), group("2:b", (0, 1), call(7), first=1)),
            dump(1, group("1:a", (0, 1), call(2)), group("2:b", (0, 1), waits(8), first=1)),
            dump(2, group("3:c", (2, 3), waits(1))),
            dump(3, group("4:d", (0, 2, 3), waits(1))),
        ],
        4,
    )
    assert (found.sign, found.ranks, found.waiting) == (RecordedSign.CIRCLE, (0, 1), (0, 1, 2, 3))


def test_circles_that_wait_for_no_other_are_told_together() -> None:
    dumps = [
        made
        for first, ranks in ((0, (0, 1)), (2, (2, 3)))
        for made in (
            dump(first, group(f"{first}:a", ranks, waits(3)), group(f"{first}:b", ranks, call(7), first=1)),
            dump(first + 1, group(f"{first}:a", ranks, call(2)), group(f"{first}:b", ranks, waits(8), first=1)),
        )
    ]
    found = waits_found(dumps, 4)
    assert (found.sign, found.ranks) == (RecordedSign.CIRCLE, (0, 1, 2, 3))


def test_what_a_rank_called_after_its_first_wait_closes_no_circle() -> None:
    """Rank 2 calls the two in another order. What ranks 0 and 1 called second waits for each other's first alone."""
    ranks = (0, 1, 2)
    usual = [dump(rank, group("1:tp", ranks, waits(1)), group("2:ep", ranks, waits(1), first=1)) for rank in (0, 1)]
    found = waits_found([*usual, dump(2, group("2:ep", ranks, waits(1)), group("1:tp", ranks, waits(1), first=1))], 3)
    assert ([lag.rank for lag in found.lags], found.waiting) == ([2], (0, 1))


def test_over_gloo_a_rank_without_a_dump_is_suspected_first_for_nobody_sees_who_waits_in_a_send() -> None:
    """Rank 1 hasn't come, but may wait in a receive for rank 2."""
    dumps = [dump(0, group("1:tp", (0, 1), waits(5, "gloo:all_reduce"))), dump(1, group("1:tp", (0, 1)))]
    found = waits_found(dumps, 3)
    assert (found.ranks, found.unsure, found.missing, found.last) == ((2,), (1, 2), (), None)
    said = finding_of(*dumps, world_size=3)
    assert said.summary == "no dump of rank 2: others may wait for it in sends and receives, which gloo doesn't record"
    assert "If not, it is rank 1, which called nothing to wait in." in said.cause
    assert "Gather the dump of rank 2" in said.fixes[0].text
    # In the only group that there is, nobody needs to send.
    alone = waits_found([dump(0, group("0:default_pg", (), waits(5, "gloo:all_reduce"))), dump(1)], 3)
    assert (alone.ranks, alone.missing) == ((1,), (2,))


def test_what_others_have_done_and_one_has_not_is_its_own_gpus() -> None:
    done = [dump(rank, group("1:tp", (0, 1, 2), call(9), waits(10))) for rank in (0, 2)]
    found = waits_found([*done, dump(1, group("1:tp", (0, 1, 2), waits(9), waits(10)))], 3)
    assert [(lag.rank, lag.cause, lag.number, lag.others) for lag in found.lags] == [(1, LagCause.STUCK, 9, (0, 2))]


def test_a_root_may_be_done_before_the_others() -> None:
    root = dump(0, group("1:tp", (0, 1), call(9, "nccl:broadcast")))
    assert waits_found([root, dump(1, group("1:tp", (0, 1), waits(9, "nccl:broadcast")))], 2).lags == ()


def pair(name: str, state: str = "scheduled") -> RecordedCollective:
    return call(1, f"nccl:{name}", state, point_to_point=True)


def test_a_send_waits_for_the_rank_at_its_other_end() -> None:
    """By ranks of the group: the pipeline of ranks 1, 5 and 9."""
    pipe = ("43:PIPELINE", (1, 5, 9))
    found = waits_found([dump(1, group(*pipe, pair("send 0->1"))), dump(5, group(*pipe)), dump(9, group(*pipe))], 0)
    assert [(lag.rank, lag.others) for lag in found.lags] == [(5, (1,))]
    met = [dump(1, group(*pipe, pair("send 0->1"))), dump(5, group(*pipe, pair("recv 1<-0"))), dump(9)]
    assert waits_found(met, 0).lags == ()


def test_groups_of_other_members_may_have_one_name() -> None:
    first = [dump(rank, group("1:tp", (0, 1), call(9))) for rank in (0, 1)]
    second = [dump(rank, group("1:tp", (2, 3), call(4, "nccl:broadcast"))) for rank in (2, 3)]
    assert record_of(Hang(recorded=(*first, *second))) is None


def test_groups_of_the_same_purpose_tell_which_of_two_is_wrong() -> None:
    def tensor(name: str, *names: str) -> list[Recorded]:
        first = 2 * (int(name) - 1)
        ranks = (first, first + 1)
        return [
            dump(rank, group(f"{name}:tp", ranks, waits(6, f"nccl:{one}")))
            for rank, one in zip(ranks, names, strict=True)
        ]

    odd = (*tensor("1", "broadcast", "all_reduce"), *tensor("2", "all_reduce", "all_reduce"))
    found = record_of(Hang(recorded=odd))
    assert found
    assert (found.sign, found.ranks, found.others) == (RecordedSign.MISMATCH, (0,), (1,))
    alone = record_of(Hang(recorded=odd[:2]))
    assert alone
    assert (alone.ranks, alone.others) == ((0, 1), ())


def test_groups_of_one_purpose_that_differ_alike_without_a_majority_are_told_together() -> None:
    """Two of a tensor group took another branch, each in an expert group of its own with one that didn't."""
    called = {0: "broadcast", 1: "broadcast", 2: "all_to_all", 3: "all_to_all"}
    found = record_of(
        Hang(
            recorded=tuple(
                dump(rank, group(f"{rank % 2}:EXPERT", (rank % 2, rank % 2 + 2), waits(8, f"nccl:{name}")))
                for rank, name in called.items()
            )
        )
    )
    assert found
    assert (found.group, found.ranks, found.others) == ("EXPERT", (0, 1, 2, 3), ())
    assert found.calls == (("broadcast", (0, 1)), ("all_to_all", (2, 3)))


def test_two_ranks_in_a_circle_are_told_as_that_and_none_is_blamed() -> None:
    both = (
        dump(0, group("1:a", (0, 1), waits(3)), group("2:b", (0, 1), call(7), first=1)),
        dump(1, group("1:a", (0, 1), call(2)), group("2:b", (0, 1), waits(8), first=1)),
    )
    found = verdict_of(Hang(recorded=both))
    assert found
    assert found.record
    assert (found.kind, found.record.sign, found.ranks) == (HangCause.DESYNC, RecordedSign.CIRCLE, (0, 1))


def test_who_is_in_every_circle_has_taken_another_way() -> None:
    """Rank 0 waits in the data group, the others for it in the tensor group."""
    found = waits_found(
        [
            dump(0, group("1:tp", (0, 1, 2), call(3)), group("2:dp", (0, 1, 2), waits(8), first=1)),
            *(
                dump(one, group("1:tp", (0, 1, 2), waits(4)), group("2:dp", (0, 1, 2), call(7), first=1))
                for one in (1, 2)
            ),
        ],
        3,
    )
    assert [lag.rank for lag in found.lags] == [0]


def test_ranks_of_other_groups_tell_by_the_order_of_their_calls_which_of_two_that_wait_for_each_other_is_wrong() -> (
    None
):
    """Rank 0 has left out a call of its tensor group."""

    def of(rank: int, tensor: str, calls: Sequence[RecordedCollective], *after: RecordedCollective) -> Recorded:
        ranks = (0, 1) if rank < 2 else (2, 3)
        return dump(
            rank,
            group(f"{tensor}:tp", ranks, *calls),
            group("3:model", range(4), *after, first=len(calls)),
        )

    found = [
        of(0, "1", [call(3)], waits(8, "nccl:barrier")),
        of(1, "1", [call(3), waits(4, "nccl:broadcast")]),
        *(of(rank, "2", [call(3), call(4, "nccl:broadcast")], waits(8, "nccl:barrier")) for rank in (2, 3)),
    ]
    said = finding_of(*found)
    assert said.summary == (
        "rank 0 called barrier number 8 of model after all_reduce number 3 of tp, where ranks 1-3 called broadcast number 4 of tp"
    )
    assert said.evidence[0].text == "group tp, after all_reduce number 3: ranks 1-3: broadcast number 4 of tp"
    assert finding_of(*found[:2]).summary.startswith("ranks 0 and 1 wait for each other in different groups")


def test_ranks_that_send_to_each_other_run_different_parts_and_tell_nothing_of_each_others_way() -> None:
    """Rank 0, of a first stage of its own, calls what ranks 1 to 3 don't; of ranks 0 and 1, none is wrong."""
    first = dump(0, group("1:tp", (0,), call(3)), group("2:pp", range(4), call(1), pair("send 0->1"), first=1))
    rest = [dump(rank, group("1:tp", (rank,), call(3), call(4)), group("2:pp", range(4), pair("recv 1<-0"), first=2)) for rank in (1, 2, 3)]  # fmt: skip
    assert other_way([first, *rest], (0, 1)) is None


def test_ranks_that_differ_in_several_groups_are_all_named() -> None:
    def tensor(name: str, first: int) -> list[Recorded]:
        ranks = range(first, first + 3)
        names = ("broadcast", "all_reduce", "all_reduce")
        return [dump(rank, group(f"{name}:tp", ranks, waits(6, f"nccl:{called}"))) for rank, called in zip(ranks, names, strict=True)]  # fmt: skip

    assert finding_of(*tensor("1", 0), *tensor("2", 3)).summary == (
        "rank 0 called broadcast (train.py:40) at number 6 of group 1:tp, where ranks 1 and 2 called all_reduce; so did rank 3 in other"
        " groups"
    )


def finding_of(*dumps: Recorded, world_size: int = 0) -> Finding:
    snapshot = Snapshot(hang=Hang(recorded=dumps, world_size=world_size))
    found = [
        finding
        for result in diagnose(
            snapshot, plan_for(snapshot), [check for cause in HangCause for check in catalogue().standing_for(cause)]
        )
        for finding in result.findings
    ]
    assert len(found) == 1
    return found[0]


def test_who_gives_dumps_isnt_told_to_switch_the_recorder_on() -> None:
    found = finding_of(*(dump(rank, group("1:tp", (0, 1), waits(9))) for rank in (0, 1)))
    assert "nothing tells them apart" in found.summary
    assert not any("TRACE_BUFFER_SIZE" in command for fix in found.fixes for command in fix.commands)


def test_what_is_said_of_one_rank_and_of_several() -> None:
    tensor = [dump(rank, group("1:tp", (0, 1, 2), call(9), waits(10))) for rank in (0, 2)]
    stuck = finding_of(*tensor, dump(1, group("1:tp", (0, 1, 2), waits(9, line=44))))
    assert stuck.summary == (
        "rank 1 has not done all_reduce number 9 of group 1:tp (train.py:44), which ranks 0 and 2 have: its GPU failed, or stands"
        " still; its last call: train.py:44"
    )
    silent = finding_of(*tensor)
    assert (
        silent.summary
        == "no dump of rank 1: ranks 0 and 2 wait for it in all_reduce number 10 of group 1:tp (train.py:40)"
    )
    assert "Gather the dump of rank 1" in silent.fixes[0].text
    two = finding_of(*tensor, dump(1), dump(3, group("2:tp", (3, 4), waits(5))), dump(4))
    assert two.summary == "ranks 1 and 4 never came to the calls in which the others wait"
    assert [evidence.text for evidence in two.evidence[:2]] == [
        "group 1:tp: ranks 0 and 2 called all_reduce number 10 at train.py:40, rank 1 did not",
        "group 2:tp: rank 3 called all_reduce number 5 at train.py:40, rank 4 did not",
    ]


def test_what_was_called_in_a_batch_is_done_with_its_end() -> None:
    entry = {
        "process_group": ["3", "pp"], "pg_id": 3, "collective_seq_id": 0, "p2p_seq_id": 5, "is_p2p": True, "state": "scheduled",
    }  # fmt: skip
    end = {**entry, "is_p2p": False, "profiling_name": "nccl:coalesced", "state": "completed"}
    data = [{**entry, "profiling_name": "nccl:send 0->1"}, {**entry, "profiling_name": "nccl:recv 0<-1"}, end]
    (told,) = parse_dump(json.dumps({"version": "2.9", "entries": data}).encode()).groups
    assert {entry.state for entry in told.entries} == {"completed"}


def test_a_group_without_entries_has_the_status_that_its_place_tells() -> None:
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}, "7": {"name": "7", "desc": "tp", "ranks": "[0, 1]"},
        "12": {"name": "12", "desc": "dp", "ranks": "[0, 1]"},
    }  # fmt: skip
    status = {
        "10": {"last_enqueued_collective": 12, "last_completed_collective": 11}, "0": {"last_enqueued_collective": 1},
        "4": {"last_enqueued_collective": 7, "last_completed_collective": 7},
    }  # fmt: skip
    entry = {
        "process_group": ["12", "dp"], "pg_id": 10, "collective_seq_id": 12, "is_p2p": False, "state": "scheduled",
        "profiling_name": "nccl:all_reduce",
    }  # fmt: skip

    def told(**more: object) -> dict[str, int | None]:
        data = json.dumps({"version": "2.9", "pg_config": config, "pg_status": status, "entries": [{**entry, **more}]})
        return {group.group: group.last_enqueued for group in parse_dump(data.encode()).groups}

    assert told() == {"0:default_pg": 1, "7:tp": 7, "12:dp": 12}
    # Where that doesn't fit to what entries say, the places tell nothing.
    assert told(pg_id=4) == {"0:default_pg": None, "7:tp": None, "12:dp": 7}
