"""Whatever becomes of the child that looks, the caller gets its own "no verdict"."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from ddpdoctor.cli import gate as command

PARENT = os.getpid()


def refuse() -> NoReturn:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def leave(code: int) -> NoReturn:
    """In the place of `os._exit`: of the child, too, which must not come back as a second pytest."""
    if os.getpid() != PARENT:
        os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(code)


@pytest.mark.parametrize(
    ("room", "name", "stand_in", "words"),
    [
        (os, "pipe", refuse, "no process could be started to look: Resource temporarily unavailable"),
        (os, "fork", refuse, "no process could be started to look: Resource temporarily unavailable"),
        (command, "_judge", lambda *_, **__: b'{"code": 0, "std', "was ended in the middle of its answer"),
        (
            command,
            "_judge",
            lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL),
            "the process that looked at the node was ended by SIGKILL",
        ),
    ],
    ids=["pipe", "fork", "half an answer", "killed"],
)
def test_a_child_that_fails_is_no_verdict(
    room: Any,
    name: str,
    stand_in: Callable[..., Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # The limit counts from the start of the process, which here is pytest's.
    monkeypatch.setattr(command, "seconds_since_start", lambda: 0.0)
    monkeypatch.setattr(room, name, stand_in)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as ended:
        command.gate("nagios", quick=True)
    assert ended.value.code == 3
    assert words in capfd.readouterr().out
