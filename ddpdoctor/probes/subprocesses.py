"""Runs programs that may hang or crash: each in a process group of its own, with a deadline, and with bounded output."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from ddpdoctor.probes.programs import interpreter_of
from ddpdoctor.probes.run_as import INQUIRY_MARK, NotRunError, RunAsUser, environ_for, identity_for, working_folder_for

MAX_OUTPUT_BYTES = 16 * 1024 * 1024
"""Bytes of each stream that are kept: one half from its start, the other from its end, since an answer may follow a flood."""


class EndedProgram(msgspec.Struct, frozen=True):
    """End of a program. Exactly one of these holds: `failed_to_start`, `timed_out`, or there is a `returncode`."""

    stdout: bytes = b""
    stderr: bytes = b""
    returncode: int | None = None
    timed_out: bool = False
    failed_to_start: str = ""

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def text(self) -> str:
        """Text that it wrote to stdout, without blanks at its ends."""
        return self.stdout.decode("utf-8", "replace").strip()

    @property
    def signal_name(self) -> str | None:
        """ "SIGSEGV" where a signal ended it, else None."""
        if self.returncode is None or self.returncode >= 0:
            return None
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"

    @property
    def cut_short(self) -> str:
        """ "hangs" where its time was up, "crashes: SIGSEGV" where a signal ended it, else ""."""
        if self.timed_out:
            return "hangs"
        return f"crashes: {self.signal_name}" if self.signal_name else ""

    def why_no_answer(self, seconds: float) -> str:
        """Say why it could not answer within those seconds; "" where it ended by itself."""
        if self.failed_to_start:
            return self.failed_to_start
        return f"no answer within {seconds:.0f} s" if self.timed_out else self.signal_name or ""

    def json_objects(self) -> list[dict[str, Any]]:
        """Read the JSON objects that it printed, one a line; whatever else a library printed, and a last line cut off, is passed over."""
        found = []
        for line in self.stdout.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [answer for answer in found if isinstance(answer, dict)]

    @property
    def answers(self) -> dict[str, Any]:
        """These objects put together, of one name the last."""
        return {name: value for answer in self.json_objects() for name, value in answer.items()}


MAX_WAIT_SECONDS = 1_000_000
"""Of one system call; the kernel counts milliseconds in 31 bits."""
END_SECONDS = 1.0
"""Seconds for those that are just being started as we end: a program on a dead file system may take for ever."""
PIPE_SECONDS = 0.5
"""Seconds for a pipe's end, or for more, once the program has ended."""
READ_SECONDS = 10.0
"""Seconds in which all that a program has printed is read, however busy the host is."""

_alive: set[StartedProgram] = set()


class _Starts:
    """Processes that are just being started: between the start of one and the note of it, nobody else could end it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise OSError(errno.ESHUTDOWN, "ddpdoctor is ending")
            self._under_way += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Allow no further start, and wait for those under way, but not for long."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._under_way, END_SECONDS)


_starts = _Starts()


def end_all() -> None:
    """Kill whatever is still running as we end, and start nothing any more, so that nothing of ours outlives us."""
    _starts.close()
    left = list(_alive)
    for started in left:
        started.send_kill()
    # One that hangs in the kernel holds us for as long as all together may.
    until = time.monotonic() + END_SECONDS
    for started in left:
        started.reap(until - time.monotonic())


@contextmanager
def _pidfd(pid: int) -> Iterator[select.poll]:
    """Open what can be waited for until that process ends."""
    file = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        yield poll
    finally:
        os.close(file)


class StartedProgram:
    """A program that was started; `wait()` gives how it ended."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        stdin: bytes,
        identity: RunAsUser | None,
        refusal: str = "",
    ) -> None:
        self._failure = refusal
        self._output: dict[str, bytes] = {}
        if refusal:
            return
        try:
            with _starts:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # The mark goes first: of long environments only the beginning is read.
                    env=INQUIRY_MARK | environ_for(identity, environ),
                    cwd=working_folder_for(identity),
                    start_new_session=True,
                    user=identity and identity.uid,
                    group=identity and identity.gid,
                    extra_groups=identity and identity.groups,
                )
                _alive.add(self)
        except (OSError, ValueError) as error:
            self._failure = getattr(error, "strerror", None) or str(error)
            if getattr(error, "filename", None) == os.devnull:
                self._failure += f" ({os.devnull})"
            return
        self._readers = {
            threading.Thread(target=self._read, args=(name,), daemon=True): name for name in ("stdout", "stderr")
        }
        try:
            for reader in self._readers:
                reader.start()
            if stdin:
                threading.Thread(target=self._feed, args=(stdin,), daemon=True).start()
        except RuntimeError as error:  # The limit of threads is reached.
            self.kill()
            self._failure = str(error)

    def _feed(self, stdin: bytes) -> None:
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                pipe.write(stdin)
        except OSError:
            pass  # It ended without reading; its exit code says why.

    def _read(self, name: str) -> None:
        start: list[bytes] = []
        end: deque[bytes] = deque()
        started = ended = 0
        with getattr(self._process, name) as pipe:
            while chunk := pipe.read1(65536):
                if started < MAX_OUTPUT_BYTES // 2:
                    start.append(chunk)
                    started += len(chunk)
                    continue
                end.append(chunk)
                ended += len(chunk)
                while ended > MAX_OUTPUT_BYTES // 2:
                    ended -= len(end.popleft())
        self._output[name] = b"".join((*start, *end))

    def wait(self, seconds: float) -> EndedProgram:
        """Wait until it has ended, or kill it and all that it started once the time is up."""
        if self._failure:
            return EndedProgram(failed_to_start=self._failure)
        timed_out = not self._has_ended(seconds)
        if timed_out:
            self.kill()
        return self._ended(timed_out=timed_out)

    def wait_until(self, moment: float) -> EndedProgram:
        """Do the same until a moment of the monotonic clock, but look at least once."""
        return self.wait(max(0.1, moment - time.monotonic()))

    def _has_ended(self, seconds: float) -> bool:
        """Whether it has within that time. It is not collected: until then no other process, or group, can get its number."""
        until, pause = time.monotonic() + seconds, 0.0005
        # The kernel tells us at once. Before 5.3, or where a sandbox forbids it, we look again and again.
        with suppress(AttributeError, OSError), _pidfd(self._process.pid) as ending:
            ending.poll(min(seconds, MAX_WAIT_SECONDS) * 1000)
        try:
            while not os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                if (left := until - time.monotonic()) <= 0:
                    return False
                pause = min(2 * pause, left, 0.05)
                time.sleep(pause)
        except ChildProcessError:
            pass  # It was killed meanwhile.
        return True

    def kill(self) -> None:
        """End it and its children."""
        self.send_kill()
        self.reap(END_SECONDS)

    def send_kill(self) -> None:
        """Send SIGKILL to it and its children."""
        if self._failure:
            return
        _alive.discard(self)
        if self._process.returncode is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self, seconds: float) -> None:
        """Wait for its end. One in an uninterruptible system call can't be ended by anybody, so don't wait long for it."""
        if not self._failure:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, seconds))

    def _ended(self, *, timed_out: bool) -> EndedProgram:
        self._finish_reading()
        if any(reader.is_alive() for reader in self._readers):
            self.kill()
            self._finish_reading()
        _alive.discard(self)
        code = None if timed_out else self._process.wait()
        return EndedProgram(self._output.get("stdout", b""), self._output.get("stderr", b""), code, timed_out=timed_out)

    def _finish_reading(self) -> None:
        """Let the readers take all that it has printed. A grandchild may hold a pipe open after the child has gone: that is not waited for."""
        until = time.monotonic() + READ_SECONDS
        for reader, name in self._readers.items():
            reader.join(PIPE_SECONDS)
            # On a busy host a thread may not have run at all within that time.
            while reader.is_alive() and self._has_more(name) and time.monotonic() < until:
                reader.join(PIPE_SECONDS)

    def _has_more(self, name: str) -> bool:
        """Whether its reader needn't wait for anybody: there is something to read, or the end."""
        poll = select.poll()
        try:
            poll.register(getattr(self._process, name), select.POLLIN)
            return bool(poll.poll(0))
        except (OSError, ValueError):  # The reader has closed it, and is at its last step.
            return True


def start(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    loads: Sequence[str | os.PathLike[str]] = (),
) -> StartedProgram:
    """Start a command without waiting for it. For root: as its owner, where it is another user's.

    Args:
        command: the program by its path, or ours (`sys.executable`), which is as trusted as we are.
        environ: ours by default.
        stdin: what it reads there.
        loads: files that it will run or load beside itself.
    """
    script = None if command[0] == sys.executable else command[0]
    program = [file for file in (script, script and interpreter_of(script)) if file]
    identity, refusal = None, ""
    try:
        identity = identity_for((*program, *loads))
    except NotRunError as error:
        refusal = str(error)
    return StartedProgram(command, os.environ if environ is None else environ, stdin, identity, refusal)


def run(
    command: Sequence[str], seconds: float, *, environ: Mapping[str, str] | None = None, stdin: bytes = b""
) -> EndedProgram:
    """Run a command as `start` does, for at most that many seconds."""
    return start(command, environ=environ, stdin=stdin).wait(seconds)
