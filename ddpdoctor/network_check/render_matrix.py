"""Latency and bandwidth between all pairs of nodes, as heat maps: a figure in every cell, and a colour where there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
        yield Section((Paragraph(StyledText(f"No link was measured{_why(fleet)}.", "bold magenta")),))
    yield _map(fleet, "Round trip", trips, _trip, milliseconds, worst_is_high=True)
    if rates:
        yield _map(fleet, "Bandwidth", rates, _rate, bandwidth, worst_is_high=False)


def _why(fleet: Fleet) -> str:
    return next((f": {one_line(phase.reason)}" for phase in fleet.phases if phase.name == "links" and phase.reason), "")


def _trip(seconds: float) -> str:
    """Milliseconds in at most five columns."""
    amount = seconds * 1000
    return f"{amount:.2f}" if amount < 10 else f"{amount:.0f}"


def _rate(rate: float) -> str:
    """Mbit/s as bit/s in at most five columns: "2.1M", "940M", "9.4G"."""
    amount, letter = (rate, "M") if rate < 999.5 else (rate / 1000, "G")
    return f"{amount:.{1 if amount < 99.5 and (letter == 'G' or amount < 10) else 0}f}{letter}"


def _map(
    fleet: Fleet,
    title: str,
    values: Values,
    figure: Callable[[float], str],
    words: Callable[[float], str],
    *,
    worst_is_high: bool,
) -> Section:
    if not values and not any(_unreached(fleet)):
        return Section()
    unit = "ms" if worst_is_high else "bit/s"
    shade = _Shades(list(values.values()), worst_is_high=worst_is_high)
    return Section(
        (Fitted(lambda width, unicode: list(_drawn(fleet, values, figure, words, shade, width))),),
        (StyledText(title, "bold"), StyledText(f", {unit}, from row to column", "dim")),
    )


def _drawn(
    fleet: Fleet,
    values: Values,
    figure: Callable[[float], str],
    words: Callable[[float], str],
    shade: _Shades,
    width: int,
) -> Iterator[Block]:
    """The map as that width allows, and what its signs mean."""
    count = len(fleet.nodes)
    label = max((len(str(node.rank)) for node in fleet.nodes), default=1)
    cells = max([len(figure(value)) for value in values.values()] + [label])
    unreached = dict(_unreached(fleet))
    detailed = count <= _MAX_FIGURES and label + 2 + count * (cells + 1) <= width
    yield Lines(
        tuple(
            _detailed(fleet, values, unreached, figure, shade, label, cells)
            if detailed
            else _coarse(fleet, values, unreached, shade, label, width)
        )
    )
    yield from _legend(set(unreached.values()), values, count)
    if values and not detailed:
        yield _steps(shade, words, {shade(value) for value in values.values()})


class _Shades:
    """Grades of how much worse than the median a value is: 0 less than twice, then less than four times, ten times, and more."""

    def __init__(self, values: Sequence[float], *, worst_is_high: bool) -> None:
        self._median = max(median(values), 1e-9) if values else 1.0
        self._worst_is_high = worst_is_high

    def __call__(self, value: float) -> int:
        value = max(value, 1e-9)
        badness = value / self._median if self._worst_is_high else self._median / value
        return sum(badness >= factor for factor in _FACTORS)

    def limit(self, step: int) -> float:
        """Give the value at which the step begins; of the first, the median."""
        factor = (1, *_FACTORS)[step]
        return self._median * factor if self._worst_is_high else self._median / factor


def _unreached(fleet: Fleet) -> Iterator[tuple[tuple[int, int], str]]:
    """The pairs that don't reach each other on the route, with the letter that says how."""
    for reach in fleet.reach:
        if reach.kind == "route":
            for i, row in enumerate(reach.rows):
                for j, cell in enumerate(row):
                    if cell not in (Cell.OK.value, Cell.NOT_TRIED.value):
                        yield (i, j), cell


def _detailed(
    fleet: Fleet,
    values: Values,
    unreached: dict[tuple[int, int], str],
    figure: Callable[[float], str],
    shade: _Shades,
    label: int,
    cells: int,
) -> Iterator[tuple[StyledText, ...]]:
    """A figure for each pair."""
    yield (StyledText(" " * (label + 1) + "".join(f" {node.rank:>{cells}}" for node in fleet.nodes), "dim"),)
    for i, node in enumerate(fleet.nodes):
        spans = [StyledText(f"{node.rank:>{label}} ", "dim")]
        for j in range(len(fleet.nodes)):
            text, style = _cell(values, unreached, i, j, figure, shade)
            spans += [StyledText(" " * (1 + cells - len(text))), StyledText(text, style)]
        yield (*spans, StyledText(f"  {_host(node.host)}", "dim"))


def _host(host: str) -> str:
    return clip(visible(host), 24)


def _cell(
    values: Values,
    unreached: dict[tuple[int, int], str],
    i: int,
    j: int,
    figure: Callable[[float], str],
    shade: _Shades,
) -> tuple[str, str]:
    if i == j:
        return "", ""
    if (i, j) in unreached:
        return unreached[i, j], "bold reverse red"
    value = values.get((i, j))
    return (_NOT_MEASURED, "dim") if value is None else (figure(value), _SHADES[shade(value)])


def _coarse(
    fleet: Fleet,
    values: Values,
    unreached: dict[tuple[int, int], str],
    shade: _Shades,
    label: int,
    width: int,
) -> Iterator[tuple[StyledText, ...]]:
    """A character a pair; where there are more nodes than columns, a character for a square of pairs: the worst of them."""
    count = len(fleet.nodes)
    room = max(8, min(width, 140) - 2 * label - 3)
    side = -(-count // room)
    blocks = -(-count // side)
    worst: dict[tuple[int, int], int] = {}
    letters = {(i // side, j // side): cell for (i, j), cell in unreached.items()}
    for (i, j), value in values.items():
        key = i // side, j // side
        worst[key] = max(worst.get(key, 0), shade(value))
    margin = label if side == 1 else 2 * label + 1
    head = "".join(f"{fleet.nodes[column * side].rank:<10}" for column in range(0, blocks, 10))
    yield (StyledText(" " * (margin + 2) + head[:blocks], "dim"),)
    for row in range(blocks):
        first, last = fleet.nodes[row * side].rank, fleet.nodes[min(count, (row + 1) * side) - 1].rank
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


def _legend(letters: set[str], values: Values, count: int) -> Iterator[Paragraph]:
    texts = [f"{letter} {_LEGEND[letter]}" for letter in sorted(letters) if letter in _LEGEND]
    if len(values) < count * (count - 1):
        texts.append(f"{_NOT_MEASURED} not measured")
    if texts:
        yield Paragraph(StyledText("; ".join(texts), "dim"))


def _steps(shade: _Shades, words: Callable[[float], str], steps: set[int]) -> Paragraph:
    """Explain the digits that are there."""
    spans = [StyledText(f"1 around {words(shade.limit(0))}, the median", _SHADES[0])]
    for step in sorted(steps - {0}):
        spans += [StyledText("; "), StyledText(f"{_STEPS[step]} {words(shade.limit(step))} or worse", _SHADES[step])]
    return Paragraph(tuple(spans))
