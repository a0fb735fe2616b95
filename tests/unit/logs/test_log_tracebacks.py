"""Tracebacks as they stand in logs: interleaved, chained, in groups, cut off."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Callable

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.log import Log, LogFrame, LoggedException
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs


def read(text: str) -> Log:
    return read_logs(["-"], stdin=io.BytesIO(text.encode()), vocabulary=vocabulary(catalogue()))


def only(text: str) -> LoggedException:
    (raised,) = read(text).raised
    return raised


def printed(function: Callable[[], object]) -> str:
    """The traceback as this Python prints it."""
    try:
        function()
    except BaseException:
        return traceback.format_exc()
    raise AssertionError


OWN = "/home/ada/train.py"
SIMPLE = f"""\
Traceback (most recent call last):
  File "{OWN}", line 12, in <module>
    main()
    ~~~~^^
  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _call_impl
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x12 and 16x32)
"""


def test_a_traceback_has_its_frames_and_the_users_own_one() -> None:
    raised = only(SIMPLE)
    assert (raised.exception, raised.message[:4], raised.line.number, raised.began.number) == (
        "RuntimeError",
        "mat1",
        8,
        1,
    )
    assert [frame.line for frame in raised.frames] == [12, 1511]
    assert raised.own == LogFrame(OWN, 12, "<module>", "main()")


def test_tracebacks_of_several_ranks_that_are_interleaved_are_told_apart() -> None:
    lines = SIMPLE.splitlines()
    mixed = "".join(f"[rank{rank}]: {line}\n" for line in lines for rank in range(8))
    found = read(mixed).raised
    assert [one.line.rank for one in found] == list(range(8))
    assert all(len(one.frames) == 2 and one.exception == "RuntimeError" for one in found)


def test_a_chain_is_told_and_its_first_one_is_the_cause() -> None:
    def fails() -> None:
        try:
            {}["x"]
        except KeyError as error:
            raise ValueError("bad") from error

    found = read(printed(fails)).raised
    assert [(one.exception, one.chained) for one in found] == [("KeyError", True), ("ValueError", False)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_exceptions_of_a_group_are_all_found() -> None:
    def one(error: Exception) -> Exception:
        try:
            raise error
        except Exception as caught:
            return caught

    def fails() -> None:
        group = __builtins__["ExceptionGroup"] if isinstance(__builtins__, dict) else __builtins__.ExceptionGroup
        raise group("several", [one(KeyError("x")), one(OSError("y"))])

    assert {one.exception for one in read(printed(fails)).raised} == {"ExceptionGroup", "KeyError", "OSError"}


def test_a_syntax_error_is_one() -> None:
    raised = only(printed(lambda: compile("def f(:", OWN, "exec")))
    assert raised.exception == "SyntaxError"
    assert raised.frames[-1].path == OWN


def test_what_a_message_says_on_further_lines_is_no_exception() -> None:
    text = (
        SIMPLE + "CUDA kernel errors might be reported later\nValueError: is only mentioned in a message of two lines\n"
    )
    assert [one.exception for one in read(text).raised] == ["RuntimeError"]


def test_a_traceback_that_is_cut_off_has_no_exception() -> None:
    (cut,) = read(SIMPLE.rpartition("RuntimeError")[0]).raised
    assert cut.exception == cut.message == ""
    assert cut.frames
    assert cut.line.number > cut.began.number


def test_of_the_same_traceback_over_and_over_a_few_are_kept_and_all_are_counted() -> None:
    found = read(SIMPLE * 40).raised
    assert len(found) <= 3
    assert sum(one.times for one in found) == 40


def test_a_traceback_in_torchruns_table_is_of_the_rank_of_its_entry() -> None:
    table = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_02:13:07
  host      : node3
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 4711)
  error_file: /tmp/x/error.json
  traceback : Traceback (most recent call last):
    File "/home/ada/train.py", line 16, in main
      raise ValueError("bad batch")
  ValueError: bad batch

============================================================
"""
    log = read(table)
    assert [(one.exception, one.line.rank, one.line.host) for one in log.raised] == [("ValueError", 5, "node3")]
    (exited,) = log.exited
    assert (exited.rank, exited.local_rank, exited.host, exited.pid, exited.exit_code) == (5, 1, "node3", 4711, 1)
    assert exited.first
    assert exited.error == "ValueError: bad batch"


def test_a_field_of_torchruns_table_is_no_message() -> None:
    name = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
    fields = "  time      : 2024-06-02_11:00:31\n  host      : node0\n  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 4711)\n"
    raised = only(
        f'Traceback (most recent call last):\n  File "{OWN}", line 12, in <module>\n    main()\n{name}:\n{fields}'
    )
    assert raised.exception == name
    assert not raised.message
