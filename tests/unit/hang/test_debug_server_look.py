"""What torch's debug server tells of the ranks of a job, and the verdict on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import pytest

from ddpdoctor.base.findings import FAIL, WARN, Finding, Severity
from ddpdoctor.base.status_line import StatusLine
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang import examining
from ddpdoctor.hang.debug_server.pages import NotServedError, ServerAddress
from ddpdoctor.hang.debug_server.server_look import look_at_server
from ddpdoctor.hang.examining import LONGEST_INQUIRY, NotExaminedError, examine_server
from ddpdoctor.hang.flight_recorder.dump_format import parse_dump
from ddpdoctor.hang.judging import judge_hang
from ddpdoctor.hang.recorded_hang import record_of
from ddpdoctor.hang.render import hang_document
from ddpdoctor.report.terminal import text_of
from tests.support.debug_servers import IN_ALL_REDUCE, IN_SLEEP, Answer, calls, counters, job, pages_of, serving, stack
from tests.support.group_jobs import some_job
from tests.support.waiting import slowdown

IN_BARRIER = IN_ALL_REDUCE.replace("all_reduce", "barrier").replace("line 40", "line 44")
IN_LOADER = stack(
    "_try_get_data /v/torch/utils/data/dataloader.py 1300",
    "__next__ /v/torch/utils/data/dataloader.py 734",
    "main /home/ada/train.py 31",
)
WAITING = calls(("all_reduce", 1, [4], True), ("all_reduce", 2, [4], False))
BEFORE = calls(("all_reduce", 1, [4], True))
GONE = (
    503,
    "ClientConnectorError: Cannot connect to host node1:40001 ssl:default [Connect call failed ('10.0.0.2', 40001)]",
)
SILENT = (408, "TimeoutError: ")


def seen(pages: Mapping[str, bytes], later: Mapping[str, bytes] | None = None, seconds: int = 0) -> Examination:
    with serving(pages_of(pages, later)) as port:
        hang = asyncio.run(look_at_server(ServerAddress("127.0.0.1", port), seconds))
    return judge_hang(Snapshot(host="laptop"), hang, catalogue())


def found(examination: Examination) -> list[tuple[str, Severity]]:
    return [(check.slug, severity) for check, severity, _ in examination.findings]


def only(examination: Examination) -> Finding:
    [(_, _, finding)] = examination.findings
    return finding


def text(examination: Examination, *, verbose: bool = False) -> str:
    return text_of(hang_document(examination, verbose=verbose), 400)


def ranks(*answers: str | Answer) -> list[Answer]:
    return [(200, answer) if isinstance(answer, str) else answer for answer in answers]


def test_who_stands_elsewhere_is_named_with_its_host_and_what_it_has_not_called() -> None:
    pages = job(
        ranks(IN_ALL_REDUCE, IN_SLEEP, IN_ALL_REDUCE),
        ranks(WAITING, BEFORE, WAITING),
        hosts=["node0", "node1", "node0"],
    )
    examination = seen(pages)
    assert found(examination) == [("rank-busy-outside-collectives", WARN)]
    finding = only(examination)
    assert finding.rank == 1
    assert finding.summary.startswith(
        "rank 1 (node1) stands in prepare (data.py:7); ranks 0 and 2 (node0) wait for it in"
    )
    evidence = " ".join(piece.text for piece in finding.evidence)
    assert "called all_reduce number 2, rank 1 (node1) did not" in evidence
    shown = text(examination)
    assert "on 2 hosts" in shown
    assert "its last call, all_reduce Float[4] number 1 of group 0:default_pg, is done" in shown
    assert "used no processor" not in shown  # Nobody knows.


def test_another_size_is_a_failure_at_once() -> None:
    other = calls(("all_reduce", 1, [4], True), ("all_reduce", 2, [7], False))
    examination = seen(job(ranks(*[IN_ALL_REDUCE] * 3), ranks(WAITING, other, WAITING)))
    assert found(examination) == [("collective-desync", FAIL)]
    assert (
        only(examination).summary
        == "rank 1 called all_reduce Float[7] at number 2, where ranks 0 and 2 called all_reduce Float[4]"
    )
    # What recorders tell as JSON has no lines: those where the ranks stand are shown.
    assert "train.py" in str(only(examination).fixes)


def test_another_collective_is_a_failure_at_once() -> None:
    other = calls(("all_reduce", 1, [4], True), ("barrier", 2, [], False))
    examination = seen(job(ranks(IN_ALL_REDUCE, IN_BARRIER, IN_ALL_REDUCE), ranks(WAITING, other, WAITING)))
    assert found(examination) == [("collective-desync", FAIL)]
    assert "rank 1 called barrier" in only(examination).summary


def test_a_job_that_moves_by_its_recorders_alone_is_no_hang() -> None:
    stacks = ranks(*[IN_ALL_REDUCE] * 2)
    later = job(stacks, ranks(*[calls(("all_reduce", 8, [4], True), ("all_reduce", 9, [4], False))] * 2))
    examination = seen(job(stacks, ranks(WAITING, WAITING)), later)
    assert found(examination) == []
    assert "Both ranks move" in text(examination)


def test_a_rank_that_moves_by_its_counters_alone_is_no_hang() -> None:
    stacks, recorders = ranks(IN_ALL_REDUCE, IN_SLEEP), ranks(WAITING, BEFORE)
    before, after = (
        job(stacks, recorders, counted=ranks(counters("c10d.new_group", 1, 0), counters("c10d.new_group", count, 1)))
        for count in (5, 6)
    )
    examination = seen(before, after)
    assert "rank 1 is busy in" in text(examination)
    assert "within c10d.new_group by torch's counters" in text(examination)


def test_heartbeats_are_no_movement() -> None:
    stacks, recorders = ranks(IN_ALL_REDUCE, IN_SLEEP), ranks(WAITING, BEFORE)
    before, after = (
        job(stacks, recorders, counted=ranks("{}", counters("TCPStore__get", count, 0))) for count in (5, 6)
    )
    assert "rank 1 stays in" in text(seen(before, after))


def test_stacks_are_asked_for_in_between() -> None:
    """One that is elsewhere only between the looks moves."""
    first = job(ranks(IN_ALL_REDUCE, IN_SLEEP), ranks("{}", "{}"))
    with serving(pages_of(first)) as port:
        hang = asyncio.run(look_at_server(ServerAddress("127.0.0.1", port), slowdown()))
    assert hang.ranks[0].watched is not None
    assert hang.ranks[0].watched.samples > 2
    assert hang.between >= 1.0


def test_a_rank_where_nobody_listens_any_more_is_gone() -> None:
    answers = [IN_ALL_REDUCE, GONE, IN_ALL_REDUCE]
    pages = job(
        ranks(*answers),
        ranks(WAITING, GONE, WAITING),
        counted=ranks("{}", GONE, "{}"),
        hosts=["node0", "node1", "node1"],
    )
    examination = seen(pages)
    assert found(examination) == [("peer-rank-crashed", FAIL)]
    assert "rank 1 (node1) is gone" in only(examination).summary
    assert "nothing listens at node1:40001 any more, and its host answers" in text(examination)


def test_a_host_of_which_nobody_is_reached_may_be_behind_a_firewall() -> None:
    """It may train on by another interface: nobody is called dead."""
    pages = job(ranks(IN_ALL_REDUCE, GONE), ranks(WAITING, GONE), counted=ranks("{}", GONE), hosts=["node0", "node1"])
    examination = seen(pages)
    assert found(examination) == [("rank-fell-behind", WARN)]
    assert "is gone" not in text(examination)
    assert "its process has ended, or a firewall stands in between" in text(examination)


def test_a_rank_that_can_not_be_reached_is_not_called_gone() -> None:
    lost = (503, "ClientConnectorDNSError: Cannot connect to host node1:40001 ssl:default [Name or service not known]")
    examination = seen(job(ranks(IN_ALL_REDUCE, lost), ranks(WAITING, lost), counted=ranks("{}", lost)))
    assert [severity for _, severity in found(examination)] == [WARN]
    assert "is gone" not in text(examination)
    assert "rank 1 could not be looked into: the debug server has no connection to it" in text(examination)


def test_a_rank_that_answers_nothing_is_the_one_that_all_wait_for() -> None:
    pages = job(
        ranks(IN_ALL_REDUCE, SILENT, IN_ALL_REDUCE), ranks(WAITING, SILENT, WAITING), counted=ranks("{}", SILENT, "{}")
    )
    examination = seen(pages)
    assert found(examination) == [("rank-fell-behind", WARN)]
    assert only(examination).rank == 1
    assert only(examination).summary.startswith(
        "no answer from the flight recorder of rank 1: ranks 0 and 2 wait for it in all_reduce number 2"
    )
    assert (
        "rank 1 could not be looked into: it gave the debug server no answer in time: it is stopped, or not to be reached"
        in text(examination)
    )
    assert "dump" not in text(examination)


def test_a_rank_whose_native_code_keeps_pythons_lock_is_told_from_one_that_is_stopped() -> None:
    pages = job(ranks(IN_ALL_REDUCE, SILENT), ranks(WAITING, BEFORE))
    examination = seen(pages)
    assert only(examination).summary.startswith("rank 1 never called all_reduce number 2, where rank 0 waits")
    assert "native code keeps Python's lock (the GIL)" in text(examination)


def test_a_loader_is_not_said_to_lack_workers_that_nobody_has_looked_for() -> None:
    examination = seen(job(ranks(IN_ALL_REDUCE, IN_LOADER), ranks(WAITING, BEFORE)))
    assert found(examination) == [("dataloader-stuck", WARN)]
    assert "no worker" not in text(examination)
    assert "workers are gone" not in text(examination)


def test_recorders_alone_name_the_rank_where_stacks_can_not_be_had() -> None:
    pages = job([], ranks(WAITING, BEFORE, WAITING))
    del pages["/stacks"]
    examination = seen(pages)
    assert only(examination).summary.startswith("rank 1 never called all_reduce number 2")
    assert "Of the debug server's pages /stacks: it answered /stacks with HTTP 404" in text(examination)


def test_recorders_alone_tell_that_a_job_moves() -> None:
    before, after = (job([], ranks(*[text] * 2)) for text in (WAITING, calls(("all_reduce", 9, [4], False))))
    del before["/stacks"], after["/stacks"]
    assert found(seen(before, after)) == []


def test_stacks_alone_are_no_failure_where_the_backend_is_not_known() -> None:
    """Over NCCL a rank may wait for a call of long before."""
    examination = seen(job(ranks(IN_ALL_REDUCE, IN_BARRIER, IN_ALL_REDUCE), ranks("{}", "{}", "{}")))
    assert [severity for _, severity in found(examination)] == [WARN]


def test_nothing_of_a_wait_of_nccl_is_called_a_timeout() -> None:
    """A debug server may be asked long before the watchdog has anything to say, and the clock is the server's own."""
    stacks = ranks(*[IN_ALL_REDUCE] * 2)
    made = [("all_reduce", 1, [4], True), ("all_reduce", 2, [4], False)]
    nccl = ranks(calls(*made, backend="nccl"), calls(made[0], backend="nccl"))
    examination = seen(job(stacks, ranks("{}", "{}"), nccl=nccl))
    assert [slug for slug, _ in found(examination)] == ["rank-fell-behind"]


def test_both_recorders_of_a_job_count() -> None:
    """gloo and NCCL number their calls apart, and their default groups have one name."""
    stacks = ranks(*[IN_ALL_REDUCE] * 2)
    gloo = ranks(*[calls(("barrier", 7, [], True))] * 2)
    nccl = ranks(*(calls(("all_reduce", 2, [size], False), backend="nccl") for size in (4, 7)))
    examination = seen(job(stacks, gloo, nccl=nccl))
    assert "all_reduce Float[7]" in only(examination).summary
    assert hang_of(examination).backend == "nccl and gloo"


def hang_of(examination: Examination) -> Hang:
    hang = examination.snapshot.hang
    assert isinstance(hang, Hang)
    return hang


@pytest.mark.parametrize("seed", range(8))
def test_waits_are_followed_over_disjoint_groups(seed: int) -> None:
    """Jobs of tensor, pipeline, data and expert groups: the page tells what their dumps tell."""
    made = some_job(random.Random(seed))
    dumps = made.dumps()
    recorded = tuple(parse_dump(dump).recorded(rank, "", "", 0.0) for rank, dump in sorted(dumps.items()))
    expected = record_of(Hang(recorded=recorded, world_size=made.world))
    answers = [(200, dumps[rank].decode()) if rank in dumps else SILENT for rank in range(made.world)]
    nothing = [(200, "{}")] * made.world
    pages = job([], nothing, nccl=answers) if made.backend == "nccl" else job([], answers)
    del pages["/stacks"]
    found = record_of(hang_of(seen(pages)))
    assert expected is not None
    assert found is not None
    assert (found.sign, found.ranks, found.group) == (expected.sign, expected.ranks, expected.group)


def test_how_long_it_may_take_fits_a_terminal_whatever_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, str]] = []

    def status_line(text: Callable[[float], str], delay: float, once: str) -> StatusLine:
        lines.append((text(999.0), once))
        return StatusLine(text, delay)

    async def look(address: ServerAddress, seconds: int) -> Hang:
        raise NotServedError("nothing listens there")

    monkeypatch.setattr(examining, "StatusLine", status_line)
    monkeypatch.setattr(examining, "collect_facts", lambda *_: Snapshot(host="node01"))
    monkeypatch.setattr(examining, "look_at_server", look)
    address = ServerAddress("a-node-with-a-long-name.cluster.example", 25999)
    with pytest.raises(NotExaminedError):
        examine_server(address, catalogue())
    [(shown, once)] = lines
    assert len(shown) < 80
    assert (LONGEST_INQUIRY in shown, LONGEST_INQUIRY in once, str(address) in once) == (True, True, True)
