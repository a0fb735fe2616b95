"""Decides how each stream of the command's output goes: into a file directly, else through a pipe or a terminal of our own."""

from __future__ import annotations

import fcntl
import os
import stat
import termios
from contextlib import suppress
from typing import Final, NamedTuple

STDOUT: Final = 1
STDERR: Final = 2


class FileOutput(NamedTuple):
    """Output that the command writes into a file itself."""

    number: int
    reading: int
    """A descriptor of ours to read the file."""
    start: int
    """The place in the file at which the output begins."""
    appending: bool
    """Whether writes go to the file's end, else to where the last one ended."""

    def end(self) -> int:
        """The place in the file at which the output ends by now."""
        size = os.fstat(self.reading).st_size
        if self.appending:
            return size
        # The command shares this position with us.
        return min(size, os.lseek(self.number, 0, os.SEEK_CUR))


class CarriedStream(NamedTuple):
    """Output that the relay carries."""

    source: int
    """The relay reads it."""
    given: int
    """The command writes to it; the supervisor closes it once the command has it."""
    destination: int
    terminal: bool
    numbers: tuple[int, ...]
    """The command's descriptors that are one with it."""


class OutputStreams(NamedTuple):
    """Standard output and standard error. A stream that is in neither is as it was: closed, or a device that the command writes to
    itself."""

    files: tuple[FileOutput, ...]
    carried: tuple[CarriedStream, ...]


def open_streams() -> OutputStreams:
    """Open what standard output and standard error need. Where both go to the same place they are one, so that their order is kept.
    An OSError tells that there are no more descriptors or terminals."""
    files: list[FileOutput] = []
    carried: dict[tuple[int, int, int], CarriedStream] = {}
    for number in (STDOUT, STDERR):
        try:
            facts = os.fstat(number)
            if not os.get_inheritable(number):
                # It was closed, and is ours: the command shall find it closed.
                continue
        except OSError:
            continue
        file = _file_output(number, facts)
        if file:
            if all(not os.path.samestat(facts, os.fstat(known.reading)) for known in files):
                files.append(file)
            else:
                os.close(file.reading)
            continue
        if _may_refuse(number, facts):
            continue
        place = (facts.st_dev, facts.st_ino, facts.st_rdev)
        if place in carried:
            carried[place] = carried[place]._replace(numbers=(*carried[place].numbers, number))
        else:
            carried[place] = _carried_stream(number)
    return OutputStreams(tuple(files), tuple(carried.values()))


def _file_output(number: int, facts: os.stat_result) -> FileOutput | None:
    if not stat.S_ISREG(facts.st_mode):
        return None
    try:
        reading = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # Ours to write and not to read: it is carried like a pipe's.
        return None
    appending = bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND)
    return FileOutput(number, reading, facts.st_size if appending else os.lseek(number, 0, os.SEEK_CUR), appending)


def _may_refuse(number: int, facts: os.stat_result) -> bool:
    """Whether it is a device that may refuse what is written, as /dev/full: the command is to hear of that itself."""
    return stat.S_ISCHR(facts.st_mode) and not os.isatty(number) and facts.st_rdev != os.stat(os.devnull).st_rdev  # noqa: PTH116


def _carried_stream(number: int) -> CarriedStream:
    destination = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    if os.isatty(number):
        source, given = os.openpty()
        _copy_settings(destination, given)
        copy_size(destination, source)
    else:
        source, given = os.pipe()
    os.set_blocking(source, False)
    return CarriedStream(source, given, destination, os.isatty(number), (number,))


def _copy_settings(terminal: int, ours: int) -> None:
    """Give our terminal the settings of the user's, but for what it does with output: the user's does that to what we carry there."""
    with suppress(termios.error):
        settings = termios.tcgetattr(terminal)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(ours, termios.TCSANOW, settings)


def copy_size(terminal: int, ours: int) -> bool:
    """Give our terminal the size of the user's. Returns whether it had another one."""
    try:
        size = fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))
        if size == fcntl.ioctl(ours, termios.TIOCGWINSZ, bytes(8)):
            return False
        fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
    except OSError:
        return False
    return True


def identities_of(*descriptors: int) -> frozenset[tuple[int, int]]:
    """Device and inode of what these descriptors are open on: by them other processes' descriptors are known to be the same."""
    identities = set()
    for number in descriptors:
        with suppress(OSError):
            status = os.fstat(number)
            identities.add((status.st_dev, status.st_ino))
    return frozenset(identities)
