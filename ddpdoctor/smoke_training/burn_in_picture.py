"""The throughput of a burn-in over its time, and the temperature of the hottest GPU of each host below it, as an SVG file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from ddpdoctor.base.durations import duration_words
from ddpdoctor.base.text import one_line
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.smoke_training.analysis.burn_in import hottest, temperatures, throughput
from ddpdoctor.smoke_training.render_burn_in import burn_in_words

WIDTH, PANEL_HEIGHT = 800, 220
LEFT, RIGHT, TOP, BELOW = 90, 20, 44, 40
COLOURS: Final = ("#1a6fb5", "#c0392b", "#27865c", "#8e44ad", "#b9770e", "#34495e", "#d35400", "#16a085")
TICKS: Final = 4

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """A picture over the time. lines: by name."""

    title: str
    lines: dict[str, Points]


def picture(facts: Smoke) -> str:
    """SVG of the burn-in; its scale begins at 0, so that a few percent look like a few percent."""
    panels = [Panel("samples/s", {"all ranks": throughput(facts)}), *_temperatures(facts)]
    height = TOP + len(panels) * PANEL_HEIGHT
    seconds = max((at for panel in panels for line in panel.lines.values() for at, _ in line), default=0.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(LEFT, 24, f"ddpdoctor smoke, {_whose(facts)}. {burn_in_words(facts)}", 'font-weight="bold"'),
        *(part for place, panel in enumerate(panels) for part in _panel(panel, TOP + place * PANEL_HEIGHT, seconds)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _whose(facts: Smoke) -> str:
    hosts = list(dict.fromkeys(run.host for run in facts.ranks))
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"{facts.world_size} ranks on {one_line(where)} over {facts.backend}"


def _temperatures(facts: Smoke) -> Iterator[Panel]:
    lines: dict[str, Points] = {}
    for host in facts.burn_in.hosts[: len(COLOURS)]:
        if gpu := hottest(host):
            lines[f"GPU {gpu.index} of {one_line(host.host)}"] = temperatures(gpu)
    if lines:
        yield Panel("°C, the hottest GPU of each host", lines)


def _panel(panel: Panel, top: int, seconds: float) -> Iterator[str]:
    most = max((value for line in panel.lines.values() for _, value in line), default=0.0) or 1.0
    bottom, right = top + PANEL_HEIGHT - BELOW, WIDTH - RIGHT
    rise = PANEL_HEIGHT - BELOW - 24
    yield _text(LEFT, top + 14, panel.title)
    for tick in range(TICKS + 1):
        y = bottom - rise * tick / TICKS
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield _text(LEFT - 8, y + 4, f"{most * tick / TICKS:,.0f}", 'text-anchor="end"')
        x = LEFT + (right - LEFT) * tick / TICKS
        yield _text(x, bottom + 18, duration_words(seconds * tick / TICKS), 'text-anchor="middle"')
    for place, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[place % len(COLOURS)]
        path = " ".join(
            f"{LEFT + (right - LEFT) * at / seconds:.1f},{bottom - rise * max(0.0, value) / most:.1f}"
            for at, value in line
        )
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        if len(panel.lines) > 1:
            yield _text(right, top + 14 + 14 * place, name, f'text-anchor="end" fill="{colour}"')


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
