"""What flight recorders and RAS tell apart."""

from __future__ import annotations

from ddpdoctor.facts.hang import Hang, RasCount, Recorded, RecordedCollective
from ddpdoctor.hang.flight_recorder.wait_graph import RecordedHang, RecordedSign
from ddpdoctor.hang.recorded_hang import counts_move, record_of
from tests.support.hangs import call, dump, hang, own, rank


def of_dumps(*dumps: Recorded, world_size: int = 0) -> RecordedHang | None:
    return record_of(Hang(recorded=dumps, world_size=world_size or len(dumps)))


def gloo(number: int, name: str = "all_reduce", line: int = 40, **more: object) -> RecordedCollective:
    return call(number, f"gloo:{name}", "scheduled", line, **more)


def test_the_lowest_rank_is_behind_and_its_last_call_is_named() -> None:
    found = of_dumps(
        dump(0, gloo(56), gloo(57, line=41)), dump(1, gloo(56, line=38)), dump(2, gloo(56), gloo(57, line=41))
    )
    assert found
    assert (found.sign, found.ranks, found.others, found.number) == (RecordedSign.BEHIND, (1,), (0, 2), 57)
    assert found.frame
    assert found.last
    assert (found.call, found.frame.line, found.last.line) == ("all_reduce", 41, 38)
    assert not found.timed_out


def test_another_collective_at_the_same_number_comes_before_who_is_behind() -> None:
    """Whoever called another one may have gone on since."""
    found = of_dumps(
        dump(0, gloo(5), gloo(6)), dump(1, gloo(5), gloo(6, "broadcast"), gloo(7)), dump(2, gloo(5), gloo(6))
    )
    assert found
    assert (found.sign, found.ranks, found.number) == (RecordedSign.MISMATCH, (1,), 6)
    assert found.calls == (("all_reduce", (0, 2)), ("broadcast", (1,)))


def test_of_two_ranks_that_differ_none_is_the_majority() -> None:
    found = of_dumps(dump(0, gloo(6)), dump(1, gloo(6, "broadcast")))
    assert found
    assert (found.ranks, found.others) == ((0, 1), ())


def test_shapes_and_types_differ_where_they_must_not() -> None:
    for name, other in (("all_reduce", {"shapes": ((9,),)}), ("broadcast", {"dtypes": ("Half",)})):
        found = of_dumps(dump(0, gloo(6, name)), dump(1, gloo(6, name)), dump(2, gloo(6, name, **other)))
        assert found, name
        assert (found.sign, found.ranks) == (RecordedSign.MISMATCH, (2,))
    for name in ("all_to_all", "gather", "scatter"):
        assert of_dumps(dump(0, gloo(6, name)), dump(1, gloo(6, name, shapes=((9,),)))) is None


def test_sends_and_receives_differ_by_right() -> None:
    sent, received = gloo(3, "send", point_to_point=True), gloo(3, "recv", point_to_point=True)
    assert of_dumps(dump(0, gloo(6), sent), dump(1, gloo(6), received)) is None


def test_groups_of_other_members_are_not_compared() -> None:
    first = [dump(rank, gloo(9), group="1:tp", ranks=(0, 1)) for rank in (0, 1)]
    second = [dump(rank, gloo(4), group="2:tp", ranks=(2, 3)) for rank in (2, 3)]
    assert of_dumps(*first, *second) is None


def test_who_has_no_dump_is_named_and_not_blamed() -> None:
    found = of_dumps(dump(0, gloo(7)), dump(1, gloo(6)), world_size=4)
    assert found
    assert (found.ranks, found.missing) == ((1,), (2, 3))


def test_an_empty_buffer_is_no_sign() -> None:
    assert of_dumps(dump(0, call(57)), dump(1)) is None


def test_the_open_call_of_nccl_is_where_all_wait() -> None:
    dumps = [
        dump(rank, call(57), call(58, state="started"), call(59, state="scheduled"), written=1100.0) for rank in (0, 1)
    ]
    found = of_dumps(*dumps)
    assert found
    assert (found.sign, found.number, round(found.waited), found.timed_out) == (RecordedSign.EVEN, 58, 42, False)


def test_the_watchdogs_dump_is_as_old_as_its_timeout() -> None:
    late = dump(0, call(57), call(58, state="started"), written=1658.0), dump(1, call(57), written=1658.0)
    found = of_dumps(*late)
    assert found
    assert (found.sign, found.ranks, found.timed_out) == (RecordedSign.BEHIND, (1,), True)


def test_what_is_done_tells_of_no_hang() -> None:
    assert of_dumps(dump(0, call(56), call(57)), dump(1, call(56), call(57))) is None
    assert of_dumps() is None


def count(rank: int, *begun: tuple[str, int], pid: int = 0, first: tuple[tuple[str, int], ...] = ()) -> RasCount:
    return RasCount(communicator="0xab", rank=rank, host="node01", pid=pid, first=first or begun, second=begun)


def test_ras_the_lowest_count_is_behind() -> None:
    found = record_of(
        Hang(world_size=3, counts=tuple(count(n, ("AllReduce", 99 if n == 2 else 100)) for n in range(3)))
    )
    assert found
    assert (found.sign, found.ranks, found.others, found.call) == (RecordedSign.BEHIND, (2,), (0, 1), "AllReduce")


def test_ras_ranks_of_a_smaller_communicator_are_known_by_their_pids_alone() -> None:
    counts = (count(0, ("AllReduce", 9), pid=4002), count(1, ("AllReduce", 8), pid=4003))
    job = hang(*(rank(n, own()) for n in range(4)), backend="nccl")
    found = record_of(Hang(world_size=4, counts=counts, ranks=job.ranks))
    assert found
    assert found.ranks == (3,)
    assert record_of(Hang(world_size=4, counts=counts)) is None


def test_ras_counts_that_change_move() -> None:
    moving = Hang(
        world_size=2, counts=(count(0, ("AllReduce", 9), first=(("AllReduce", 7),)), count(1, ("AllReduce", 8)))
    )
    assert counts_move(moving)
    assert record_of(moving) is None
