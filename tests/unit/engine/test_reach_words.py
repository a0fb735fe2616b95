"""What is said of who reaches whom: of the right node, with its own ports, and no more than the counters tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.catalogue import select
from ddpdoctor.engine.registry import diagnose
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from tests.unit.network_check.analysis.test_fault_location import PORTS, SYN, column, fleet, row


def findings(made: Fleet, firewall: Firewall | None = None) -> list[tuple[str, Finding]]:
    """What each node is told."""
    found: list[tuple[str, Finding]] = []
    for node in made.nodes:
        snapshot = Snapshot(
            fleet=made,
            meeting=Meeting(master="10.0.0.1", node_rank=node.rank),
            firewall=firewall or Firewall(),
        )
        for result in diagnose(snapshot, Plan(1, "--nproc"), select(["reach"])):
            found += [(node.host, finding) for finding in result.findings]
    return found


def with_ranges(made: Fleet, ranges: Mapping[int, tuple[int, int]]) -> Fleet:
    nodes = (
        msgspec.structs.replace(one, port_range=ranges.get(at, (32768, 60999))) for at, one in enumerate(made.nodes)
    )
    return msgspec.structs.replace(made, nodes=tuple(nodes))


def without_counters_of_output(made: Fleet) -> Fleet:
    nodes = (msgspec.structs.replace(node, untransmitted=None) for node in made.nodes)
    return msgspec.structs.replace(made, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("bad", "ranges", "says"),
    [
        (column(1, 3), {1: (40000, 50000)}, "n1 drops inbound TCP 40000-50000 (both peers time out; outbound OK)"),
        (row(1, 3), {0: (40000, 50000), 2: (40000, 50000)}, "n1 drops outbound TCP 40000-50000 (towards both"),
        (row(1, 3), {2: (40000, 50000)}, "n1 drops outbound TCP 32768-60999 and 40000-50000 (towards both"),
    ],
)
def test_ports_are_those_of_the_nodes_that_listen(
    bad: Iterable[tuple[int, int]], ranges: dict[int, tuple[int, int]], says: str
) -> None:
    ((_, only),) = findings(with_ranges(fleet(3, bad), ranges))
    assert only.summary.startswith(says)


def test_answers_that_are_dropped_are_let_out() -> None:
    made = fleet(4, column(1, 4), counted=True, untransmitted={1: 3 * PORTS * SYN})
    rules = Firewall(tool="nft", output_chains=("inet filter output",))
    ((host, only),) = findings(made, rules)
    assert host == "n1"
    assert only.summary.startswith("n1 drops the answers to connections on TCP 32768-60999 (all 3 peers time out")
    assert " insert rule inet filter output ip daddr " in only.fixes[0].commands[0]


def test_whoever_lets_packets_in_isnt_said_to_drop_them_nor_never_to_get_them() -> None:
    """Before Linux 6.8 nobody knows what becomes of the answers."""
    made = without_counters_of_output(fleet(4, column(1, 4) | row(1, 4), counted=True))
    told = [finding.summary for _, finding in findings(made)]
    assert any(one.startswith("n1: connections to it on TCP 32768-60999 fail, and its filter on what") for one in told)
    assert not any("before it arrives" in one or "drops inbound" in one for one in told)


def test_both_ends_of_a_link_are_named_where_both_filter() -> None:
    lost = PORTS * SYN
    made = fleet(4, [(1, 2), (2, 1)], counted=True, undelivered={1: lost, 2: lost})
    ((_, only),) = findings(made)
    assert "n2 itself takes away what comes in from n1 and n1 itself takes away what comes in from n2" in only.cause


def test_a_link_of_which_one_end_is_acquitted() -> None:
    made = without_counters_of_output(fleet(4, [(1, 2)], counted=True))
    ((_, only),) = findings(made)
    assert "n2 took no packets away: n1 filters, or something between the two does" in only.cause
    ((_, only),) = findings(fleet(4, [(1, 2)], counted=True))
    assert "Neither n1 nor n2 took packets away" in only.cause
