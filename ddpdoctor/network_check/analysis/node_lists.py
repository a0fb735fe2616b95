"""Sorts a job's hosts into those that a scheduler may take for the next job and those that it should leave out. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Owner, Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.fleet import Fleet, Passed

NETWORK_PHASE: Final = "reach"
"""Where it wasn't run, no host has shown that it can be reached."""
HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A host says its name itself: nothing else gets into a list that a scheduler reads."""


class NodeLists(msgspec.Struct, frozen=True):
    """Hosts by what became of them. unjudged: in words, those of which neither can be said, and why."""

    passing: tuple[str, ...]
    failing: tuple[str, ...]
    unjudged: tuple[str, ...]


def sort_nodes(fleet: Fleet, examinations: Sequence[Examination]) -> NodeLists:
    """Sort the hosts of a job. What is the user's to mend takes no host out, and what nobody's in particular is vouches for none.

    Args:
        fleet: what all nodes found out together.
        examinations: one a node.
    """
    owners = _owners_of_failures(examinations)
    is_tested = any(phase.name == NETWORK_PHASE and phase.passed is not Passed.NOT_TESTED for phase in fleet.phases)
    passing, failing, unjudged = [], [], []
    for node in fleet.nodes:
        if node.lost or owners.get(node.rank, set()) & {Owner.NODE, Owner.FABRIC}:
            failing.append(node.host)
        elif not is_tested:
            unjudged.append(f"{node.host}: the connections between the nodes were not tried")
        elif Owner.UNKNOWN in owners.get(node.rank, set()):
            unjudged.append(f"{node.host}: something failed there, and whose fault it is isn't known")
        else:
            passing.append(node.host)
    for missing in fleet.absent:
        if missing.host:
            failing.append(missing.host)
        else:
            unjudged.append(f"node {missing.rank}: it did not come, and no launcher tells its host's name")
    # A host with a node that failed fails, however many others it has.
    names = dict.fromkeys(failing)
    nameless = [name for name in (*names, *passing) if not HOST_NAME.fullmatch(name)]
    return NodeLists(
        passing=tuple(name for name in dict.fromkeys(passing) if name not in names and name not in nameless),
        failing=tuple(name for name in names if name not in nameless),
        unjudged=(*unjudged, *(f"{name!r}: that is no host's name" for name in nameless)),
    )


def _owners_of_failures(examinations: Sequence[Examination]) -> dict[int | None, set[Owner]]:
    """Whose the failures are that were found on each node, by its rank."""
    owners: dict[int | None, set[Owner]] = {}
    for examination in examinations:
        meeting = examination.snapshot.meeting
        rank = None if isinstance(meeting, Unknown) else meeting.node_rank
        owners.setdefault(rank, set()).update(
            finding.owner or check.owner
            for check, severity, finding in examination.findings
            if severity is Severity.FAIL
        )
    return owners
