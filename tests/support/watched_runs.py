"""What tests of `ddpdoctor run` have in common: a terminal with somebody at it, our processes by name, programs to run."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.command import command, plain_environ
from tests.support.running_jobs import wait_until

SECONDS = 60.0


def run(*arguments: str, options: Sequence[str] = ()) -> list[str]:
    """`ddpdoctor run OPTIONS -- ARGUMENTS`."""
    return command("run", *options, "--", *arguments)


def program(folder: Path, text: str) -> list[str]:
    """A Python program with that text, which prints without delay."""
    path = folder / "program.py"
    path.write_text(f"import os, signal, sys, time\n{text}")
    return [sys.executable, "-u", str(path)]


@contextmanager
def started(line: Sequence[str], cwd: Path, **streams: int) -> Iterator[subprocess.Popen[str]]:
    """It in that folder, with text in its streams; a test that fails doesn't wait for its end."""
    with subprocess.Popen(line, env=plain_environ(), cwd=cwd, text=True, **streams) as one:
        try:
            yield one
        except BaseException:
            one.terminate()
            raise


def children(pid: int) -> list[int]:
    """Those of a process."""
    with suppress(OSError):
        return [int(part) for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def relay_of(supervisor: int, command: int) -> int:
    """The other child."""
    (found,) = set(children(supervisor)) - {command}
    return found


def ended(pid: int) -> bool:
    """It is no more, or nobody has collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class Terminal:
    """A terminal with a command in it, which leads its session. heard: all that it has shown."""

    def __init__(self, line: Sequence[str], environ: dict[str, str], cwd: Path) -> None:
        self.pid, self._master = pty.fork()
        if not self.pid:
            try:
                os.chdir(cwd)
                os.execvpe(line[0], list(line), environ)
            finally:
                os._exit(126)
        self.heard = b""
        self.status: int | None = None

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def foreground(self) -> int:
        """The process group that has it."""
        return os.tcgetpgrp(self._master)

    def settings(self) -> list[object]:
        found: list[object] = termios.tcgetattr(self._master)
        return found

    def wait_for(self, text: str, seconds: float = SECONDS) -> bytes:
        """All that was shown until then, and that text, which is then forgotten."""
        until = time.monotonic() + seconds
        while text.encode() not in self.heard:
            assert time.monotonic() < until, f"waited for {text!r}: {self.heard[-2000:]!r}"
            assert self._hear(0.1), f"the terminal is closed before {text!r}: {self.heard[-2000:]!r}"
        before, found, self.heard = self.heard.partition(text.encode())
        return before + found

    def to_its_end(self) -> bytes:
        """Waits until the command has ended; all that was shown by then."""
        while self._hear(SECONDS):
            pass
        self.wait()
        return self.heard

    def wait(self) -> int:
        """The status of what was started."""
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)
        return self.status

    def _hear(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            assert seconds < SECONDS, f"nothing for {seconds} s: {self.heard[-2000:]!r}"
            return True
        try:
            said = os.read(self._master, 65536)
        except OSError:
            return False
        self.heard += said
        return bool(said)

    def close(self) -> None:
        """Ends all that is left in it."""
        with suppress(OSError):
            os.close(self._master)
        if self.status is None:
            for pid in _session(self.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.wait()


def _session(leader: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal():
            with suppress(OSError, ProcessLookupError):
                if os.getsid(int(name)) == leader:
                    found.append(int(name))
    return found


@contextmanager
def terminal(line: Sequence[str], cwd: Path, **environ: str) -> Iterator[Terminal]:
    """That command in a terminal of its own."""
    one = Terminal(line, plain_environ() | {"TERM": "xterm"} | environ, cwd)
    try:
        yield one
    finally:
        one.close()


@contextmanager
def shell(cwd: Path) -> Iterator[Terminal]:
    """An interactive bash, with job control."""
    with terminal(["bash", "--norc", "--noprofile", "-i"], cwd, PS1="$ ", HISTFILE="") as one:
        one.wait_for("$ ")
        yield one


def written(path: Path) -> str:
    """What a program leaves in that file, once it is there."""
    wait_until(lambda: path.exists() and bool(path.read_text()), str(path), SECONDS)
    return path.read_text()
