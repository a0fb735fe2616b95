"""Who is to blame for a matrix of who reaches whom: made-up fleets of 2 to 512 nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.facts.fleet import Fleet, Node, Reach
from ddpdoctor.network_check.analysis.fault_location import LostPackets, ReachFaults, Way, locate_faults, subnet_of

PORTS = 3
SYN = 3
"""First packets lost at a port while it is counted."""
IN, OUT = Way.INBOUND, Way.OUTBOUND
HERE, ELSEWHERE, UNTOLD = LostPackets.HERE, LostPackets.ELSEWHERE, LostPackets.UNTOLD


def fleet(
    size: int,
    bad: Iterable[tuple[int, int]] | Mapping[tuple[int, int], str],
    *,
    counted: bool = False,
    undelivered: Mapping[int, int] | None = None,
    untransmitted: Mapping[int, int] | None = None,
    idle: Mapping[int, tuple[int, int]] | None = None,
    addresses: Mapping[int, str] | None = None,
) -> Fleet:
    """Nodes 10.0.0.1 and on. bad: pairs (who dials, whom), silent on all ports, or with the cells of their ports.

    counted: the kernels' counters could be read; those that are given by node, 0 for the others. idle: the same two
    of a time in which nobody dialled.
    """
    cells = dict(bad) if isinstance(bad, Mapping) else dict.fromkeys(bad, "t" * PORTS)
    nodes = tuple(
        Node(
            rank=at,
            host=f"n{at}",
            address=(addresses or {}).get(at, f"10.0.{at // 200}.{at % 200 + 1}"),
            undelivered=(undelivered or {}).get(at, 0) if counted else None,
            untransmitted=(untransmitted or {}).get(at, 0) if counted else None,
            idle_undelivered=(idle or {}).get(at, (0, 0))[0],
            idle_untransmitted=(idle or {}).get(at, (0, 0))[1],
        )
        for at in range(size)
    )
    reach = tuple(
        Reach(
            kind="route",
            addresses=tuple(node.address for node in nodes),
            ports=(40000 + port,) * size,
            rows=tuple(
                "".join("-" if i == j else cells[i, j][port] if (i, j) in cells else "." for j in range(size))
                for i in range(size)
            ),
        )
        for port in range(PORTS)
    )
    return Fleet(nodes=nodes, expected=size, reach=reach)


def column(node: int, size: int) -> set[tuple[int, int]]:
    return {(peer, node) for peer in range(size) if peer != node}


def row(node: int, size: int) -> set[tuple[int, int]]:
    return {(node, peer) for peer in range(size) if peer != node}


def blocked(found: ReachFaults) -> list[tuple[int, Way]]:
    return [(block.node, block.way) for block in found.blocks]


def links(found: ReachFaults) -> list[tuple[tuple[int, ...], tuple[int, ...], bool]]:
    return [(cut.here, cut.there, cut.both) for cut in found.cuts]


def test_all_is_well() -> None:
    assert locate_faults(fleet(3, ())) == ReachFaults()
    assert locate_faults(Fleet()) == ReachFaults()


@pytest.mark.parametrize("size", [3, 8, 512])
@pytest.mark.parametrize("way", [IN, OUT])
def test_one_node(size: int, way: Way) -> None:
    bad = column(2, size) if way is IN else row(2, size)
    found = locate_faults(fleet(size, bad))
    assert blocked(found) == [(2, way)]
    assert not found.cuts
    (one,) = found.blocks
    assert one.peers == tuple(peer for peer in range(size) if peer != 2)
    assert (one.tried, one.ports, one.cells, one.other_way, one.where) == (size - 1, (True,) * 3, "t", True, UNTOLD)


@pytest.mark.parametrize("size", [3, 4, 8, 512])
@pytest.mark.parametrize("way", [IN, OUT])
def test_two_nodes_of_one_kind(size: int, way: Way) -> None:
    """With three nodes the third one's whole row (or column) is bad, too."""
    of = column if way is IN else row
    assert blocked(locate_faults(fleet(size, of(0, size) | of(2, size)))) == [(0, way), (2, way)]


@pytest.mark.parametrize("size", [4, 8, 64])
def test_one_node_each_way(size: int) -> None:
    found = locate_faults(fleet(size, column(0, size) | row(3, size)))
    assert blocked(found) == [(0, IN), (3, OUT)]
    assert [block.other_way for block in found.blocks] == [True, True]


@pytest.mark.parametrize("size", [3, 8, 128])
def test_all_nodes(size: int) -> None:
    every = [pair for node in range(size) for pair in column(node, size)]
    found = locate_faults(fleet(size, every))
    assert blocked(found) == [(node, IN) for node in range(size)]
    assert {block.other_way for block in found.blocks} == {None}
    lost = PORTS * SYN * (size - 1)
    told = locate_faults(fleet(size, every, counted=True, untransmitted=dict.fromkeys(range(size), lost)))
    assert blocked(told) == [(node, OUT) for node in range(size)]
    assert {block.where for block in told.blocks} == {HERE}


# --- two nodes: the counters ---------------------------------------------------------------------------------------------


def test_on_one_peers_word_alone_nobody_is_blamed() -> None:
    assert locate_faults(fleet(2, [(0, 1)])).blocks == ()
    assert links(locate_faults(fleet(2, [(0, 1)]))) == [((0,), (1,), False)]
    assert links(locate_faults(fleet(2, [(1, 0)]))) == [((1,), (0,), False)]
    assert links(locate_faults(fleet(2, [(0, 1), (1, 0)]))) == [((0,), (1,), True)]


@pytest.mark.parametrize(
    ("bad", "undelivered", "untransmitted", "expected"),
    [
        ([(0, 1)], {1: 9}, {}, [(1, IN)]),
        ([(0, 1)], {}, {0: 9}, [(0, OUT)]),
        ([(0, 1), (1, 0)], {0: 9, 1: 10}, {}, [(0, IN), (1, IN)]),
        ([(0, 1), (1, 0)], {}, {0: 9, 1: 9}, [(0, OUT), (1, OUT)]),
        ([(0, 1), (1, 0)], {0: 9}, {0: 10}, [(0, IN), (0, OUT)]),
        # What was dropped by the way, as broadcasts are, proves nothing.
        ([(0, 1)], {1: 4}, {0: 2}, []),
        # Nor does a scan, which is far more than was dialled.
        ([(0, 1)], {1: 300}, {}, []),
        ([(0, 1)], {}, {0: 13}, []),
    ],
)
def test_two_nodes_by_the_counters(
    bad: list[tuple[int, int]],
    undelivered: dict[int, int],
    untransmitted: dict[int, int],
    expected: list[tuple[int, Way]],
) -> None:
    found = locate_faults(fleet(2, bad, counted=True, undelivered=undelivered, untransmitted=untransmitted))
    assert blocked(found) == expected
    assert bool(found.cuts) is not bool(expected)


@pytest.mark.parametrize(
    ("undelivered", "untransmitted", "idle", "expected"),
    [
        # A little noise on the node that does it.
        ({1: 10}, {}, {1: (2, 0)}, [(1, IN)]),
        ({}, {0: 11}, {0: (0, 2)}, [(0, OUT)]),
        # As much as was lost, all the time: multicasts, scans, a rule that drops something else. Whoever it is, isn't told.
        ({1: 9}, {}, {1: (9, 0)}, []),
        ({}, {0: 9}, {0: (0, 8)}, []),
        ({1: 12}, {}, {1: (5, 0)}, []),
        # The packets never left node 0; node 1 has noise of the same amount.
        ({1: 9}, {0: 9}, {1: (9, 0)}, [(0, OUT)]),
        # Less than nothing: the counters weren't read at one moment.
        ({1: 0}, {}, {1: (-9, 0)}, []),
    ],
)
def test_noise_blames_nobody(
    undelivered: dict[int, int],
    untransmitted: dict[int, int],
    idle: dict[int, tuple[int, int]],
    expected: list[tuple[int, Way]],
) -> None:
    """Two nodes, the first of which doesn't reach the second."""
    found = locate_faults(
        fleet(2, [(0, 1)], counted=True, undelivered=undelivered, untransmitted=untransmitted, idle=idle)
    )
    assert blocked(found) == expected
    for cut in found.cuts:
        assert cut.here == (0,)
        assert cut.there == (1,)
        assert HERE not in (cut.where_here, cut.where_there)


def test_where_noise_hides_it_a_node_is_not_acquitted_either() -> None:
    (cut,) = locate_faults(fleet(2, [(0, 1)], counted=True, undelivered={1: 0}, idle={1: (-9, 0)})).cuts
    assert (cut.where_here, cut.where_there) == (ELSEWHERE, UNTOLD)


@pytest.mark.parametrize(("taken", "where"), [(18, HERE), (9, UNTOLD), (0, ELSEWHERE)])
def test_of_two_links_that_fail_at_one_node(taken: int, where: LostPackets) -> None:
    """Its kernel took the packets of both, of one of them, or of none."""
    cuts = locate_faults(fleet(8, [(1, 4), (2, 4)], counted=True, undelivered={4: taken})).cuts
    assert [cut.there for cut in cuts] == [(4,), (4,)]
    assert {cut.where_there for cut in cuts} == {where}


@pytest.mark.parametrize("idle", [0, 6])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_filter_that_takes_replies_as_well_is_one(size: int, idle: int) -> None:
    """It knows no connections: what node 0 dials is answered to a high port of its own."""
    lost = 2 * PORTS * SYN * (size - 1)
    pairs = column(0, size) | row(0, size)
    # Answers to earlier tries are sent again meanwhile.
    found = locate_faults(fleet(size, pairs, counted=True, undelivered={0: lost}, idle={0: (idle * (size - 1), 0)}))
    assert blocked(found) == [(0, IN)]
    assert not found.cuts
    assert (found.blocks[0].where, found.blocks[0].other_way) == (HERE, False)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_filter_on_output_that_takes_answers_as_well_is_one(size: int) -> None:
    """It knows no connections: node 1 answers those who dial it from a high port, to a high port."""
    lost = 2 * PORTS * SYN * (size - 1)
    found = locate_faults(fleet(size, column(1, size) | row(1, size), counted=True, untransmitted={1: lost}))
    assert blocked(found) == [(1, OUT)]
    assert not found.cuts
    assert (found.blocks[0].where, found.blocks[0].other_way) == (HERE, False)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", [IN, OUT])
@pytest.mark.parametrize("node", [0, 1])
def test_a_filter_for_one_peer_that_takes_answers_as_well_is_named(size: int, way: Way, node: int) -> None:
    """The first packets of both were lost for the other one's connections, and the answers for its own."""
    lost = {node: 2 * PORTS * SYN}
    bad = [(0, 1), (1, 0)]
    counted = (
        fleet(size, bad, counted=True, undelivered=lost)
        if way is IN
        else fleet(size, bad, counted=True, untransmitted=lost)
    )
    found = locate_faults(counted)
    if size == 2:
        assert blocked(found) == [(node, way)]
        return
    (cut,) = found.cuts
    ends = ((cut.where_here, cut.way_here), (cut.where_there, cut.way_there))
    assert ends[node] == (HERE, way)
    assert ends[1 - node][0] is not HERE


@pytest.mark.parametrize("way", [IN, OUT])
def test_a_filter_that_takes_answers_alone(way: Way) -> None:
    """Whose first packets passed isn't told to have met something before it."""
    pairs = row(1, 4) if way is IN else column(1, 4)
    lost = {1: 3 * PORTS * SYN}
    counted = (
        fleet(4, pairs, counted=True, undelivered=lost)
        if way is IN
        else fleet(4, pairs, counted=True, untransmitted=lost)
    )
    (one,) = locate_faults(counted).blocks
    assert (one.node, one.way, one.where) == (1, way.other, LostPackets.ANSWERS)
    (cut,) = locate_faults(
        fleet(2, [(0, 1)], counted=True, **{"undelivered" if way is IN else "untransmitted": {1 - (way is IN): 9}})
    ).cuts
    told = (cut.where_here, cut.way_here) if way is IN else (cut.where_there, cut.way_there)
    assert told == (HERE, way)


def test_where_output_isnt_counted_who_took_the_answers_stays_open() -> None:
    """Before Linux 6.8; node 1 fails both ways, and let in all that came."""
    made = fleet(4, column(1, 4) | row(1, 4), counted=True)
    nodes = tuple(msgspec.structs.replace(node, untransmitted=None) for node in made.nodes)
    found = locate_faults(msgspec.structs.replace(made, nodes=nodes))
    assert {(block.node, block.way): block.where for block in found.blocks}[1, IN] is LostPackets.DOUBTFUL
    # Where what it sends passes, its answers do.
    made = fleet(4, column(1, 4), counted=True)
    nodes = tuple(msgspec.structs.replace(node, untransmitted=None) for node in made.nodes)
    (one,) = locate_faults(msgspec.structs.replace(made, nodes=nodes)).blocks
    assert one.where is ELSEWHERE


def test_whose_peers_took_the_packets_themselves_is_not_named() -> None:
    found = locate_faults(fleet(3, [(0, 1), (2, 1)], counted=True, untransmitted={0: 9, 2: 9}))
    assert not found.blocks
    assert [(cut.here, cut.where_here, cut.way_here) for cut in found.cuts] == [((0,), HERE, OUT), ((2,), HERE, OUT)]


def test_neither_kernel_took_the_packets() -> None:
    (cut,) = locate_faults(fleet(2, [(0, 1)], counted=True)).cuts
    assert (cut.where_here, cut.where_there) == (ELSEWHERE, ELSEWHERE)


def test_a_reset_loses_as_many_packets_as_silence() -> None:
    found = locate_faults(fleet(2, {(0, 1): "rrr"}, counted=True, undelivered={1: 9}))
    assert blocked(found) == [(1, IN)]
    assert found.blocks[0].cells == "r"


# --- parts, shares and groups --------------------------------------------------------------------------------------------


def test_a_part_of_the_ports() -> None:
    found = locate_faults(fleet(4, dict.fromkeys(column(1, 4), "..t")))
    assert blocked(found) == [(1, IN)]
    assert found.blocks[0].ports == (False, False, True)


@pytest.mark.parametrize(("failed", "is_blamed"), [(8, True), (7, False)])
def test_eighty_percent(failed: int, is_blamed: bool) -> None:
    """Of ten peers."""
    found = locate_faults(fleet(11, sorted(column(0, 11))[:failed]))
    assert (blocked(found) == [(0, IN)]) is is_blamed
    assert len(found.cuts) == (0 if is_blamed else failed)


def test_a_subnet_cut_off() -> None:
    addresses = {at: f"10.{1 if at < 3 else 2}.0.{at}" for at in range(12)}
    forth = {(i, j) for i in range(3) for j in range(3, 12)}
    back = {(j, i) for i, j in forth}
    first, second = (0, 1, 2), tuple(range(3, 12))
    # 9 of 11 peers are more than 80 %, and yet it isn't each of the three by itself.
    assert locate_faults(fleet(12, forth | back, addresses=addresses)).blocks == ()
    assert links(locate_faults(fleet(12, forth | back, addresses=addresses))) == [(first, second, True)]
    assert links(locate_faults(fleet(12, forth, addresses=addresses))) == [(first, second, False)]
    assert links(locate_faults(fleet(12, back, addresses=addresses))) == [(second, first, False)]


def test_a_rule_for_one_peer_is_found_by_the_counters() -> None:
    found = locate_faults(fleet(6, [(1, 4)], counted=True, undelivered={4: 9}))
    assert not found.blocks
    (cut,) = found.cuts
    assert (cut.here, cut.there, cut.where_there) == ((1,), (4,), HERE)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_behind_nat_nobody_filters(size: int) -> None:
    """Node 1 listens at an address that only it knows; the counters see nothing."""
    made = fleet(size, column(1, size), counted=True)
    inside = [
        msgspec.structs.replace(
            one, addresses=tuple("172.17.0.2" if at == 1 else a for at, a in enumerate(one.addresses))
        )
        for one in made.reach
    ]
    found = locate_faults(msgspec.structs.replace(made, reach=tuple(inside)))
    assert [(one.node, len(one.peers)) for one in found.behind_nat] == [(1, size - 1)]
    assert not found.blocks
    assert not found.cuts
    # Whoever is met there all the same has nothing to mend.
    met = [msgspec.structs.replace(one, rows=fleet(size, ()).reach[0].rows) for one in inside]
    assert locate_faults(msgspec.structs.replace(made, reach=tuple(met))) == ReachFaults()


def test_sparse_links_blame_no_node() -> None:
    chance = random.Random(5)
    pairs = [(i, j) for i in range(64) for j in range(64) if i != j]
    bad = set(chance.sample(pairs, 60))
    found = locate_faults(fleet(64, bad))
    assert not found.blocks
    assert {(i, j) for cut in found.cuts for i in cut.here for j in cut.there} <= bad | {(j, i) for i, j in bad}


def test_large_messages_that_stall_are_no_filter() -> None:
    assert locate_faults(fleet(3, {(0, 1): "sss", (1, 0): "sss"})) == ReachFaults()


def test_a_lost_node_is_not_blamed() -> None:
    unseen = dict.fromkeys([*column(2, 4), *row(2, 4)], "---")
    assert locate_faults(fleet(4, unseen)) == ReachFaults()
    assert blocked(locate_faults(fleet(4, unseen | dict.fromkeys([(0, 1), (3, 1)], "ttt")))) == [(1, IN)]


@given(st.integers(2, 7).flatmap(lambda size: st.tuples(st.just(size), st.sets(pairs_of(size)), st.booleans())))
def test_every_failure_is_told_and_no_more(made: tuple[int, set[tuple[int, int]], bool]) -> None:
    """Blocks and cuts together name each bad pair, and no pair that isn't bad; no node is blamed for less than 80 %."""
    size, bad, counted = made
    found = locate_faults(fleet(size, bad, counted=counted))
    told = {
        (peer, block.node) if block.way is IN else (block.node, peer) for block in found.blocks for peer in block.peers
    }
    for cut in found.cuts:
        forth = {(i, j) for i in cut.here for j in cut.there}
        told |= forth | ({(j, i) for i, j in forth} if cut.both else set())
    assert told == bad
    for one in found.blocks:
        assert len(one.peers) >= 2
        assert one.cells == "t"


def pairs_of(size: int) -> st.SearchStrategy[tuple[int, int]]:
    one = st.integers(0, size - 1)
    return st.tuples(one, one).filter(lambda pair: pair[0] != pair[1])


@pytest.mark.parametrize(
    ("address", "subnet"),
    [("10.1.2.3", "10.1.2.0/24"), ("fd00::1", "fd00::/64"), ("fe80::1%eth0", "fe80::/64"), ("", ""), ("n1", "")],
)
def test_subnets(address: str, subnet: str) -> None:
    assert subnet_of(address) == subnet
