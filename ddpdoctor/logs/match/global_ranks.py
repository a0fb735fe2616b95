"""Settles at the end of a log what single lines leave open: the global rank of a local one, and the year of a clock without one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Final, TypeVar

import msgspec

from ddpdoctor.facts.log import LoggedException, LoggedStack, LogLine, Noise, ProcessExit, SignMatch
from ddpdoctor.logs.parse.timestamps import NO_YEAR

Fact = TypeVar("Fact", SignMatch, LoggedException, LoggedStack, Noise)

_LATER: Final = datetime(NO_YEAR + 2, 1, 1, tzinfo=timezone.utc).timestamp()
"""Before it lie only the times of clocks without a year."""


class Placing:
    """The global ranks of local ones, and the year of clocks that have none. pairs: (host, local rank, rank) of lines
    that name both. first_date: a time of a clock that has a year."""

    def __init__(self, pairs: Iterable[tuple[str, int, int]], first_date: float | None) -> None:
        self._offsets: dict[str, set[int]] = {}
        for host, local_rank, rank in pairs:
            self._offsets.setdefault(host, set()).add(rank - local_rank)
        self._common = {offset for offsets in self._offsets.values() for offset in offsets}
        self._shift = year_shift(first_date)

    def line(self, line: LogLine) -> LogLine:
        """Complete the line with what is known of it now."""
        rank, time = self._rank(line.rank, line.local_rank, line.host), self.time(line.time)
        if (rank, time) == (line.rank, line.time):
            return line
        return msgspec.structs.replace(line, rank=rank, time=time)

    def lines(self, lines: Iterable[LogLine]) -> tuple[LogLine, ...]:
        """Complete all of them."""
        return tuple(map(self.line, lines))

    def fact(self, fact: Fact) -> Fact:
        """Complete the lines of a fact."""
        fields = {name: getattr(fact, name) for name in fact.__struct_fields__}
        lines = {name: self.line(field) for name, field in fields.items() if isinstance(field, LogLine)}
        return msgspec.structs.replace(fact, **lines)

    def exited(self, exited: ProcessExit) -> ProcessExit:
        """Complete the end of a process with its rank."""
        return msgspec.structs.replace(
            exited,
            line=self.line(exited.line),
            time=None if exited.line.lent and exited.time == exited.line.time else self.time(exited.time),
            rank=self._rank(exited.rank, exited.local_rank, exited.host),
        )

    def time(self, time: float | None) -> float | None:
        """Add the year of the log's full dates, where the clock had none."""
        return time + self._shift if time is not None and not has_year(time) else time

    def _rank(self, rank: int | None, local_rank: int | None, host: str) -> int | None:
        if rank is not None or local_rank is None:
            return rank
        offsets = self._offsets.get(host) or self._common
        return local_rank + next(iter(offsets)) if len(offsets) == 1 else None


def has_year(time: float) -> bool:
    """Whether the clock that said it had one."""
    return time >= _LATER


def year_shift(first_date: float | None) -> float:
    """Compute how far a clock without a year is behind that date's."""
    if first_date is None:
        return 0.0
    date = datetime.fromtimestamp(int(first_date), timezone.utc)
    return (date - date.replace(year=NO_YEAR)).total_seconds()
