"""Where the command's output goes, and by which way: into a file directly, else through a pipe or a terminal of our own."""

from __future__ import annotations

import fcntl
import os
import stat
import termios
from contextlib import suppress
from typing import Final, NamedTuple

STDOUT: Final = 1
STDERR: Final = 2


class Direct(NamedTuple):
    """Output that the command writes into a file itself. reading: a descriptor of ours to read it. start: where it begins.

    appending: writes go to the file's end, else to where the last one ended.
    """

    number: int
    reading: int
    start: int
    appending: bool

    def end(self) -> int:
        """Where it ends by now."""
        size = os.fstat(self.reading).st_size
        if self.appending:
            return size
        # The command shares this position with us.
        return min(size, os.lseek(self.number, 0, os.SEEK_CUR))


class CarriedStream(NamedTuple):
    """Output that we carry. source: what the relay reads. given: what the command writes to; the supervisor closes it once the
    command has it. destination: where it goes. numbers: the command's descriptors that are one with it."""

    source: int
    given: int
    destination: int
    terminal: bool
    numbers: tuple[int, ...]


class Ways(NamedTuple):
    """Of both, standard output and standard error. What is in neither is as it was: closed, or a device
    that the command writes to itself."""

    direct: tuple[Direct, ...]
    streams: tuple[CarriedStream, ...]


def ways() -> Ways:
    """Opens them. Where both go to the same place there is one way, so that their order is kept.

    Raises:
        OSError: there are no more descriptors or terminals.
    """
    direct: list[Direct] = []
    streams: dict[tuple[int, int, int], CarriedStream] = {}
    for number in (STDOUT, STDERR):
        try:
            facts = os.fstat(number)
            if not os.get_inheritable(number):
                # It was closed, and is ours: the command shall find it closed.
                continue
        except OSError:
            continue
        found = _direct(number, facts)
        if found:
            if all(not os.path.samestat(facts, os.fstat(one.reading)) for one in direct):
                direct.append(found)
            else:
                os.close(found.reading)
            continue
        if _refuses(number, facts):
            continue
        place = (facts.st_dev, facts.st_ino, facts.st_rdev)
        if place in streams:
            streams[place] = streams[place]._replace(numbers=(*streams[place].numbers, number))
        else:
            streams[place] = _through_us(number)
    return Ways(tuple(direct), tuple(streams.values()))


def _direct(number: int, facts: os.stat_result) -> Direct | None:
    if not stat.S_ISREG(facts.st_mode):
        return None
    try:
        reading = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # Ours to write and not to read: it is carried like a pipe's.
        return None
    appending = bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND)
    return Direct(number, reading, facts.st_size if appending else os.lseek(number, 0, os.SEEK_CUR), appending)


def _refuses(number: int, facts: os.stat_result) -> bool:
    """Whether it is a device that may refuse what is written, as /dev/full: the command is to hear of that itself."""
    return stat.S_ISCHR(facts.st_mode) and not os.isatty(number) and facts.st_rdev != os.stat(os.devnull).st_rdev  # noqa: PTH116


def _through_us(number: int) -> CarriedStream:
    destination = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    if os.isatty(number):
        source, given = os.openpty()
        _like(destination, given)
        copy_size(destination, source)
    else:
        source, given = os.pipe()
    os.set_blocking(source, False)
    return CarriedStream(source, given, destination, os.isatty(number), (number,))


def _like(terminal: int, ours: int) -> None:
    """The settings of the user's terminal, but for what it does with output: that it does itself, to what we carry there."""
    with suppress(termios.error):
        settings = termios.tcgetattr(terminal)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(ours, termios.TCSANOW, settings)


def copy_size(terminal: int, ours: int) -> bool:
    """Gives ours the size of the user's; whether it had another one."""
    try:
        size = fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8))
        if size == fcntl.ioctl(ours, termios.TIOCGWINSZ, bytes(8)):
            return False
        fcntl.ioctl(ours, termios.TIOCSWINSZ, size)
    except OSError:
        return False
    return True
