"""Reading twice as much takes twice as many steps, whatever stands in it. Steps are lines of Python, not time."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.logs.analyze.false_positives import SHOULD_DUMP, real_sightings
from ddpdoctor.logs.match import scanning
from ddpdoctor.logs.match.line_judge import MAX_LINE_BYTES, LineJudge
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs

SAYS = "loss: nan CUDA out of memory. Error: x"
SHAPES: dict[str, Callable[[int], str]] = {
    "exceptions that led to one another": lambda size: "".join(
        f'Traceback (most recent call last):\n  File "/home/ada/train{at}.py", line {at}, in f\nE{at}Error: bad\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        for at in range(size)
    ),
    "headers of tracebacks alone": lambda size: "Traceback (most recent call last):\n" * size,
    "ever more ranks": lambda size: "".join(f"[rank{rank}]: {SAYS}\n" for rank in range(size)),
    "ranks that wait for each other's lines": lambda size: "".join(
        f"[rank{at % 97}]: Traceback (most recent call last):\n[rank{at % 89}]: step {at}\n" for at in range(size)
    ),
    "bars that are written over": lambda size: f"10%|#| {SAYS}\r" * size,
    "one long line": lambda size: f"{SAYS} " * size,
    "one long word": lambda size: "Error:" * size * 10,
    "tiny lines": lambda size: "x\n" * size * 10,
    "tables without an end": lambda size: "Failures:\n[0]:\n  rank      : 5 (local_rank: 1)\n" * size,
    "labels on labels": lambda size: ("[rank1]:" * 20 + f" {SAYS}\n") * size,
}


def steps(work: Callable[[], object]) -> int:
    """How many lines of the engine's Python ran."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "/ddpdoctor/logs/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def read(text: str) -> Log:
    return read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue()))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_twice_as_much_takes_twice_as_many_steps(shape: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "SAMPLES_OF_FIRST_BLOCK", 20)
    vocabulary(catalogue())
    assert steps(lambda: read(shape(400))) < 2.3 * steps(lambda: read(shape(200)))


def test_so_does_dropping_what_many_ranks_said_while_they_waited() -> None:
    few, many = (
        read(
            "".join(
                f"[rank{rank}]: {SHOULD_DUMP} with error: Broken pipe\n[rank{rank}]: step {rank}\n"
                for rank in range(size)
            )
        )
        for size in (100, 200)
    )
    assert real_sightings(few, catalogue()).seen == []
    assert steps(lambda: real_sightings(many, catalogue())) < 2.3 * steps(lambda: real_sightings(few, catalogue()))


@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\n"])
def test_no_pattern_sees_more_of_a_line_than_is_kept(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is fast on lines of megabytes."""
    longest = 0
    judge = LineJudge.line

    def line(self: LineJudge, *arguments: object) -> LogLine:
        nonlocal longest
        made = judge(self, *arguments)  # type: ignore[arg-type]
        longest = max(longest, len(made.text))
        return made

    monkeypatch.setattr(LineJudge, "line", line)
    text = f"{'x' * 70_000}{SAYS}{'y' * 70_000}{end}Traceback (most recent call last):{' ' * 70_000}{end}{SAYS * 3000}{end}"
    read(text)
    assert MAX_LINE_BYTES // 2 < longest <= MAX_LINE_BYTES


@pytest.mark.parametrize("filler", ["1", ".", "a1", "a.", "_", " ", "[", "a ", "1 "])
def test_a_level_is_looked_for_in_few_steps(filler: str) -> None:
    """As a pattern that can split its text in several ways each of these lines would take a second."""
    text = "".join(f"{filler * (900 // len(filler))} Error: {number}\n" for number in range(200))
    assert len(read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue())).files) == 1


ENDLESS = 3 << 20
"""Bytes of one line."""


def pieces_read(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Log, int]:
    """What was made of it, and how many pieces of lines were judged."""
    count = 0
    read = LineJudge.read

    def counted(self: LineJudge, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return read(self, *arguments, **options)

    monkeypatch.setattr(LineJudge, "read", counted)
    return read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue())), count


@pytest.mark.parametrize("text", [SAYS, " ".join(sign.text for check in all_checks() for sign in check.log_signs)])
def test_of_a_line_of_megabytes_some_is_left_out_and_that_is_said(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"{text} " * (ENDLESS // len(text))
    end = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error."
    log, count = pieces_read(f"first\n{line}{end}\n{SAYS}\n", monkeypatch)
    blocks = ENDLESS // scanning.BLOCK_BYTES + 2
    assert count <= scanning.MAX_PIECES + scanning.LAST_HITS * blocks + 10
    assert [note for note in log.notes if note.startswith("line 2 of the input is so long")]
    assert any("Bus error" in sighting.line.text for sighting in log.sightings)


@pytest.mark.parametrize("between", ["\r", "\n", "\r\n"])
def test_a_progress_bar_is_no_such_line(between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it gets without a newline, what is written over each time is a line of its own."""
    bar = "".join(
        f"{at % 100}%|###   | {at}/100 [00:01<00:09, 3.2it/s, loss: {at}.3]{between}" for at in range(ENDLESS // 60)
    )
    error = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error."
    log, _ = pieces_read(bar + error + between + bar, monkeypatch)
    assert not log.notes
    assert any("Bus error" in sighting.line.text for sighting in log.sightings)


@pytest.mark.parametrize("filler", ["x", "[", "7", " ", "\0", "\x1b[", '{"a": [', "│", "\n", "\r"])
def test_what_stands_behind_megabytes_of_nothing_is_read(filler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error."
    log, count = pieces_read(filler * (ENDLESS // len(filler.encode())) + "\n" + error + "\n", monkeypatch)
    assert any("Bus error" in sighting.line.text for sighting in log.sightings)
    assert count < 10
    assert not log.notes
