"""The bounded copy of a run's output, and what of it can be under way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.run import output_copy as copying
from ddpdoctor.run.output_copy import WholeLines, join_copy, mark, read_part
from ddpdoctor.run.shared_output import SharedOutput


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(1, 40), st.integers(1, 40))
def test_the_copy_is_the_beginning_and_the_end(pieces: list[bytes], head: int, tail: int) -> None:
    shared = SharedOutput(head, tail)
    for piece in pieces:
        shared.keep(piece)
    whole = b"".join(pieces)
    behind = whole[head:]
    assert shared.copy() == (whole[:head], max(0, len(behind) - tail), behind[-tail:])


def test_an_ended_copy_stays_as_it_is() -> None:
    shared = SharedOutput(8, 8)
    shared.keep(b"first")
    shared.end_copy()
    shared.keep(b"second")
    assert shared.copy() == (b"first", 0, b"")


def test_lines_beside_what_is_left_out_are_whole() -> None:
    assert join_copy(b"one\ntw", 0, b"o\nthree") == b"one\ntwo\nthree"
    assert join_copy(b"one\ntw", 10, b"ine\nten\n") == b"one\n" + mark(16) + b"ten\n"
    assert join_copy(b"endless", 10, b"line") == b"endless\n" + mark(10) + b"line"


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=20)), max_size=40))
def test_streams_in_one_copy_keep_their_bytes_and_their_lines(pieces: list[tuple[int, bytes]]) -> None:
    lines = WholeLines(2)
    added = [(number, lines.add(number, memoryview(data))) for number, data in pieces]
    added += [(number, lines.rest(number)) for number in (0, 1)]
    for number in (0, 1):
        assert b"".join(data for which, data in added if which == number) == b"".join(
            data for which, data in pieces if which == number
        )
    assert all(data.endswith(b"\n") for _, data in added[:-2] if data)


def test_a_line_without_end_is_not_waited_for() -> None:
    lines = WholeLines(2)
    endless = b"." * (copying.MAX_LINE_BYTES + 1)
    assert lines.add(0, memoryview(endless)) == endless


def test_of_a_file_the_beginning_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"not ours\n" + b"".join(b"line %d\n" % number for number in range(1000)) + b"later")
    size = path.stat().st_size - 5
    reading = os.open(path, os.O_RDONLY)
    try:
        assert read_part(reading, 9, 30) == b"line 0\nline 1\nline 2\n"
        with path.open("rb") as file:
            whole = file.read()[9:size]
        assert read_part(reading, 9, size) == whole
        monkeypatch.setattr(copying, "HEAD_BYTES", 16)
        monkeypatch.setattr(copying, "FILE_TAIL_BYTES", 16)
        left_out = len(whole) - len(b"line 0\nline 1\nline 999\n")
        assert read_part(reading, 9, size) == b"line 0\nline 1\n" + mark(left_out) + b"line 999\n"
    finally:
        os.close(reading)
