"""The tournament in which the links between nodes are measured."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from ddpdoctor.network_check.phases.links_phase import MAX_ROUNDS, PAIR_SECONDS, ROUNDS_SECONDS, tournament_rounds


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 64, 511, 512])
def test_each_pair_meets_once_in_disjoint_rounds(count: int) -> None:
    played = list(tournament_rounds(range(count)))
    assert len(played) == (count - 1 if count % 2 == 0 else count)
    for pairs in played:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)) == count - count % 2
    assert sorted(pair for pairs in played for pair in pairs) == list(combinations(range(count), 2))


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_meets_himself(count: int) -> None:
    assert not list(tournament_rounds(range(count)))


def test_an_odd_number_sits_out_in_turn() -> None:
    nodes = range(7)
    absent = [set(nodes) - {node for pair in pairs for node in pair} for pairs in tournament_rounds(nodes)]
    assert Counter(node for one in absent for node in one) == dict.fromkeys(nodes, 1)


def test_nodes_go_by_their_own_numbers() -> None:
    """Nodes that didn't come leave gaps."""
    assert {pair for pairs in tournament_rounds([3, 7, 40]) for pair in pairs} == {(3, 7), (3, 40), (7, 40)}


@pytest.mark.parametrize("count", [512, 511])
def test_few_rounds_show_each_node_peers_near_and_far(count: int) -> None:
    peers: dict[int, list[int]] = {}
    for pairs in tournament_rounds(range(count), most=16):
        for a, b in pairs:
            peers.setdefault(a, []).append(b)
            peers.setdefault(b, []).append(a)
    for node, met in peers.items():
        assert len(met) == len(set(met)) >= 16 - count % 2
        distances = sorted(min(abs(node - one), count - abs(node - one)) for one in met)
        assert distances[0] <= count // 15
        assert distances[-1] >= count // 2 - count // 15


def test_more_rounds_than_there_are_change_nothing() -> None:
    assert list(tournament_rounds(range(6), most=16)) == list(tournament_rounds(range(6)))


def test_time_for_512_nodes() -> None:
    """All pairs of a round are measured at once, so that the rounds that are played fit into their time, as all wouldn't."""
    assert len(list(tournament_rounds(range(512)))) * PAIR_SECONDS == pytest.approx(127.75)
    assert len(list(tournament_rounds(range(512), most=MAX_ROUNDS))) * PAIR_SECONDS == pytest.approx(4.0)
    assert MAX_ROUNDS * PAIR_SECONDS < ROUNDS_SECONDS
