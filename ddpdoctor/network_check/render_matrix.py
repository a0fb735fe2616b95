"""Latency and bandwidth between all pairs of nodes, as heat maps: a figure in every cell, and a colour where there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from ddpdoctor.base.text import bandwidth, clip, milliseconds, one_line, visible
from ddpdoctor.facts.fleet import Cell, Fleet
from ddpdoctor.report.document import Block, Fitted, Lines, Paragraph, Section, StyledText

_MAX_FIGURES = 24
"""Nodes: for more there is a character a pair instead of a figure."""

_SHADES = ("green", "yellow", "dark_orange", "red")
_STEPS = "1234"
"""Shades of a coarse map's cells where there are no colours."""

_FACTORS = (2, 4, 10)
"""Times worse than the median that the second, third and fourth shade are."""

_NOT_MEASURED = "·"

_LEGEND = {
    Cell.SILENT.value: "no answer",
    Cell.REFUSED.value: "refused",
    Cell.PROHIBITED.value: "no way there",
    Cell.RESET.value: "cut off",
    Cell.OTHER.value: "somebody else answered",
    Cell.STALLED.value: "large messages don't arrive",
}

Values = dict[tuple[int, int], float]
"""(place of the row's node, place of the column's) to seconds, or to Mbit/s."""


def matrix_sections(fleet: Fleet) -> Iterator[Section]:
    """Two maps, round trip and bandwidth; a row sends to a column. Who isn't reached stands in the first even without figures."""
    places = {node.rank: place for place, node in enumerate(fleet.nodes)}
    trips: Values = {}
    rates: Values = {}
    for link in fleet.links:
        if link.error or link.a not in places or link.b not in places:
            continue
        a, b = places[link.a], places[link.b]
        trips[a, b] = trips[b, a] = link.round_trip
        for pair, rate in (((a, b), link.forth), ((b, a), link.back)):
            if rate >= 0:
                rates[pair] = rate
    if not trips:
        reasons = (f": {one_line(phase.reason)}" for phase in fleet.phases if phase.name == "links" and phase.reason)
        yield Section((Paragraph(StyledText(f"No link was measured{next(reasons, '')}.", "bold magenta")),))
    trip_map = _Map(fleet, trips, _trip, milliseconds, worst_is_high=True)
    if trips or trip_map.unreached:
        yield _section("Round trip", "ms", trip_map)
    if rates:
        yield _section("Bandwidth", "bit/s", _Map(fleet, rates, _rate, bandwidth, worst_is_high=False))


def _section(title: str, unit: str, heat_map: _Map) -> Section:
    return Section(
        (Fitted(lambda width, unicode: list(heat_map.draw(width))),),
        (StyledText(title, "bold"), StyledText(f", {unit}, from row to column", "dim")),
    )


def _trip(seconds: float) -> str:
    """Milliseconds in at most five columns."""
    amount = seconds * 1000
    return f"{amount:.2f}" if amount < 10 else f"{amount:.0f}"


def _rate(rate: float) -> str:
    """Mbit/s as bit/s in at most five columns: "2.1M", "940M", "9.4G"."""
    amount, letter = (rate, "M") if rate < 999.5 else (rate / 1000, "G")
    return f"{amount:.{1 if amount < 99.5 and (letter == 'G' or amount < 10) else 0}f}{letter}"


class _Map:
    """One heat map. The shade of a value is how much worse than the median it is: less than twice, then less than four times,
    ten times, and more.

    Args:
        fleet: whose.
        values: of the pairs that were measured.
        figure: a value in a cell.
        words: a value in a sentence.
        worst_is_high: the larger a value, the worse.
    """

    def __init__(
        self,
        fleet: Fleet,
        values: Values,
        figure: Callable[[float], str],
        words: Callable[[float], str],
        *,
        worst_is_high: bool,
    ) -> None:
        self.unreached = {
            (i, j): cell
            for reach in fleet.reach
            if reach.kind == "route"
            for i, row in enumerate(reach.rows)
            for j, cell in enumerate(row)
            if cell not in (Cell.OK.value, Cell.NOT_TRIED.value)
        }
        """The pairs that don't reach each other on the route, with the letter that says how."""
        self._nodes = fleet.nodes
        self._values = values
        self._figure = figure
        self._words = words
        self._worst_is_high = worst_is_high
        self._median = max(median(values.values()), 1e-9) if values else 1.0
        self._label = max((len(str(node.rank)) for node in fleet.nodes), default=1)

    def draw(self, width: int) -> Iterator[Block]:
        """The map as that width allows, and what its signs mean."""
        count = len(self._nodes)
        cells = max([len(self._figure(value)) for value in self._values.values()] + [self._label])
        detailed = count <= _MAX_FIGURES and self._label + 2 + count * (cells + 1) <= width
        yield Lines(tuple(self._detailed(cells) if detailed else self._coarse(width)))
        letters = sorted(set(self.unreached.values()) & set(_LEGEND))
        legend = [f"{letter} {_LEGEND[letter]}" for letter in letters]
        if len(self._values) < count * (count - 1):
            legend.append(f"{_NOT_MEASURED} not measured")
        if legend:
            yield Paragraph(StyledText("; ".join(legend), "dim"))
        if self._values and not detailed:
            spans = [StyledText(f"1 around {self._words(self._median)}, the median", _SHADES[0])]
            for step in sorted({self._shade(value) for value in self._values.values()} - {0}):
                factor = _FACTORS[step - 1]
                limit = self._median * factor if self._worst_is_high else self._median / factor
                spans += [StyledText("; "), StyledText(f"{_STEPS[step]} {self._words(limit)} or worse", _SHADES[step])]
            yield Paragraph(tuple(spans))

    def _shade(self, value: float) -> int:
        value = max(value, 1e-9)
        badness = value / self._median if self._worst_is_high else self._median / value
        return sum(badness >= factor for factor in _FACTORS)

    def _detailed(self, cells: int) -> Iterator[tuple[StyledText, ...]]:
        """A figure for each pair, in so many columns."""
        yield (StyledText(" " * (self._label + 1) + "".join(f" {node.rank:>{cells}}" for node in self._nodes), "dim"),)
        for i, node in enumerate(self._nodes):
            spans = [StyledText(f"{node.rank:>{self._label}} ", "dim")]
            for j in range(len(self._nodes)):
                text, style = self._cell(i, j)
                spans += [StyledText(" " * (1 + cells - len(text))), StyledText(text, style)]
            yield (*spans, StyledText(f"  {clip(visible(node.host), 24)}", "dim"))

    def _cell(self, i: int, j: int) -> tuple[str, str]:
        if i == j:
            return "", ""
        if (i, j) in self.unreached:
            return self.unreached[i, j], "bold reverse red"
        value = self._values.get((i, j))
        return (_NOT_MEASURED, "dim") if value is None else (self._figure(value), _SHADES[self._shade(value)])

    def _coarse(self, width: int) -> Iterator[tuple[StyledText, ...]]:
        """A character a pair; where there are more nodes than columns, a character for a square of pairs: the worst of them."""
        nodes = self._nodes
        count = len(nodes)
        room = max(8, min(width, 140) - 2 * self._label - 3)
        side = -(-count // room)
        blocks = -(-count // side)
        worst: dict[tuple[int, int], int] = {}
        letters = {(i // side, j // side): cell for (i, j), cell in self.unreached.items()}
        for (i, j), value in self._values.items():
            key = i // side, j // side
            worst[key] = max(worst.get(key, 0), self._shade(value))
        margin = self._label if side == 1 else 2 * self._label + 1
        head = "".join(f"{nodes[column * side].rank:<10}" for column in range(0, blocks, 10))
        yield (StyledText(" " * (margin + 2) + head[:blocks], "dim"),)
        for row in range(blocks):
            first, last = nodes[row * side].rank, nodes[min(count, (row + 1) * side) - 1].rank
            name = f"{first}" if side == 1 else f"{first}-{last}"
            spans = [StyledText(f"{name:>{margin}}  ", "dim")]
            for column in range(blocks):
                key = row, column
                if key in letters:
                    spans.append(StyledText(letters[key], "bold reverse red"))
                elif key in worst:
                    spans.append(StyledText(_STEPS[worst[key]], _SHADES[worst[key]]))
                else:
                    spans.append(StyledText(" " if row == column and side == 1 else _NOT_MEASURED, "dim"))
            yield tuple(spans)
