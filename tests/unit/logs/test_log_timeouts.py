"""Timeouts of several ranks, held against each other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log, LogFile, LogLine, SignMatch
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.logs.analyze.timeouts import hypotheses
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.logs.render.next_steps import next_steps
from tests.log_corpus import LOGS, log_of
from tests.support.logs_by_hand import read

WATCHDOG = "nccl-watchdog-timeout"
DESYNC = "collective-desync"
BEHIND = "rank-fell-behind"
STALLED = "collective-stalled"
MISSING = "rdzv-missing-node"
UNEVEN = "uneven-inputs"
CAUGHT = "Watchdog caught collective operation timeout: WorkNCCL("
GAP = LOGS / WATCHDOG / "sick-a-rank-says-nothing.log"
"""No line is of rank 1."""


def caught(rank: int, number: int = 7, call: str = "ALLREDUCE", size: int = 64, group: str = "") -> SignMatch:
    words = {"number": str(number), "call": call, "size": str(size)} | ({"group": group} if group else {})
    line = LogLine(file=0, number=rank + 1, text=f"{CAUGHT}SeqNum={number}, OpType={call}", rank=rank)
    return SignMatch(slug=WATCHDOG, sign=CAUGHT, role=SignRole.EFFECT, line=line, words=words)


def shared(rank: int, size: int, whole: int) -> SignMatch:
    seen = caught(rank, call="_ALLGATHER_BASE", size=size)
    text = f"{seen.line.text}, NumelIn={size}, NumelOut={whole}"
    return msgspec.structs.replace(seen, line=msgspec.structs.replace(seen.line, text=text))


def dumped(rank: int, enqueued: int) -> SignMatch:
    line = LogLine(file=0, number=90, text=f"Received a dump signal. Last enqueued NCCL work: {enqueued}", rank=rank)
    return SignMatch(
        slug=WATCHDOG, sign="Received a dump signal", role=SignRole.EFFECT, line=line, words={"enqueued": str(enqueued)}
    )


def told(*said: SignMatch, ranks: int = 4, world_size: int | None = 4) -> list[tuple[str, str]]:
    log = Log(files=(LogFile(name="run.log"),), ranks=tuple(range(ranks)), world_size=world_size, sightings=said)
    return [(catalogue().slug_for(hypothese.cause), hypothese.why) for hypothese in hypotheses(log, said, catalogue())]


def test_another_call_at_the_same_number_is_a_mismatch() -> None:
    ((slug, why),) = told(caught(0), caught(1), caught(2, call="BROADCAST"), caught(3))
    assert slug == DESYNC
    assert why == "rank 2 waited in BROADCAST number 7 of 64 elements, and ranks 0, 1 and 3 in ALLREDUCE of 64 elements"


def test_another_size_is_a_mismatch_where_all_must_bring_the_same() -> None:
    assert [slug for slug, _ in told(caught(0), caught(1, size=63))] == [DESYNC]
    uneven = [caught(rank, call="ALLTOALL_BASE", size=60 + rank) for rank in range(4)]
    assert [slug for slug, _ in told(*uneven)] == [WATCHDOG, STALLED]


def test_who_waits_in_a_barrier_may_be_through_with_its_steps() -> None:
    assert [slug for slug, _ in told(caught(0, size=1), caught(1, size=7200))] == [DESYNC, UNEVEN]


def test_who_waits_behind_the_line_of_the_backward_pass_is_through_with_its_steps() -> None:
    text = (LOGS / UNEVEN / "sick-barrier-behind-the-loop.log").read_text()
    assert [suspect.slug for suspect in verdict_of(read(text), catalogue()).suspects][:2] == [UNEVEN, DESYNC]
    before = text.replace('uneven.py", line 11', 'uneven.py", line 5')
    assert [suspect.slug for suspect in verdict_of(read(before), catalogue()).suspects][:1] == [DESYNC]


def test_who_had_not_called_it_is_behind() -> None:
    ((slug, why),) = told(caught(1), caught(2), caught(3), dumped(0, 6))
    assert slug == BEHIND
    assert why.startswith("rank 0 never called ALLREDUCE number 7 of 64 elements, in which ranks 1-3 waited: ")
    assert why.endswith("it had called no more than number 6")


def test_who_had_called_it_is_not_behind() -> None:
    assert told(caught(1), caught(2), caught(3), dumped(0, 7)) == [
        (WATCHDOG, "ranks 1-3 waited in ALLREDUCE number 7 of 64 elements")
    ]


def test_who_waits_in_an_earlier_call_is_behind() -> None:
    ((slug, why),) = told(caught(0), caught(1), caught(2, number=6), caught(3))
    assert slug == BEHIND
    assert "rank 2 still waited in ALLREDUCE number 6" in why
    assert "ranks 0, 1 and 3 in ALLREDUCE number 7" in why


def test_half_against_half_may_be_two_groups() -> None:
    numbers = (7, 7, 6, 6)
    ((slug, why),) = told(*(caught(rank, number) for rank, number in enumerate(numbers)))
    assert slug == WATCHDOG
    assert "ranks 0 and 1 waited in ALLREDUCE number 7 of 64 elements, and ranks 2 and 3 waited" in why
    assert [slug for slug, _ in told(*(caught(rank, number, group="0") for rank, number in enumerate(numbers)))] == [
        BEHIND
    ]


def test_where_nobody_is_missing_it_is_the_way_between() -> None:
    found = told(*(caught(rank) for rank in range(4)))
    assert [slug for slug, _ in found] == [WATCHDOG, STALLED]
    assert "all 4 ranks waited in ALLREDUCE number 7" in found[0][1]
    assert "all 4 ranks of this log" in told(*(caught(rank) for rank in range(4)), world_size=None)[0][1]


def test_no_cause_is_named_while_a_rank_is_missing() -> None:
    assert told(caught(0), caught(1), caught(3)) == [
        (WATCHDOG, "ranks 0, 1 and 3 waited in ALLREDUCE number 7 of 64 elements")
    ]
    assert [slug for slug, _ in told(*(caught(rank) for rank in range(4)), world_size=8)] == [WATCHDOG]
    assert not told()


def test_who_waited_elsewhere_is_told_and_shown_and_who_says_nothing() -> None:
    judgement = judge_log(log_of(GAP), catalogue())
    (suspect,) = judgement.verdict.suspects
    assert suspect.why == (
        "rank 2 waited in ALLGATHER number 61, and ranks 0 and 3 waited in ALLREDUCE number 60 of 512 elements"
    )
    assert [match.line.rank for match in suspect.sightings] == [2, 0]
    assert judgement.verdict.silent == (1,)
    assert headline(judgement).startswith("Rank 1 says nothing at all, ")
    assert headline(judgement).endswith(suspect.why)
    assert "first those of rank 1, which says nothing" in next_steps(judgement)[0].text


def timeouts_of(ranks: Sequence[int]) -> str:
    return "".join(
        f"[rank{rank}]:[E1129 10:12:40.41882{rank} ProcessGroupNCCL.cpp:632] [Rank {rank}] {CAUGHT}SeqNum=60, OpType=ALLREDUCE, "
        "NumelIn=512, NumelOut=512, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.\n"
        for rank in ranks
    )


def test_fewer_than_those_that_waited_say_nothing_wherever_their_numbers_lie() -> None:
    judgement = judge_log(read(timeouts_of((1, 2, 3, 6, 7))), catalogue())
    assert judgement.verdict.silent == (0, 4, 5)
    assert headline(judgement) == (
        "Ranks 0, 4 and 5 say nothing at all, and the others tell only what followed; "
        "ranks 1-3, 6 and 7 waited in ALLREDUCE number 60 of 512 elements"
    )


def test_what_the_watchdog_says_without_a_rank_hides_nobodys_wait() -> None:
    unlabelled = "[E ProcessGroupNCCL.cpp:480] To avoid data inconsistency, we are taking the entire process down.\n"
    two = f"{timeouts_of((0,))}{timeouts_of((7,)).replace('SeqNum=60', 'SeqNum=40')}{unlabelled}"
    (suspect, *_) = verdict_of(read(two), catalogue()).suspects
    assert suspect.why == (
        "rank 0 waited in ALLREDUCE number 60 of 512 elements, and rank 7 waited in ALLREDUCE number 40 of 512 elements"
    )


@pytest.mark.parametrize("last", [16, 24])
def test_logs_of_some_nodes_accuse_no_other_node(last: int) -> None:
    assert verdict_of(read(timeouts_of(range(8, last))), catalogue()).silent == ()


def test_a_rank_that_tells_only_the_number_of_its_call_waited_with_the_others() -> None:
    counted = (
        "[rank1]:[E1129 10:12:40.522 ProcessGroupNCCL.cpp:1664] [PG 0 Rank 1] Exception (either an error or timeout) detected by "
        "watchdog at work: 60, last enqueued NCCL work: 61, last completed NCCL work: 59.\n"
    )
    text = f"{timeouts_of((0, 2))}{counted}"
    (suspect, *_) = verdict_of(read(text), catalogue()).suspects
    assert suspect.why.startswith("all 3 ranks of this log waited in ALLREDUCE number 60 of 512 elements")
    elsewhere = text.replace("at work: 60", "at work: 58")
    (suspect, *_) = verdict_of(read(elsewhere), catalogue()).suspects
    assert suspect.why == "ranks 0 and 2 waited in ALLREDUCE number 60 of 512 elements"


def test_a_log_of_one_rank_alone_accuses_no_other() -> None:
    one = "".join(line for line in GAP.read_text().splitlines(keepends=True) if "[rank3]" in line)
    assert verdict_of(read(one), catalogue()).silent == ()


def test_the_headline_names_who_never_called_it() -> None:
    judgement = judge_log(log_of(LOGS / BEHIND / "sick-dump-signal.log"), catalogue())
    assert headline(judgement).startswith("Rank 0 never called ALLREDUCE number 9123 ")


def test_a_rank_that_nobody_has_heard_of_may_be_missing() -> None:
    said = [caught(rank) for rank in (3, 5, 7)]
    assert [slug for slug, _ in told(*said, ranks=0, world_size=None)] == [WATCHDOG]
    log = Log(files=(LogFile(name="run.log"),), ranks=(3, 5, 7), sightings=tuple(said))
    assert [catalogue().slug_for(found.cause) for found in hypotheses(log, said, catalogue())] == [WATCHDOG]


@pytest.mark.parametrize(
    ("said", "proven"),
    [
        ((caught(0, group="PG 0"), caught(1, call="BROADCAST", group="PG 0")), True),
        ((caught(0), caught(1, call="BROADCAST", group="PG 0")), False),
        ((shared(0, 8, 16), shared(1, 4, 8)), True),
        ((shared(0, 8, 32), shared(1, 4, 16)), True),
        ((shared(0, 8, 8), shared(1, 4, 4)), False),
    ],
)
def test_different_calls_are_proven_where_all_waited_in_one_group(said: tuple[SignMatch, ...], proven: bool) -> None:
    log = Log(files=(LogFile(name="run.log"),), ranks=(0, 1), sightings=said)
    (found,) = hypotheses(log, said, catalogue())
    assert (found.cause, found.proven) == (HangCause.DESYNC, proven)


def test_calls_between_two_ranks_differ_with_good_reason() -> None:
    said = (caught(0, call="SEND", group="PG 0"), caught(1, call="RECV", group="PG 0"))
    assert DESYNC not in {slug for slug, _ in told(*said)}


def test_another_call_in_the_same_group_is_the_cause() -> None:
    judgement = judge_log(log_of(LOGS / DESYNC / "sick-watchdog-other-call.log"), catalogue())
    assert (judgement.verdict.outcome, judgement.verdict.suspects[0].sure) == (RunOutcome.ILLNESS, True)
    assert headline(judgement).startswith("Rank 2 waited in BROADCAST number 413 of 1024 elements, and ranks 0, 1 and")


def test_numbers_of_different_groups_are_not_compared() -> None:
    assert not told(caught(0, call="ALLGATHER", group="PG 1"), caught(1, group="PG 2"))


@pytest.mark.parametrize(
    ("name", "slug", "words"),
    [
        ("collective-desync/sick-gloo-timeouts", DESYNC, "rank 2 waited at train_desync.py:21"),
        ("rank-fell-behind/sick-dump-signal", BEHIND, "it had called no more than number 9122"),
        ("nccl-watchdog-timeout/sick-torch-2.1-srun", WATCHDOG, "waited in ALLREDUCE number 96125"),
    ],
)
def test_a_log_of_timeouts_alone_gets_a_hypothesis_and_no_cause(name: str, slug: str, words: str) -> None:
    verdict = verdict_of(log_of(LOGS / f"{name}.log"), catalogue())
    assert verdict.outcome is RunOutcome.EFFECTS_ONLY
    assert verdict.suspects[0].slug == slug
    assert words in verdict.suspects[0].why
    assert verdict.suspects[0].sightings
    assert not any(suspect.sure for suspect in verdict.suspects)


@pytest.mark.parametrize(
    ("came", "why"),
    [
        ("1/2", "1 of 2 came: why the other one didn't, only its own log can say"),
        ("5/8", "5 of 8 came: why the other 3 didn't, only their own logs can say"),
    ],
)
def test_who_waited_for_others_tells_how_many_came(came: str, why: str) -> None:
    text = (
        f"torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. {came} clients joined.\n"
    )
    (suspect,) = verdict_of(read(text), catalogue()).suspects
    assert (suspect.slug, suspect.why, suspect.sure) == (MISSING, why, False)
