"""Ranks by stages as marks, for the report and for the live table: ranks that fared alike are one column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from ddpdoctor.base.text import plural, ranks_named, spans
from ddpdoctor.report.document import StyledText


class Mark(Enum):
    """Marks of a stage on a rank, the worst first. Each as it is shown without Unicode, and with it; its style; its meaning."""

    FAILED = ("x", "✗", "bold red", "failed")
    WAITED = ("~", "…", "yellow", "waited, or fell with another")
    RUNNING = (">", "▸", "bold cyan", "running")
    NOT_RUN = (".", "·", "dim", "not run")
    NOT_TESTED = ("-", "-", "magenta", "not tested here")
    PASSED = ("+", "✓", "green", "passed")

    def __init__(self, plain: str, symbol: str, style: str, meaning: str) -> None:
        self.plain, self.symbol, self.style, self.meaning = plain, symbol, style, meaning

    def shown(self, *, unicode: bool, width: int = 1) -> StyledText:
        """The mark in a cell of that width."""
        return StyledText(f"{self.symbol if unicode else self.plain:<{width}}", self.style)


MAX_SINGLE_RANKS = 8
"""Up to so many ranks each has a column of its own."""
MAX_COLUMNS = 6
MAX_LABEL_LENGTH = 14
MAX_SPANS = 5


class RanksColumn(msgspec.Struct, frozen=True):
    """Ranks that fared alike. marks: one for each stage."""

    label: str
    marks: tuple[Mark, ...]

    def cell(self, stage: int, *, unicode: bool) -> StyledText:
        """The mark of the stage with that number, as wide as the label."""
        return self.marks[stage].shown(unicode=unicode, width=len(self.label))


def columns(fates: Mapping[int, tuple[Mark, ...]], room: int = 60) -> list[RanksColumn]:
    """fates: each rank's marks, stage by stage. A few ranks stand alone, many by what became of them. room: in columns of the
    terminal; what doesn't fit is told of fewer groups."""
    if len(fates) <= MAX_SINGLE_RANKS and 2 * len(fates) - 1 <= room:
        return [RanksColumn(str(rank), marks) for rank, marks in sorted(fates.items())]
    for most in range(MAX_COLUMNS, 1, -1):
        found = _grouped(fates, most)
        if sum(len(ranks_column.label) + 1 for ranks_column in found) - 1 <= room:
            return found
    return _grouped(fates, 1)


def _grouped(fates: Mapping[int, tuple[Mark, ...]], most: int) -> list[RanksColumn]:
    """At most so many: those that came least far, and the worst that happened to the others."""
    groups: dict[tuple[Mark, ...], list[int]] = {}
    for rank, marks in sorted(fates.items()):
        groups.setdefault(marks, []).append(rank)
    if len(groups) <= most:
        return [RanksColumn(_short(ranks), marks) for marks, ranks in groups.items()]
    by_way = sorted(groups, key=lambda marks: (Mark.FAILED not in marks, marks.count(Mark.PASSED)))
    alone, rest = by_way[: most - 1], by_way[most - 1 :]
    worst = tuple(min(at, key=list(Mark).index) for at in zip(*rest, strict=True))
    count = sum(len(groups[marks]) for marks in rest)
    label = f"{count} others" if alone else f"{count} ranks"
    return [*(RanksColumn(_short(groups[marks]), marks) for marks in alone), RanksColumn(label, worst)]


def _short(ranks: Sequence[int]) -> str:
    label = ",".join(spans(ranks))
    return label if len(label) <= MAX_LABEL_LENGTH else f"{ranks[0]} +{len(ranks) - 1}"


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 0-2 and 5", and where that is long "12 ranks"."""
    return ranks_named(ranks) if len(spans(sorted(ranks))) <= MAX_SPANS else plural(len(ranks), "rank")
