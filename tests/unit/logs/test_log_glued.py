"""A traceback that begins on a line which another program, or another rank, has not ended."""

from __future__ import annotations

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from tests.support.logs_by_hand import read

FRAMES = '  File "/home/ada/t.py", line 1, in <module>\n    main()\n'
PORT = "RuntimeError: Address already in use"
HEADER = "Traceback (most recent call last):\n"


def labelled(label: str, text: str) -> str:
    return "".join(f"{label}{line}" for line in text.splitlines(keepends=True))


def test_the_line_that_was_not_ended_ends_its_own_traceback() -> None:
    log = read(f"{HEADER}{FRAMES}{PORT}{HEADER}{FRAMES}KeyError: 'x'\n")
    assert [(one.exception, one.line.number, one.began.number) for one in log.raised] == [
        ("RuntimeError", 4, 1),
        ("KeyError", 7, 4),
    ]
    verdict = verdict_of(log, catalogue())
    assert [suspect.slug for suspect in verdict.suspects][:1] == ["port-in-use"]
    assert verdict.lead
    assert verdict.lead.text == PORT


def test_of_two_ranks_each_has_its_own() -> None:
    first = labelled("[rank1]: ", f"{HEADER}{FRAMES}ValueError: bad")
    second = labelled("[rank0]: ", f"{HEADER}{FRAMES}KeyError: 3\n")
    log = read(f"[rank0]: step 1 loss 2.0\n{first}{second}")
    assert [(one.exception, one.line.rank) for one in log.raised] == [("ValueError", 1), ("KeyError", 0)]


@pytest.mark.parametrize(
    "label", ["[default1]:[rank1]: ", "[1,3]<stderr>:", "[stderr]", "Nov 22 02:13:07 node7 train[4711]: "]
)
def test_a_label_is_no_such_line(label: str) -> None:
    log = read(labelled(label, f"{HEADER}{FRAMES}KeyError: 3\n") * 2)
    assert [one.exception for one in log.raised] == ["KeyError", "KeyError"]
    assert verdict_of(log, catalogue()).outcome is RunOutcome.USER_ERROR


def test_a_progress_bar_is_one_that_says_nothing() -> None:
    log = read(f" 41%|####      | 410/1000 [02:10<03:08,  3.12it/s]{HEADER}{FRAMES}KeyError: 3\n")
    assert [one.exception for one in log.raised] == ["KeyError"]
