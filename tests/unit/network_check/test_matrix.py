"""The heat maps of latency and bandwidth: figures that need no colour, within the terminal's width."""

from __future__ import annotations

import io
import re

import pytest

from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.fleet import Cell, Fleet, Link, Passed, Phase
from ddpdoctor.network_check.render_matrix import matrix_sections
from ddpdoctor.report.document import Document
from ddpdoctor.report.terminal import Screen, text_of
from tests.support.fleets import make_fleet, node


def shown(fleet: Fleet, width: int = 80) -> str:
    return text_of(document(fleet), width)


def document(fleet: Fleet) -> Document:
    return Document(verdict=Verdict.OK, sections=tuple(matrix_sections(fleet)))


def full(count: int, slow: tuple[int, ...] = ()) -> list[Link]:
    """All pairs; those of slow nodes take twenty times as long, and send at a twentieth."""
    return [
        Link(
            a=a,
            b=b,
            round_trip=0.002 if {a, b} & {*slow} else 0.0001,
            forth=470.0 if a in slow else 9400.0,
            back=470.0 if b in slow else 9400.0,
        )
        for a in range(count)
        for b in range(a + 1, count)
    ]


def test_every_pair_has_its_figure_in_its_direction() -> None:
    text = shown(make_fleet(3, links=full(3, slow=(1,))))
    trips, rates = text.split("Bandwidth")
    assert [line.split() for line in trips.splitlines()[2:5]] == [
        ["0", "2.00", "0.10", "n0"],
        ["1", "2.00", "2.00", "n1"],
        ["2", "0.10", "2.00", "n2"],
    ]
    assert [line.split() for line in rates.splitlines()[2:5]] == [
        ["0", "9.4G", "9.4G", "n0"],
        ["1", "470M", "470M", "n1"],
        ["2", "9.4G", "9.4G", "n2"],
    ]


def test_what_was_not_measured_or_not_reached_is_no_figure() -> None:
    links = [one for one in full(4) if 3 not in (one.a, one.b)]
    links.append(Link(a=0, b=3, round_trip=0.0, error="cut off"))
    text = shown(make_fleet(4, cells={(0, 3): Cell.SILENT, (3, 1): Cell.PROHIBITED}, links=links))
    first = text.splitlines()
    assert first[2].split() == ["0", "0.10", "0.10", "t", "n0"]
    assert first[5].split() == ["3", "·", "u", "·", "n3"]
    assert "t no answer; u no way there; · not measured" in first


def test_nodes_are_found_by_rank_wherever_they_stand() -> None:
    fleet = make_fleet(2, nodes=[node(0), node(5)], links=[Link(a=0, b=5, round_trip=0.001)])
    lines = shown(fleet).splitlines()
    assert lines[1].split() == ["0", "5"]
    assert lines[2].split() == ["0", "1.00", "n0"]


def test_without_any_link_it_says_why() -> None:
    fleet = make_fleet(2, links=[], phases=[Phase(name="links", passed=Passed.NOT_TESTED, reason="--quick")])
    assert shown(fleet) == "No link was measured: --quick.\n"


def test_without_figures_who_is_not_reached_is_shown_once() -> None:
    text = shown(make_fleet(2, links=[], cells={(0, 1): Cell.SILENT}))
    assert text.startswith("No link was measured.\n")
    assert text.count(" t  n0") == 1
    assert "Bandwidth" not in text


def test_many_nodes_are_a_character_each() -> None:
    text = shown(make_fleet(30, links=full(30, slow=(4,))))
    rows = text.splitlines()[2:32]
    assert rows[0] == " 0   111" + "4" + "1" * 25
    assert set(rows[4].split()[1]) == {"4"}
    assert "1 around 0.10 ms, the median; 4 1.0 ms or worse" in text.splitlines()


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("count", [2, 24, 25, 100, 512])
def test_it_fits_the_terminal(count: int, width: int) -> None:
    cells = {(count - 1, 0): Cell.REFUSED}
    nodes = [node(rank, host=f"a-very-long-name-of-a-node-{rank:04}.cluster") for rank in range(count)]
    near = [
        Link(a=a, b=b, round_trip=0.0001, forth=9400.0, back=9400.0)
        for a in range(count)
        for b in range(a + 1, min(count, a + 9))
    ]
    lines = shown(make_fleet(count, cells=cells, links=near, nodes=nodes), width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert not any(line != line.rstrip() for line in lines)
    # One direction of half a million, and yet to be seen.
    assert any(line.split()[1].startswith("r") for line in lines if line.startswith(last_row(count, lines)))


def last_row(count: int, lines: list[str]) -> str:
    """How the row of the last node begins: "24 ", "511 ", or with the range of nodes that share it."""
    [start] = {line.split()[0] for line in lines if line.split()[:1] and ends_in(line.split()[0], count - 1)}
    return start


def ends_in(label: str, rank: int) -> bool:
    return label.rpartition("-")[2] == str(rank)


def test_colours_only_add_to_what_the_characters_say() -> None:
    fleet = make_fleet(40, cells={(1, 2): Cell.SILENT}, links=full(40, slow=(7,)))
    file = io.StringIO()
    Screen(file, 80, colour=True).show(document(fleet))
    assert "\x1b[" in file.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()) == shown(fleet)


def test_hostile_names_stay_text() -> None:
    text = shown(make_fleet(2, nodes=[node(0), node(1, host="\x1b[31m[bold]x[/bold]\n")], links=full(2)))
    assert "\x1b" not in text
    assert "[bold]x[/bold]" in text
