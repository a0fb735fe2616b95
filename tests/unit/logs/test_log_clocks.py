"""Times that a line has only from an earlier one: it was written then, or later."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import LoggedException, LogLine
from ddpdoctor.logs.analyze.verdict import verdict_of
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.logs.match.global_ranks import Placing
from ddpdoctor.logs.render.headline import headline
from tests.support.logs_by_hand import read

OLD = "[2026-11-22 10:20:02,102] torch.distributed.run: [WARNING] the launcher's own word\n"
FELL = (
    "Traceback (most recent call last):\n"
    '  File "/home/ada/train.py", line 9, in <module>\n'
    "    step(batch)\n"
    "KeyError: 'labels'\n"
)
TABLE = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_11:02:16
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 291)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def lead(text: str) -> LogLine:
    found = verdict_of(read(text), catalogue()).lead
    assert found is not None
    return found


def labelled(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("stamp", ["", "2026-11-22 10:20:05,500 ERROR train: "])
def test_a_clock_that_an_earlier_line_lends_is_not_told(stamp: str) -> None:
    text = OLD + stamp + FELL
    found = lead(text)
    assert found.lent is not bool(stamp)
    assert (", at 10:20:05, " in headline(judge_log(read(text), catalogue()))) is bool(stamp)
    assert "10:20:02" not in headline(judge_log(read(text), catalogue()))


def test_the_table_tells_when_it_was() -> None:
    text = OLD + FELL + TABLE
    assert lead(text).rank == 1
    assert headline(judge_log(read(text), catalogue())).startswith("Rank 1 on node1 failed first, at 11:02:16, ")


def test_a_lent_clock_proves_no_order() -> None:
    """Rank 0 said something long before, and fell behind rank 1."""
    old = labelled(0, OLD) + labelled(1, OLD.replace("10:20:02", "10:40:00"))
    text = old + labelled(1, FELL) + "step 1\n" * 200 + labelled(0, FELL.replace("labels", "masks"))
    assert lead(text).rank == 1
    own = "2026-11-22 {} ERROR train: "
    first, second = labelled(0, own.format("10:30:00") + FELL), labelled(1, own.format("10:31:00") + FELL)
    assert lead(second + "step 1\n" * 200 + first).rank == 0


def test_every_line_of_an_exception_gets_its_rank_and_its_year() -> None:
    line = LogLine(file=0, number=1, text="", local_rank=1, host="b", time=5.0)
    raised = LoggedException(exception="E", message="", line=line, began=line, reason=line)
    placed = Placing([("b", 0, 4)], 1_700_000_000.0).fact(raised)
    assert placed.line.rank == 5
    assert placed.line == placed.began == placed.reason
