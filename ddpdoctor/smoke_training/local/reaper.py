"""The reaper: a process between ddpdoctor and the job, so that nothing outlives ddpdoctor, however that ends.

    python -I -S reaper.py FOLDER COMMAND...

Starts the command and waits for its end, or for the end of its own standard input: ddpdoctor holds the other side, and
closes it to have all ended, or by dying. Then it kills every process that the command has started, also those whose parents
are gone (they become its own children: prctl(2), PR_SET_CHILD_SUBREAPER), and removes the folder and the shared memory that
they had and nobody else uses. On its standard output, once the command has ended by itself: its status in a line, a signal's
number negative.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import time
from contextlib import suppress
from shutil import rmtree

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENDING_SECONDS = 5.0
"""After which what can't be killed is left alone: a process in the kernel may stay for ever."""
MAX_NOTE_SECONDS = 5.0
"""At most between two looks at what the processes have mapped."""
TRACKER_SECONDS = 1.0
"""For multiprocessing's resource tracker, once it is alone, to remove the semaphores of those that were killed."""


def main() -> None:
    """Run the command of sys.argv and end all that it has started."""
    folder, command = sys.argv[1], sys.argv[2:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Whoever wants to end us closes our standard input; what a terminal sends is for ddpdoctor.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    child = start_command(command, libc)
    # Not at the top: the command, which takes seconds to start, needn't wait for it. Without site-packages it isn't found.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__)))))  # noqa: PTH120
    from ddpdoctor.smoke_training.local.shared_memory import SHARED, free, mapped_by, own_files

    before = own_files(SHARED).keys()
    poll = select.poll()
    for descriptor in (0, read):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    notes = MemoryNotes(folder)
    while child not in (ended := reap()):
        ready = {descriptor for descriptor, _ in poll.poll(notes.milliseconds_left())}
        if not ready:
            notes.add(
                {key: own_files(SHARED).get(key, "") for key in mapped_by(descendants(os.getpid()), SHARED) - before}
            )
        if 0 in ready and not os.read(0, 4096):
            break
        if read in ready:
            os.read(read, 4096)
    else:
        with suppress(OSError):
            os.write(1, b"%d\n" % ended[child])
    ours = mapped_by(descendants(os.getpid()), SHARED)
    end_all()
    free(SHARED, before, ours)
    rmtree(folder, ignore_errors=True)


class MemoryNotes:
    """A file that says what the processes have mapped in /dev/shm, for the next run: where this process is killed with all of them,
    nobody else clears up."""

    def __init__(self, folder: str) -> None:
        self._began = time.monotonic()
        self._noted: set[tuple[int, int]] = set()
        self._file = -1
        with suppress(OSError):
            # As in probes/smoke_notes.py, of which this file imports nothing.
            self._file = os.open(
                f"{folder}/.shared-memory", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def milliseconds_left(self) -> float:
        """Milliseconds until the next look: most shared memory is made at the start."""
        return 1000 * min(MAX_NOTE_SECONDS, 0.5 + (time.monotonic() - self._began) / 10)

    def add(self, mapped: dict[tuple[int, int], str]) -> None:
        """Write down those that have a name, once each."""
        new = {key: name for key, name in mapped.items() if name and key not in self._noted}
        self._noted |= new.keys()
        with suppress(OSError):
            os.write(self._file, b"".join(b"%d %d %s\n" % (*key, os.fsencode(name)) for key, name in new.items()))


def start_command(command: list[str], libc: ctypes.CDLL) -> int:
    """Start the command, which leads a session of its own, ignores no signal, and dies with this process. Returns its pid."""
    reaper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != reaper:
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def reap() -> dict[int, int]:
    """Collect the children that have ended since, orphans among them: exit code by pid, a signal's number negative."""
    found: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found[pid] = os.waitstatus_to_exitcode(status)


def end_all() -> None:
    """Kill all descendants, again and again: one may have started another meanwhile."""
    began = time.monotonic()
    alone = 0.0
    while time.monotonic() < began + ENDING_SECONDS:
        reap()
        left = descendants(os.getpid())
        if not left:
            return
        others = [pid for pid in left if not is_tracker(pid)]
        alone = 0.0 if others else alone or time.monotonic()
        late = alone and time.monotonic() > alone + TRACKER_SECONDS
        for pid in left if late else others:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def is_tracker(pid: int) -> bool:
    """Whether that is multiprocessing's resource tracker."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as words:  # noqa: PTH123
        return b"multiprocessing.resource_tracker" in words.read()
    return False


def descendants(root: int) -> list[int]:
    """The pids of all processes below that one that have not ended, by /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib takes longer to import than all of this)
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as stat:  # noqa: PTH123
                # The name in brackets may hold anything.
                state, parent = stat.read().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(name)] = int(parent)
    found: list[int] = []
    layer = {root}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += layer
    return found


if __name__ == "__main__":
    main()
