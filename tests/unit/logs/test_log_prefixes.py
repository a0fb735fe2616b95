"""Prefixes of collectors that nobody knows: found by a traceback's first two lines, and taken off from there on."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, verdict_of
from tests.support.logs_by_hand import read

STEPS = "step 1 loss 2.0\nstep 2 loss 1.0\n"
TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in <module>
    main()
  File "/home/ada/train.py", line 7, in main
    step()
ValueError: bad thing
"""


def prefixed(prefix: str, text: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def judged(text: str) -> LogVerdict:
    return verdict_of(read(text), catalogue())


@pytest.mark.parametrize("steps", ["", STEPS])
@pytest.mark.parametrize(
    "prefix",
    [
        "[1/2] ", "<3> ", "[worker 1] ", "[R3] ", "[gpu3] ", "trainer_0> ", "2/8: ", "n1[2]: ", "[stderr]", "gn01 3: ",
        "[node2] ", "(node2) ", "{node2} ", "trainer-0| ", "[1] ", "#7 0.412 ", "12.34 ", "[00:01:23.4] ",
    ],
)  # fmt: skip
def test_an_unknown_prefix_hides_no_traceback(prefix: str, steps: str) -> None:
    found = judged(prefixed(prefix, steps + TRACEBACK))
    assert found.outcome is RunOutcome.USER_ERROR
    assert found.raised is not None
    assert (found.raised.exception, found.raised.message) == ("ValueError", "bad thing")
    assert [frame.function for frame in found.raised.frames] == ["<module>", "main"]


def test_numbers_in_it_may_change_from_line_to_line() -> None:
    lines = TRACEBACK.splitlines(keepends=True)
    found = judged("".join(f"#7 0.{412 + 3 * number} {line}" for number, line in enumerate(lines)))
    assert found.raised is not None
    assert found.raised.exception == "ValueError"


@pytest.mark.parametrize(
    ("prefix", "rank"), [("[worker-2] [rank2]: ", 2), ("(rank 3) ", 3), ("[R3] ", None), ("[1,3]<stderr>: ", 3)]
)
def test_labels_behind_it_count(prefix: str, rank: int | None) -> None:
    found = judged(prefixed(prefix, TRACEBACK))
    assert found.lead is not None
    assert (found.lead.text.strip(), found.lead.rank) == ("ValueError: bad thing", rank)


def test_what_follows_the_traceback_has_lost_it_too() -> None:
    end = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
    found = judged(prefixed("[node2] ", TRACEBACK.replace("ValueError: bad thing\n", end)))
    assert [suspect.slug for suspect in found.suspects] == ["rdzv-connect-failed"]


@pytest.mark.parametrize("prefix", ["# ", "// ", "E       ", "    3\t", "2026-01-02 03:04:05 WARNING cache: "])
def test_what_is_only_shown_stays_so(prefix: str) -> None:
    assert judged(prefixed(prefix, TRACEBACK)).outcome is RunOutcome.NOTHING


def test_of_a_summary_that_shows_a_part_of_a_traceback_the_line_above_tells() -> None:
    told = "* 1 x torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n"
    part = prefixed("    | ", "".join(TRACEBACK.splitlines(keepends=True)[:3]))
    assert judged(prefixed("remote [stdout] ", told + part)).outcome is RunOutcome.STOPPED


def test_grep_puts_another_mark_before_lines_around_its_hits() -> None:
    lines = TRACEBACK.splitlines(keepends=True)
    found = judged(
        "".join(f"job.err-{11 + at}-{line}" for at, line in enumerate(lines[:-1])) + f"job.err:16:{lines[-1]}"
    )
    assert found.raised is not None
    assert found.raised.exception == "ValueError"
