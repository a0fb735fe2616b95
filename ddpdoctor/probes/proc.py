"""Reads what /proc tells of a process: cheaply, since there may be thousands of them."""

from __future__ import annotations

import errno
import os
import pwd
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache

import msgspec

from ddpdoctor.base.text import human
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import ENDED_STATES

DENIED = os.strerror(errno.EACCES)
"""How the reason ends where this user may not look."""
KERNEL_THREAD = 0x00200000
FORKED = 0x00000040
"""Of its flags: it was forked and has not exec'd anything since (PF_FORKNOEXEC)."""

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

MAX_COMMAND = 16 * 1024
MAX_ENVIRON = 1024 * 1024
MAX_MAPS = 16 * 1024 * 1024
MAX_DESCRIPTORS = 20_000
MAX_THREADS = 10_000


class Stat(msgspec.Struct, frozen=True):
    """/proc/PID/stat. Times in clock ticks, memory in pages, as it stands there."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    terminal: int
    flags: int
    cpu: int
    """Of all its threads, those that ended too."""
    threads: int
    start: int
    resident: int
    major_faults: int = 0
    """How often it waited for a page of a file."""

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - self.start / TICKS)

    @property
    def forked(self) -> bool:
        return bool(self.flags & FORKED)

    @property
    def ended(self) -> bool:
        """A zombie, or its main thread has ended before others."""
        return self.state in ENDED_STATES

    @property
    def uncollected(self) -> bool:
        """It has ended with all its threads, and its parent has not asked how yet."""
        return self.ended and self.threads <= 1

    @property
    def kernel_thread(self) -> bool:
        return bool(self.flags & KERNEL_THREAD)


class Spent(msgspec.Struct, frozen=True):
    """Resources that a process has used since its start.

    cpu: seconds, of the threads that it has now. process_cpu: seconds of all that it ever had, in whole ticks.
    switches: how often the threads that it has now were let onto a processor. transferred: bytes (rchar + wchar), or why that
    isn't known. threads: of each that it has now, by its id, seconds of cpu and switches.
    """

    cpu: float
    process_cpu: float
    switches: int
    transferred: int | Unknown
    threads: Mapping[int, tuple[float, int]] = {}


class Proc:
    """The files of one /proc. folder: "/proc", or a made-up one.

    What can't be read is `Unknown("/proc/123/environ: Permission denied")`. A process may be gone at any moment.
    """

    def __init__(self, folder: str | os.PathLike[str] = "/proc") -> None:
        self._folder = os.fspath(folder)

    def pids(self) -> list[int]:
        """List the pids of all processes. `OSError` where /proc itself can't be read."""
        return [int(name) for name in os.listdir(self._folder) if name.isdecimal()]  # noqa: PTH208 (names are enough)

    def read(self, file: str, limit: int = 1 << 16) -> bytes | Unknown:
        """The first bytes of `/proc/FILE`."""
        try:
            descriptor = os.open(f"{self._folder}/{file}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            return _why(file, error)
        try:
            pieces = []
            while limit > 0 and (piece := os.read(descriptor, limit)):
                pieces.append(piece)
                limit -= len(piece)
            return b"".join(pieces)
        except OSError as error:
            return _why(file, error)
        finally:
            os.close(descriptor)

    def text(self, file: str, limit: int = 1 << 16) -> str:
        """The same as text, without the line's end; "" where it can't be read."""
        content = self.read(file, limit)
        return content.decode("utf-8", "replace").strip("\n") if isinstance(content, bytes) else ""

    def target(self, file: str) -> str:
        """The same as text; "" where it can't be read."""
        link = self.link(file)
        return link if isinstance(link, str) else ""

    def whole(self, file: str, limit: int) -> bytes | Unknown:
        """All of `/proc/FILE`, as it matters that nothing is missing; Unknown where that is more than so many bytes."""
        content = self.read(file, limit + 1)
        if isinstance(content, bytes) and len(content) > limit:
            return Unknown(f"/proc/{file}: more than {human(limit)}, which is not read")
        return content

    def owner(self, pid: int) -> int:
        """The user id of a process, -1 where it is gone."""
        try:
            return os.stat(f"{self._folder}/{pid}").st_uid  # noqa: PTH116 (a Path for each process takes longer)
        except OSError:
            return -1

    def link(self, file: str) -> str | Unknown:
        """Read where the link `/proc/FILE` leads."""
        try:
            return os.readlink(f"{self._folder}/{file}")  # noqa: PTH115 (a Path for each descriptor takes longer)
        except OSError as error:
            return _why(file, error)

    def stat(self, pid: int) -> Stat | Unknown:
        """The name may hold anything, parentheses and line ends as well."""
        content = self.read(f"{pid}/stat", 4096)
        if isinstance(content, Unknown):
            return content
        before, found, after = content.rpartition(b")")
        fields = after.split()
        if not found or len(fields) < 22:
            return Unknown(f"/proc/{pid}/stat: not understood")
        name = before.partition(b"(")[2].decode("utf-8", "replace")
        try:
            parent, group, session, terminal, _, flags, *numbers = (int(field) for field in fields[1:22])
        except ValueError:
            return Unknown(f"/proc/{pid}/stat: not understood")
        return Stat(
            pid=pid,
            name=name,
            state=fields[0].decode("ascii", "replace"),
            parent=parent,
            group=group,
            session=session,
            terminal=terminal,
            flags=flags,
            cpu=numbers[4] + numbers[5],
            threads=numbers[10],
            start=numbers[12],
            resident=numbers[14],
            major_faults=numbers[2],
        )

    def status(self, pid: int) -> dict[str, str]:
        """The lines of /proc/PID/status; empty where it is gone."""
        lines = (line.partition(":") for line in self.text(f"{pid}/status").splitlines())
        return {name: value.strip() for name, _, value in lines}

    def words(self, pid: int) -> tuple[str, ...] | Unknown:
        """Its command line. A program may have written something of its own there."""
        content = self.read(f"{pid}/cmdline", MAX_COMMAND)
        if isinstance(content, Unknown):
            return content
        if len(content) == MAX_COMMAND:
            # The word that was cut may be a secret that is known for one by its end alone.
            content = content.rpartition(b"\0")[0] + b"\0..."
        words = content.rstrip(b"\0").split(b"\0")
        return tuple(os.fsdecode(word) for word in words) if content.rstrip(b"\0") else ()

    def threads(self, pid: int) -> list[int]:
        """Ids of its threads; empty where it is gone."""
        with suppress(OSError):
            return [int(name) for name in os.listdir(f"{self._folder}/{pid}/task")[:MAX_THREADS]]  # noqa: PTH208
        return []

    def thread_names(self, pid: int) -> Iterator[tuple[int, str]]:
        """(id, name) of each of its threads."""
        for thread in self.threads(pid):
            if name := self.thread_name(pid, thread):
                yield thread, name

    def thread_name(self, pid: int, thread: int) -> str:
        """ "" where it is gone."""
        return self.text(f"{pid}/task/{thread}/comm", 64)

    def descriptors(self, pid: int) -> list[tuple[int, str]] | Unknown:
        """(number, where it leads) of each file that it has open."""
        try:
            numbers = os.listdir(f"{self._folder}/{pid}/fd")  # noqa: PTH208
        except OSError as error:
            return _why(f"{pid}/fd", error)
        if len(numbers) > MAX_DESCRIPTORS:
            return Unknown(f"/proc/{pid}/fd: {len(numbers)} open files, of which not all are looked at")
        links = ((int(number), self.link(f"{pid}/fd/{number}")) for number in numbers)
        return [(number, link) for number, link in links if isinstance(link, str)]

    def opened_for_writing(self, pid: int, descriptor: int) -> bool:
        """Whether it may write to that file; also where that can't be told: whoever writes is left alone."""
        content = self.read(f"{pid}/fdinfo/{descriptor}", 1024)
        if isinstance(content, Unknown):
            return True
        flags = next((line.split()[1] for line in content.splitlines() if line.startswith(b"flags:")), b"0")
        return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY

    def spent(self, pid: int) -> Spent | Unknown:
        """Read what it has used so far."""
        stat = self.stat(pid)
        if isinstance(stat, Unknown):
            return stat
        threads: dict[int, tuple[float, int]] = {}
        for thread in self.threads(pid):
            content = self.read(f"{pid}/task/{thread}/schedstat", 128)
            fields = content.split() if isinstance(content, bytes) else []
            if len(fields) == 3:
                threads[thread] = int(fields[0]) / 1e9, int(fields[2])
        return Spent(
            cpu=sum(cpu for cpu, _ in threads.values()),
            process_cpu=stat.cpu / TICKS,
            switches=sum(switches for _, switches in threads.values()),
            transferred=self.transferred(pid),
            threads=threads,
        )

    def transferred(self, pid: int, thread: int = 0) -> int | Unknown:
        """Bytes that it, or one of its threads, has read and written so far, in whatever way."""
        content = self.read(f"{pid}/task/{thread}/io" if thread else f"{pid}/io", 1024)
        if isinstance(content, Unknown):
            return content
        fields = dict(line.split(b": ") for line in content.splitlines() if b": " in line)
        return int(fields.get(b"rchar", 0)) + int(fields.get(b"wchar", 0))


def _why(file: str, error: OSError) -> Unknown:
    return Unknown(f"/proc/{file}: {error.strerror or error}")


def variables(environ: bytes) -> dict[str, str]:
    """The content of /proc/PID/environ: the first of each name counts, as it does for getenv."""
    found: dict[str, str] = {}
    for piece in environ.split(b"\0"):
        name, equals, value = piece.partition(b"=")
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


@lru_cache(maxsize=4096)
def user_name(uid: int) -> str:
    """The user's name, or the number where the user database has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
