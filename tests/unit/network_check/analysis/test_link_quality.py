"""Which links and nodes stand out, by the figures alone."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from ddpdoctor.facts.fleet import Fleet, Link, Node
from ddpdoctor.network_check.analysis.link_quality import (
    best_of,
    doubtful_links,
    find_common_nodes,
    hopeless_nodes,
    is_like,
    link_troubles,
    rate_of,
    stragglers,
    where_several_meet,
)


def link(a: int, b: int, rate: float = 9400.0, *, resent: float = 0.0, trip: float = 0.0001, error: str = "") -> Link:
    return Link(a=a, b=b, round_trip=trip, forth=rate, back=rate, resent=resent, error=error)


@pytest.mark.parametrize("count", [2, 3, 8, 32])
@pytest.mark.parametrize("seed", range(20))
def test_links_of_one_kind_never_stand_out(count: int, seed: int) -> None:
    """Gigabit Ethernet within 5 %, and 100 Gbit/s whose rates are a CPU's."""
    dice = random.Random(seed)
    pairs = list(combinations(range(count), 2))
    for low, high in ((895.0, 941.0), (11_000.0, 41_000.0)):
        links = tuple(link(a, b, dice.uniform(low, high), trip=dice.uniform(5e-5, 3e-4)) for a, b in pairs)
        fleet = Fleet(links=links)
        assert not stragglers(fleet)
        assert not link_troubles(fleet)
        assert not doubtful_links(fleet)


def test_the_slower_direction_is_the_rate() -> None:
    assert rate_of(Link(a=0, b=1, round_trip=0.1, forth=5.0, back=3.0)) == 3.0
    assert rate_of(Link(a=0, b=1, round_trip=0.1, forth=5.0)) == 5.0
    assert rate_of(Link(a=0, b=1, round_trip=0.1)) is None


def test_of_two_measurements_the_better_counts() -> None:
    one, other = link(0, 1, 20.0, trip=0.01), Link(a=0, b=1, round_trip=0.001, forth=900.0, back=10.0)
    found = best_of(one, other)
    assert (found.forth, found.back, found.round_trip) == (900.0, 20.0, 0.001)
    assert best_of(link(0, 1, -1, error="no answer"), one) == one
    assert best_of(one, link(0, 1, -1, error="no answer")) == one


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (link(0, 1, 2.2), True),
        (link(0, 1, 3.0), False),
        (link(0, 1, 2.0, trip=0.01), False),
        (link(0, 1, -1.0, error="no answer"), False),
    ],
)
def test_measurements_that_say_the_same(other: Link, expected: bool) -> None:
    assert is_like(link(0, 1, 2.0), other) is expected


def test_only_what_stands_out_is_measured_again() -> None:
    links = [link(a, b) for a, b in combinations(range(4), 2)]
    links[2] = link(0, 3, 40.0)
    links[4] = link(1, 3, 40.0, resent=0.4)
    links[5] = link(2, 3, -1.0, error="no answer")
    assert doubtful_links(Fleet(links=tuple(links))) == (links[2],)


def test_what_may_have_been_a_busy_cpu_is_looked_at_before_a_bad_node() -> None:
    """Each look at a node that loses packets takes seconds, and the time is short."""
    links = {pair: link(*pair) for pair in combinations(range(6), 2)}
    links |= {(0, 1): link(0, 1, 90.0), (2, 5): link(2, 5, 0.4), (3, 5): link(3, 5, 2.0), (4, 5): link(4, 5, 9.0)}
    links |= {(0, 5): link(0, 5, 4.0), (1, 5): link(1, 5, 5000.0)}
    assert [(link.a, link.b) for link in doubtful_links(Fleet(links=tuple(links.values())))][:2] == [(0, 1), (2, 5)]


def test_who_needs_no_more_rounds() -> None:
    """Whose links are all bad, by the word of two peers that do well with others: their word alone condemns nobody."""
    lossy, dead, useless = {"resent": 0.3}, {"error": "no answer in time"}, {"rate": 3.0}
    for bad in (lossy, dead, useless):
        first = [link(0, 3, **bad), link(1, 2)]  # type: ignore[arg-type]
        assert hopeless_nodes(first) == set()
        second = [*first, link(1, 3, **bad), link(0, 2)]  # type: ignore[arg-type]
        assert hopeless_nodes(second) == {3}
        assert hopeless_nodes([*second, link(2, 3)]) == set()
    # 0 has met two that are bad, and nobody else.
    assert hopeless_nodes([link(0, 6, **lossy), link(0, 7, **lossy), link(1, 6, **lossy), link(1, 2)]) == set()  # type: ignore[arg-type]
    assert hopeless_nodes([link(a, b, **useless) for a, b in combinations(range(5), 2)]) == set()  # type: ignore[arg-type]


def test_a_straggler_explains_its_link_that_could_not_be_measured() -> None:
    """As where it loses so many packets that some measurements come to nothing: no other node is to be named."""
    links = [link(a, b) for a, b in combinations(range(4), 2)]
    links[1], links[3] = link(0, 2, 13.0), link(1, 2, 9.0)
    links[5] = link(2, 3, -1.0, error="no answer in time")
    fleet = Fleet(links=tuple(links))
    assert [(straggler.rank, len(straggler.links), straggler.fails) for straggler in stragglers(fleet)] == [
        (2, 3, True)
    ]
    assert not link_troubles(fleet)


@pytest.mark.parametrize(("virtual", "qdisc", "found"), [(True, "noqueue", []), (False, "mq", [2]), (True, "tbf", [2])])
def test_virtual_nodes_are_as_fast_as_a_busy_cpu(virtual: bool, qdisc: str, found: list[int]) -> None:
    """A third of the usual rate is a busy CPU's, where it isn't a limiter's."""
    links = [link(a, b, 3000.0 if 2 in (a, b) else 9000.0) for a, b in combinations(range(4), 2)]
    nodes = [
        Node(rank=rank, host=f"n{rank}", address=f"10.0.0.{rank}", interface="eth0", virtual=virtual, qdisc=qdisc)
        for rank in range(4)
    ]
    assert [straggler.rank for straggler in stragglers(Fleet(nodes=tuple(nodes), links=tuple(links)))] == found


@pytest.mark.parametrize(("slower", "found"), [(150.0, [2]), (190.0, [2]), (210.0, []), (390.0, [])])
def test_of_three_the_slowest_is_held_against_the_link_of_the_others(slower: float, found: list[int]) -> None:
    """Two of the three links are its own: the usual rate is half its own doing."""
    fleet = Fleet(links=(link(0, 1, 400.0), link(0, 2, slower), link(1, 2, 0.98 * slower)))
    assert [straggler.rank for straggler in stragglers(fleet)] == found


def test_the_many_links_of_a_slow_network_are_not_all_measured_again() -> None:
    links = tuple(link(a, b, 40.0) for a, b in combinations(range(32), 2))
    assert len(doubtful_links(Fleet(links=links))) == 16


@pytest.mark.parametrize(
    ("bad", "count", "nodes", "left", "everywhere"),
    [
        ([(0, 1)], 2, [], [(0, 1)], False),
        ([(0, 2), (1, 2)], 3, [2], [], False),
        ([(0, 1), (0, 2), (1, 2)], 3, [], [(0, 1), (0, 2), (1, 2)], True),
        ([(0, 1)], 4, [], [(0, 1)], False),
        ([(0, 3), (1, 3), (2, 3), (0, 1)], 5, [], [(0, 1), (0, 3), (1, 3), (2, 3)], False),
        ([(0, 4), (1, 4), (2, 4), (3, 4), (0, 1)], 6, [4], [(0, 1)], False),
    ],
)
def test_whom_bad_pairs_have_in_common(
    bad: list[tuple[int, int]], count: int, nodes: list[int], left: list[tuple[int, int]], everywhere: bool
) -> None:
    found = find_common_nodes(bad, list(combinations(range(count), 2)))
    assert (list(found.nodes), list(found.pairs), found.everywhere) == (nodes, left, everywhere)


@pytest.mark.parametrize(
    ("pairs", "expected", "left"),
    [
        ([(0, 2), (2, 6)], {2: ((0, 2), (2, 6))}, ()),
        ([(0, 2), (1, 3)], {}, ((0, 2), (1, 3))),
        ([(0, 2), (2, 6), (1, 5), (5, 7)], {2: ((0, 2), (2, 6)), 5: ((1, 5), (5, 7))}, ()),
        ([(0, 1), (1, 2), (2, 3)], {}, ((0, 1), (1, 2), (2, 3))),
        ([(0, 1), (1, 2), (0, 2)], {}, ((0, 1), (0, 2), (1, 2))),
        ([(0, 1), (0, 2), (0, 3), (3, 4)], {0: ((0, 1), (0, 2), (0, 3))}, ((3, 4),)),
        ([], {}, ()),
    ],
)
def test_where_several_bad_pairs_meet(
    pairs: list[tuple[int, int]], expected: dict[int, tuple[tuple[int, int], ...]], left: tuple[tuple[int, int], ...]
) -> None:
    assert where_several_meet(pairs) == (expected, left)
