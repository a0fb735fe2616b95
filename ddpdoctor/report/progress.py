"""The state of something that takes its time, and when there is something to say of it: a subject's `Progress`, which a view shows."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple, Protocol

from ddpdoctor.report.document import Block


class View(Protocol):
    """A place where a progress is shown."""

    def say(self, text: str) -> None:
        """A line that stays on the screen."""

    def close(self) -> None:
        """The report comes now, or nothing more: the screen is as it was before. More than once does no harm."""


class _NoView:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class Pace(NamedTuple):
    """The pace at which a log gets lines.

    Args:
        first: seconds before which nothing is said: what is over by then needs no words.
        steady: seconds that something must have lasted; each line says how long it does.
        between: seconds between two lines, at least.
        again: seconds after which the same is said again: the first time, the second, and from then on.
    """

    first: float = 0.0
    steady: float = 0.0
    between: float = 0.0
    again: tuple[float, ...] = (15.0, 30.0, 60.0)


class Progress(ABC):
    """The state as far as it is known. Views read it, from a thread of their own.

    Args:
        title: the command.
        clock: seconds.
    """

    pace: ClassVar[Pace]
    per_second: ClassVar[int]
    """Redraws of a terminal, each second."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.title = title
        self.clock = clock
        self.began = clock()
        self.view: View = _NoView()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self.clock() - self.began

    @abstractmethod
    def status(self) -> str:
        """Say how it stands, in one line; "" where there is nothing to say yet."""

    @abstractmethod
    def drawing(self, width: int, height: int, *, unicode: bool) -> Iterable[Block]:
        """Draw the same for a terminal of that size, in at most `height` lines."""

    def say(self, text: str) -> None:
        """A line that stays."""
        self.view.say(text)

    def close(self) -> None:
        """The report comes now, or nothing more."""
        self.view.close()
