"""Which hosts a scheduler may take after netcheck, which it should leave out, and of which neither can be said."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddpdoctor.base.findings import FAIL, WARN, Finding, Owner, Severity
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.fleet import Fleet, MissingNode, Passed, Phase
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.network_check.analysis.node_lists import sort_nodes
from tests.support.fleets import examined, make_fleet, node

UNTESTED = (Phase(name="reach", passed=Passed.NOT_TESTED, reason="a node is missing"),)


def judged(count: int, found: Mapping[int, tuple[Severity, Owner]]) -> list[Examination]:
    findings = {
        place: [Finding("It is broken", severity=severity, owner=owner)] for place, (severity, owner) in found.items()
    }
    replace = msgspec.structs.replace
    return [
        replace(examination, snapshot=replace(examination.snapshot, meeting=Meeting(node_rank=rank)))
        for rank, examination in enumerate(examined(count, findings))
    ]


def sort(fleet: Fleet, found: Mapping[int, tuple[Severity, Owner]] | None = None) -> tuple[str, str, tuple[str, ...]]:
    lists = sort_nodes(fleet, judged(len(fleet.nodes), found or {}))
    return " ".join(lists.passing), " ".join(lists.failing), lists.unjudged


def test_all_are_well() -> None:
    assert sort(make_fleet(3)) == ("n0 n1 n2", "", ())


def test_a_node_or_its_network_that_fails_is_left_out_and_no_users_setting_is() -> None:
    found = {0: (FAIL, Owner.USER), 1: (FAIL, Owner.NODE), 2: (FAIL, Owner.FABRIC), 3: (WARN, Owner.NODE)}
    assert sort(make_fleet(4), found) == ("n0 n3", "n1 n2", ())


def test_who_is_absent_or_lost_fails_and_vouches_for_nobody() -> None:
    fleet = make_fleet(2, absent=[MissingNode(rank=2, host="n2"), MissingNode(rank=3)], phases=UNTESTED)
    passing, failing, unjudged = sort(fleet, {0: (FAIL, Owner.UNKNOWN)})
    assert (passing, failing) == ("", "n2")
    assert unjudged == (
        "n0: the connections between the nodes were not tried",
        "n1: the connections between the nodes were not tried",
        "node 3: it did not come, and no launcher tells its host's name",
    )
    lost = make_fleet(2, nodes=[node(0), node(1, lost="in reach: it was silent for 10 s")])
    assert sort(lost) == ("n0", "n1", ())


def test_a_failure_of_nobodys_vouches_for_none() -> None:
    passing, failing, unjudged = sort(make_fleet(2), {1: (FAIL, Owner.UNKNOWN)})
    assert (passing, failing) == ("n0", "")
    assert unjudged == ("n1: something failed there, and whose fault it is isn't known",)


def test_a_name_that_is_none_gets_into_no_list() -> None:
    """A host says its name itself."""
    fleet = make_fleet(3, nodes=[node(0), node(1, host="n1\nn0"), node(2, host="n[0-2]")])
    passing, failing, unjudged = sort(fleet, {2: (FAIL, Owner.NODE)})
    assert (passing, failing) == ("n0", "")
    assert len(unjudged) == 2


def test_a_host_with_one_node_that_fails_fails() -> None:
    fleet = make_fleet(3, nodes=[node(0, host="a"), node(1, host="a"), node(2, host="b")])
    assert sort(fleet, {1: (FAIL, Owner.NODE)}) == ("b", "a", ())
