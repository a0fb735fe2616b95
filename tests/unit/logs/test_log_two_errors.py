"""Errors of two ranks that have nothing to do with each other: both are told."""

from __future__ import annotations

import json

import msgspec

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.render.document import log_document
from ddpdoctor.logs.render.headline import headline
from ddpdoctor.logs.render.json_report import log_report
from ddpdoctor.report.terminal import text_of
from tests.support.logs_by_hand import log, raised, read

VALUE = raised("ValueError", "bad literal", number=10, rank=1)
INDEX = raised("IndexError", "list index out of range", number=20, rank=3)
LOST = raised("RuntimeError", "Connection closed by peer [127.0.0.1]:25512", number=30, rank=0, library=True)
OWN = "Rank 3 raised its own: IndexError: list index out of range"


def shown(judged: Log) -> str:
    return text_of(log_document(judge_log(judged, catalogue())), 200)


def test_the_second_error_is_told_and_not_laid_aside() -> None:
    text = shown(log(VALUE, INDEX, LOST))
    assert "Rank 1 failed first" in text
    assert OWN in text
    assert "Leave the other ranks' errors aside" not in text


def test_what_several_ranks_raise_alike_or_only_lost_is_none() -> None:
    alike = msgspec.structs.replace(VALUE, line=msgspec.structs.replace(INDEX.line, number=21))
    assert "raised its own" not in shown(log(VALUE, alike, LOST))


def test_links_of_one_chain_are_one_error() -> None:
    """Of a chain that other ranks' lines have torn apart only the end may be known, or its beginning without the script's line."""
    below = [raised("OSError", "the repository is gated", number=20 * rank, rank=rank) for rank in (1, 3)]
    first = msgspec.structs.replace(raised("HTTPError", "401 Client Error", number=12, rank=1), chained=True)
    torn = msgspec.structs.replace(raised("HTTPError", "401 Client Error", number=15, rank=3), own=None, frames=())
    text = shown(log(first, torn, *below))
    assert "Ranks 1 and 3 failed alike" in text
    assert "raised its own" not in text
    assert "Ranks 1 and 3 raised HTTPError" in text
    assert "raised its own: IndexError" in shown(log(first, torn, *below, INDEX))


def test_json_tells_it() -> None:
    report = json.loads(msgspec.json.encode(log_report(judge_log(log(VALUE, INDEX, LOST), catalogue()))))
    assert [one["why"] for one in report["log"]["also"]] == [OWN]
    assert report["log"]["also"][0]["slug"] == "user-code-error"


def test_ranks_that_fell_in_the_same_line_by_something_else_did_not_raise_the_same() -> None:
    shapes = raised("RuntimeError", "shapes cannot be multiplied (8x15 and 16x32)", number=10, rank=1)
    same = raised("RuntimeError", "shapes cannot be multiplied (8x12 and 16x32)", number=20, rank=2)
    gone = raised("RuntimeError", "Connection closed by peer [127.0.0.1]:25512", number=30, rank=0)
    assert "Ranks 1 and 2 raised RuntimeError: shapes" in shown(log(shapes, same, gone))
    mine = raised("RuntimeError", "the loader has no more rows", number=20, rank=3)
    text = shown(log(shapes, mine, gone))
    assert "Rank 1 raised RuntimeError: shapes" in text
    assert "Rank 3 raised its own: RuntimeError: the loader has no more rows" in text


def test_the_process_that_mp_spawn_names_is_a_rank() -> None:
    frame = '  File "/home/ada/train.py", line 8, in worker\n    raise RuntimeError("bad")\n'
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/ada/train.py", line 19, in <module>\n    mp.spawn(worker, nprocs=2)\n'
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        "-- Process 1 terminated with the following error:\n"
        f"Traceback (most recent call last):\n{frame}RuntimeError: bad\n"
    )
    assert "Rank 1 failed first" in shown(read(text))


def test_ranks_that_raise_the_same_in_one_moment_failed_alike() -> None:
    alike = msgspec.structs.replace(VALUE, line=msgspec.structs.replace(INDEX.line, number=21))
    assert headline(judge_log(log(VALUE, alike, LOST), catalogue())).startswith("Ranks 1 and 3 failed alike")
    times = [
        msgspec.structs.replace(one, line=msgspec.structs.replace(one.line, time=at))
        for one, at in ((VALUE, 60.0), (alike, 240.0))
    ]
    assert headline(judge_log(log(*times, LOST), catalogue())).startswith("Rank 1 failed first")


def test_a_rank_may_only_tell_of_what_lies_between_ranks() -> None:
    frame = '[rank0]:   File "/home/ada/train.py", line 9, in <module>\n[rank0]:     dist.monitored_barrier()\n'
    end = "[rank0]: RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 5000 ms\n"
    judged = judge_log(read(f"[rank0]: Traceback (most recent call last):\n{frame}{end}"), catalogue())
    told = "Rank 0 tells of it first: ranks 2 and 3 never came to the collective in which the others wait"
    assert headline(judged) == told
