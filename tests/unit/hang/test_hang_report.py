"""What `jobs --hang` says at a terminal, on made-up looks."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.facts.hang import Frame, Hang, WatchedRank
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.judging import hang_of, judge_hang
from ddpdoctor.hang.render import hang_document
from ddpdoctor.hang.render_words import groups, headline
from ddpdoctor.probes.py_spy import PySpyTrouble
from ddpdoctor.report.contract import build_report, to_json
from ddpdoctor.report.terminal import text_of
from tests.support.hangs import GETS_ITEM, IDLE_WORKER, collective, hang, in_worker, loader, own, rank, saving, watched


def examined(*ranks: WatchedRank, **more: object) -> Examination:
    return judge_hang(Snapshot(host="node01"), hang(*ranks, **more), catalogue())


def shown(examination: Examination, width: int = 80, **how: bool) -> str:
    return text_of(hang_document(examination, **how), width)


def moving(number: int) -> WatchedRank:
    """At both looks in the same call, as it happens, and elsewhere in between."""
    one = rank(number, collective())
    assert one.watched is not None
    return msgspec.structs.replace(
        one, watched=msgspec.structs.replace(one.watched, samples=300, elsewhere=60, within=own("main", 40))
    )


def still(number: int, stack: Sequence[Frame], **more: object) -> WatchedRank:
    one = rank(number, tuple(stack), **more)  # type: ignore[arg-type]
    assert one.watched is not None
    return msgspec.structs.replace(one, watched=msgspec.structs.replace(one.watched, samples=300, within=tuple(stack)))


def test_the_odd_one_comes_first() -> None:
    one = examined(*(still(number, collective()) for number in (0, 2, 3)), still(1, own("load", 31)), between=31.0)
    first, second = groups(one)
    assert (first.ranks, first.words) == ("rank 1", "stays in load (train.py:31)")
    assert (second.ranks, second.words) == ("ranks 0, 2 and 3", "wait in all_reduce (train.py:40)")
    text = shown(one)
    assert text.index("rank 1 stays in load (train.py:31)") < text.index("wait in all_reduce (train.py:40)")
    assert one.verdict is Verdict.FAIL
    assert "FAIL  This job did not go on within 31.0 s.\n" in text


def test_ranks_that_move() -> None:
    one = examined(*map(moving, range(4)))
    assert (headline(one), one.verdict) == ("All 4 ranks move", Verdict.OK)
    [group] = groups(one)
    assert group.words == "move on, within main (train.py)"
    assert headline(examined(moving(0), moving(1))) == "Both ranks move"
    assert headline(examined(moving(0))) == "Rank 0 moves"


def test_what_was_not_seen_is_never_called_well() -> None:
    hidden = (
        "The stack of rank 1 could not be read: it belongs to ada. Root can: sudo /opt/python -I -m ddpdoctor jobs --hang 3990",
    )
    one = examined(moving(0), rank(1), hidden=hidden)
    assert headline(one) == "1 of 2 ranks moves; rank 1 could not be looked into"
    text = shown(one)
    assert "Could not be seen" in text
    assert "\n      sudo /opt/python -I -m ddpdoctor jobs --hang 3990\n" in text
    both = examined(rank(0), rank(1), hidden=hidden)
    assert both.verdict is Verdict.UNKNOWN
    assert "Whether it hangs can't be told" in shown(both)


def test_the_worker_that_keeps_a_rank_waiting_is_named_by_its_own_frames() -> None:
    workers = (watched(51, in_worker(GETS_ITEM)), watched(52, IDLE_WORKER))
    one = examined(still(0, collective()), still(1, loader(), workers=workers))
    details = groups(one)[0].details
    assert any(text.startswith("DataLoader worker (pid 51) stays in __getitem__ (data.py:7)") for text in details)
    assert "1 DataLoader worker waits for something to load" in details


def test_a_rank_that_is_gone() -> None:
    one = examined(still(0, collective()), rank(1, gone="no such process"))
    assert groups(one)[0].words == "is gone: no such process"


def test_a_job_that_ended_while_it_was_looked_at() -> None:
    one = examined(*(rank(number, gone="it ended while it was looked at") for number in range(3)))
    assert headline(one) == "All 3 ranks have ended: the first error in the job's log says why"
    assert one.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("no such process", "are gone: no such process"),
        (
            "Z: it has ended, and its parent has not taken note",
            "are gone: Z: they have ended, and their parents have not taken note",
        ),
        ("it ended while it was looked at", "are gone: they ended while they were looked at"),
        ("no process on this host is this rank", "are gone: no process on this host is any of these ranks"),
    ],
)
def test_several_ranks_that_are_gone(gone: str, words: str) -> None:
    assert groups(examined(still(0, collective()), rank(1, gone=gone), rank(2, gone=gone)))[0].words == words


def test_several_ranks_that_could_not_be_looked_into() -> None:
    ranks = []
    for number in (1, 2):
        one = rank(number, own())
        assert one.watched
        looks = tuple(
            msgspec.structs.replace(look, frames=(), source=PySpyTrouble.DENIED.value) for look in one.watched.looks
        )
        ranks.append(msgspec.structs.replace(one, watched=msgspec.structs.replace(one.watched, looks=looks)))
    words = {group.ranks: group.words for group in groups(examined(moving(0), *ranks))}
    assert words["ranks 1 and 2"] == "could not be looked into: this user may not read their memory"


def test_nothing_was_seen_at_all() -> None:
    one = judge_hang(Snapshot(host="node01"), Hang(dumps="/dumps: no such folder"), catalogue())
    assert one.verdict is Verdict.UNKNOWN
    assert "Nothing was seen: /dumps: no such folder" in shown(one)


def test_a_stack_in_full_with_v() -> None:
    one = examined(still(0, collective()), still(1, own("load", 31)), between=31.0)
    assert "c10d_logger.py:83" not in shown(one).split("FAIL")[1]
    assert (
        "        all_reduce (/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252)"
        in shown(one, verbose=True)
    )


def test_a_line_a_finding() -> None:
    lines = shown(examined(still(0, collective()), still(1, own("load", 31))), quiet=True).splitlines()
    assert lines[0].startswith("WARN  rank-busy-outside-collectives: rank 1 ")
    assert "WARN  This job did not go on within 5.0 s; it may hang." in lines
    assert " ".join(lines[-3:]) == (
        "A slow step looks the same, so this is only a warning: the exit code is 0, or 1 with --strict. If nothing moves for 50 s,"
        " it is a failure; to look for so long: ddpdoctor jobs --hang 3990 --seconds 50"
    )
    assert len(lines) == 6


@pytest.mark.parametrize("count", [2, 256])
def test_80_columns_and_many_ranks(count: int) -> None:
    """Nothing but commands and paths is longer than a line, and the report doesn't grow with the ranks."""
    one = examined(
        *(still(number, own("load", 31) if number == count - 1 else collective()) for number in range(count))
    )
    lines = shown(one).splitlines()
    assert len(lines) < 45
    assert all(len(line) <= 80 or line.startswith(" " * 12) for line in lines)
    assert "\x1b" not in "".join(lines)


def test_a_name_can_t_steer_the_terminal() -> None:
    evil = own("lo\x1b[2Jad", 31, "/home/ada/\x1b]0;x\x07.py")
    assert "\x1b" not in shown(examined(still(0, collective()), still(1, evil)), verbose=True)


def test_json_has_the_facts_and_the_findings() -> None:
    one = examined(still(0, collective()), still(1, own("load", 31)), between=31.0)
    told = json.loads(to_json(build_report("jobs", [one], hang=hang_of(one))))
    assert told["verdict"] == "fail"
    assert [found["rank"] for found in told["findings"]] == [1]
    assert told["hang"]["ranks"][1]["watched"]["within"][0]["function"] == "load"
    assert "hang" not in json.loads(to_json(build_report("jobs", [one])))


def test_where_no_check_is_sure_a_longer_look_is_advised() -> None:
    one = examined(still(0, collective()), still(1, collective()))
    assert one.verdict is not Verdict.FAIL
    assert "ddpdoctor jobs --hang 3990 --seconds 50" in " ".join(shown(one).split())
    assert "--seconds 50" in shown(examined(still(0, collective()), still(1, own("load", 31))))
    longer = examined(still(0, collective()), still(1, own("load", 31)), between=31.0)
    assert longer.verdict is Verdict.FAIL
    assert "--seconds" not in shown(longer), "it can't get any surer"
    apart = examined(still(0, collective()), still(1, collective("barrier", 50)))
    assert apart.verdict is Verdict.FAIL
    assert "--seconds" not in shown(apart), "ranks in different collectives don't come together by waiting"


def test_who_saves_slowly_moves_on_in_every_sentence() -> None:
    """Half a second a write, which needs no processor."""
    one = still(0, saving(), waits_in="hrtimer_nanosleep")
    assert one.watched is not None
    slow = msgspec.structs.replace(one, watched=msgspec.structs.replace(one.watched, elsewhere=120))
    text = shown(examined(slow, still(1, collective())), width=200)
    assert "rank 0 moves on" in text
    assert "still moving; rank 1 waits for it" in text
    assert "WARN  Some of its ranks work, others wait or are still." in text
    assert "no movement" not in text


def test_a_loop_that_only_waits_does_not_move_on() -> None:
    one = still(0, own("wait_for_file", 30), waits_in="hrtimer_nanosleep")
    assert one.watched is not None
    polls = msgspec.structs.replace(one, watched=msgspec.structs.replace(one.watched, elsewhere=9))
    assert [group.words.split()[0] for group in groups(examined(polls, still(1, collective())))] == ["stays", "waits"]


def test_who_waits_for_a_rank_that_works_is_said_to() -> None:
    assert (
        headline(examined(moving(0), still(1, collective())))
        == "1 of 2 ranks moves; rank 1 waits for rank 0, which works"
    )
