"""Starts the command, as a shell would: with the signals, descriptors and settings that ddpdoctor was given; and adopts what it leaves
behind."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from ddpdoctor.run.output_streams import CarriedStream

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
PR_SET_CHILD_SUBREAPER: Final = 36
"""See linux/prctl.h."""

_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python itself ignores them."""
_SETTING: Final = re.compile(r"[A-Za-z_]\w*=")


class NotStarted(Exception):
    """The command can't be started: the text says why; code: the exit code that shells have for it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def start_command(
    command: Sequence[str],
    environ: Mapping[str, str],
    streams: Sequence[CarriedStream],
    ignored: Iterable[int],
    mask: Iterable[int],
) -> int:
    """Start the command, with those signals ignored and blocked that were when ddpdoctor was started. Returns its pid.

    Raises:
        NotStarted: it can't be run.
    """
    problem_read, problem_write = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        raise NotStarted(f"{command[0]} can't be started: {error.strerror}", NOT_EXECUTABLE) from None
    if not pid:
        _become(command, environ, streams, ignored, mask, problem_write)
    os.close(problem_write)
    with os.fdopen(problem_read, "rb") as answer:
        problem = answer.read()
    if problem:
        os.waitpid(pid, 0)
        code, text = _explain(command[0], int(problem))
        raise NotStarted(text, code)
    return pid


def adopt_orphans() -> None:
    """Become the parent of all orphans of the command, however they have cut themselves off: by a session of their own, by nohup,
    as a daemon. When we end, the system's or container's first process gets them, as without us."""
    import ctypes  # Here: a Python without it may run a command, too.

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def child_pids() -> frozenset[int]:
    """The pids of our own children, also of those that have ended and were not waited for."""
    found = ""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += (thread / "children").read_text()
    return frozenset(int(pid) for pid in found.split())


def close_inherited() -> None:
    """Close the descriptors that are meant for the command: a process that waits for their end shall not wait for us. Our own aren't
    inheritable."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                os.close(int(name))


def _become(
    command: Sequence[str],
    environ: Mapping[str, str],
    streams: Sequence[CarriedStream],
    ignored: Iterable[int],
    mask: Iterable[int],
    problem_write: int,
) -> NoReturn:
    problem = errno.EIO
    try:
        for stream in streams:
            for descriptor in stream.numbers:
                os.dup2(stream.given, descriptor)
        for signals in _IGNORED_BY_PYTHON:
            signal.signal(signals, signal.SIG_DFL)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        # Handlers of ours are reset by the exec itself.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _run(command, environ)
    except OSError as error:
        problem = error.errno or problem
    finally:
        os.write(problem_write, b"%d" % problem)
        os._exit(NOT_FOUND)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> None:
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without "#!": every shell runs it by itself.
    path = next(
        file
        for folder in ([""] if "/" in command[0] else os.get_exec_path(dict(environ)))
        if os.access(file := os.path.join(folder, command[0]), os.X_OK)  # noqa: PTH118
    )
    os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], environ)


def _hint(name: str) -> str:
    """Say what was probably meant by the name of no program; "" where nothing tells."""
    if _SETTING.match(name):
        return f". A setting goes before ddpdoctor: {name.partition('=')[0]}=... ddpdoctor run -- COMMAND"
    if len(words := name.split()) > 1:
        return f". A whole command in quotes is one word: leave the quotes out, ddpdoctor run -- {words[0]} ..."
    return ""


def _explain(name: str, problem: int) -> tuple[int, str]:
    """The exit code for an error number of exec, and what it means."""
    if problem == errno.ENOENT and os.path.lexists(name) and "/" in name:
        return NOT_FOUND, f"{name} can't be run: its interpreter (the first line of it names one) is not there"
    if problem == errno.ENOENT:
        return NOT_FOUND, f"{name}: no such command{_hint(name)}"
    if problem == errno.EACCES:
        return NOT_EXECUTABLE, f"{name} is not executable: chmod +x it, or name the program that runs it"
    return NOT_EXECUTABLE, f"{name} can't be run: {os.strerror(problem)}"
