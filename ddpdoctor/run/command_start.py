"""Starts the command, as a shell would: with the signals, descriptors and settings that we were given ourselves."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from ddpdoctor.run.output_streams import CarriedStream

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
_PYTHONS_OWN: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python itself."""


_SETTING: Final = re.compile(r"[A-Za-z_]\w*=")


class NotStarted(Exception):
    """Why there is no command, in a sentence; and the exit code that shells have for it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def start(
    command: Sequence[str],
    environ: Mapping[str, str],
    streams: Sequence[CarriedStream],
    ignored: Iterable[int],
    mask: Iterable[int],
) -> int:
    """Its pid. ignored: signals that were ignored when we were started, as by nohup. mask: those that were blocked.

    Raises:
        NotStarted: it can't be run.
    """
    heard, told = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        raise NotStarted(f"{command[0]} can't be started: {error.strerror}", NOT_EXECUTABLE) from None
    if not pid:
        _become(command, environ, streams, ignored, mask, told)
    os.close(told)
    with os.fdopen(heard, "rb") as answer:
        said = answer.read()
    if said:
        os.waitpid(pid, 0)
        raise _refusal(command[0], int(said))
    return pid


def let_go_of_inherited() -> None:
    """Of descriptors that are meant for the command: who waits for their end shall not wait for us. Our own aren't inheritable."""
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
    told: int,
) -> NoReturn:
    problem = errno.EIO
    try:
        for stream in streams:
            for descriptor in stream.numbers:
                os.dup2(stream.given, descriptor)
        for signals in _PYTHONS_OWN:
            signal.signal(signals, signal.SIG_DFL)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        # Handlers of ours are reset by the exec itself.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _run(command, environ)
    except OSError as error:
        problem = error.errno or problem
    finally:
        os.write(told, b"%d" % problem)
        os._exit(NOT_FOUND)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> None:
    try:
        os.execvpe(command[0], list(command), environ)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without "#!": every shell runs it by itself.
    path = next(
        one
        for folder in ([""] if "/" in command[0] else os.get_exec_path(dict(environ)))
        if os.access(one := os.path.join(folder, command[0]), os.X_OK)  # noqa: PTH118
    )
    os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], environ)


def _meant(name: str) -> str:
    """What was probably meant by a name that none is of; "" where nothing tells."""
    if _SETTING.match(name):
        return f". A setting goes before ddpdoctor: {name.partition('=')[0]}=... ddpdoctor run -- COMMAND"
    if len(words := name.split()) > 1:
        return f". A whole command in quotes is one word: leave the quotes out, ddpdoctor run -- {words[0]} ..."
    return ""


def _refusal(name: str, number: int) -> NotStarted:
    if number == errno.ENOENT:
        if os.path.lexists(name) and "/" in name:
            return NotStarted(
                f"{name} can't be run: its interpreter (the first line of it names one) is not there", NOT_FOUND
            )
        return NotStarted(f"{name}: no such command{_meant(name)}", NOT_FOUND)
    if number == errno.EACCES:
        return NotStarted(f"{name} is not executable: chmod +x it, or name the program that runs it", NOT_EXECUTABLE)
    return NotStarted(f"{name} can't be run: {os.strerror(number)}", NOT_EXECUTABLE)
