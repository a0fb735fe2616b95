"""What is said meanwhile, where a cursor moves and where none does."""

from __future__ import annotations

import io
import time

import pytest

from ddpdoctor.base import status_line
from ddpdoctor.base.status_line import StatusLine


class Stream(io.StringIO):
    """Standard error, which may be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "is_ours", "once", "said"),
    [
        (True, True, "a log", "\r\x1b[Kbusy"),
        (False, True, "a log", "a log\n"),
        (False, True, "", ""),
        (False, False, "a log", ""),
        (True, False, "a log", ""),
    ],
    ids=["a terminal", "a log", "nothing for a log", "a log of a program", "a terminal of a program"],
)
def test_each_stream_is_told_what_it_can_show(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, is_ours: bool, once: str, said: str
) -> None:
    stream = Stream(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(status_line, "terminal_is_ours", lambda: is_ours)
    line = StatusLine(lambda _: "busy", delay=0.01, once=once)
    until = time.monotonic() + (10.0 if said else 0.2)
    while not stream.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    shown = stream.getvalue()
    line.close()
    assert (shown.startswith(said), bool(shown)) == (True, bool(said))
    assert shown.count("a log") == said.count("a log")
