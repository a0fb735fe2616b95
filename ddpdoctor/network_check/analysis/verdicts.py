"""The way from what the fleet found out to each node's verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict, examine, overall
from ddpdoctor.engine.registry import Catalogue, Check, Result
from ddpdoctor.facts.fleet import Cell, Fleet, Passed, Phase
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.interface_choice import as_address, interface_with
from ddpdoctor.knowledge.node_words import HUB_CONNECTION, NO_FLEET, ONE_SIDE, lost_phase, names
from ddpdoctor.network_check.analysis.node_facts import CHECK_FAMILIES
from ddpdoctor.network_check.protocol.bounded_lines import plain
from ddpdoctor.network_check.protocol.messages import MAX_HOST_LENGTH, MAX_NODES, CheckVerdict, NodeVerdict

UNPROVED: Final = "From node 0, without a token"
"""Before a fix that came over the network and that anybody there may have written."""


def judge(
    snapshots: Sequence[Snapshot], catalogue: Catalogue, families: Collection[str] = CHECK_FAMILIES
) -> list[Examination]:
    """Judge each node's facts by themselves; those of the fleet lie in every node's."""
    checks = tuple(check for check in catalogue.checks if check.family in families)
    return [examine(snapshot, None, checks) for snapshot in snapshots]


def not_met(meeting: Meeting) -> tuple[str, ...]:
    """Say why there is no verdict where no check found fault and yet nobody was met; nothing where somebody was."""
    if meeting.nnodes is not None:
        return (f"{meeting.nnodes} nodes were to meet, and this one met none of them",)
    return () if meeting.answered_by else (f"Nobody answered at {meeting.master} port {meeting.port}",)


def one_sided(examination: Examination) -> Examination:
    """Say why nothing of other nodes is judged: this is netcheck, and it looked at this side only."""
    results = (
        msgspec.structs.replace(result, not_tested=msgspec.structs.replace(result.not_tested, reason=ONE_SIDE))
        if result.not_tested and result.not_tested.reason == NO_FLEET
        else result
        for result in examination.results
    )
    return msgspec.structs.replace(examination, results=tuple(results))


def with_fleet(snapshot: Snapshot, fleet: Fleet, node_rank: int) -> Snapshot:
    """The node's facts together with what all nodes found out, and which of them it is."""
    meeting = Meeting() if isinstance(snapshot.meeting, Unknown) else snapshot.meeting
    meeting = msgspec.structs.replace(meeting, node_rank=node_rank, joined=True)
    network = snapshot.network
    address = _met_at(fleet, node_rank)
    is_outer = bool(address) and not as_address(address).is_loopback
    if not isinstance(network, Unknown) and is_outer and interface_with(address, network.interfaces):
        network = msgspec.structs.replace(network, met_at=address)
    return msgspec.structs.replace(snapshot, fleet=fleet, meeting=meeting, network=network)


def _met_at(fleet: Fleet, node_rank: int) -> str:
    """The address at which most of its peers reached that node; "" where none did."""
    place = fleet.place_of(node_rank)
    if place < 0:
        return ""
    reached: Counter[str] = Counter()
    for round_of_dialling in fleet.reach:
        rows = (row for at, row in enumerate(round_of_dialling.rows) if at != place)
        reached[round_of_dialling.addresses[place]] += sum(row[place] == Cell.OK.value for row in rows)
    return next((address for address, peers in reached.most_common(1) if peers), "")


def judged_phases(fleet: Fleet, examinations: Sequence[Examination]) -> tuple[Phase, ...]:
    """A phase in which a check of its own name failed has failed, whatever it measured; so has the comparison of the nodes
    where only some of it could be made. A lost node fails the phase in which it was lost, and not the meeting before."""
    failed = {
        check.family
        for examination in examinations
        for check, severity, finding in examination.findings
        if severity is Severity.FAIL and all(seen.source != HUB_CONNECTION for seen in finding.evidence)
    }

    def judged(phase: Phase) -> Phase:
        lost = [node for node in fleet.nodes if lost_phase(node) == phase.name]
        if phase.passed is Passed.NOT_TESTED and phase.name != "compare":
            return phase
        if lost and not phase.reason:
            return msgspec.structs.replace(phase, passed=Passed.FAIL, reason=f"lost: {names(lost)}")
        return msgspec.structs.replace(phase, passed=Passed.FAIL) if lost or phase.name in failed else phase

    return tuple(map(judged, fleet.phases))


def overall_verdict(fleet: Fleet, examinations: Sequence[Examination]) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict on all nodes, and what keeps it from being a better one: a phase that failed is never passed over, even
    where no check says why."""
    verdict = overall(examinations)
    failed = [phase.name for phase in fleet.phases if phase.passed is Passed.FAIL]
    if verdict is Verdict.FAIL or not failed:
        return verdict, ()
    return Verdict.UNKNOWN, tuple(f"The phase {name!r} failed, and no check knows why" for name in failed)


def verdicts_by_rank(
    examinations: Mapping[int, Examination], lines: Sequence[str], verdict: Verdict, exit_code: int
) -> dict[int, NodeVerdict]:
    """Each node's part, by its rank; the lines, the verdict and the exit code are those of all."""
    fleets = (examination.snapshot.fleet for examination in examinations.values())
    hosts = next((_hosts_of(fleet) for fleet in fleets if not isinstance(fleet, Unknown)), ())
    return {
        rank: NodeVerdict(
            results=tuple(map(_sent, examination.results)),
            verdict=verdict,
            exit_code=exit_code,
            lines=tuple(lines),
            hosts=hosts,
        )
        for rank, examination in examinations.items()
    }


def _hosts_of(fleet: Fleet) -> tuple[str, ...]:
    named = {node.host for node in fleet.nodes} | {node.host for node in fleet.absent}
    named.update(host for double in fleet.doubles for host in (double.host, double.holder))
    return tuple(sorted(name for name in named if 0 < len(name) <= MAX_HOST_LENGTH))[:MAX_NODES]


def _sent(result: Result) -> CheckVerdict:
    """A result as it is sent: with each finding's severity and owner, since the other side may not know the check."""
    check = result.check
    findings = tuple(
        msgspec.structs.replace(finding, severity=check.severity_of(finding), owner=finding.owner or check.owner)
        for finding in result.findings
    )
    return CheckVerdict(check.slug, findings, result.not_tested)


def _of_another_version() -> Iterator[Finding]:
    """A check of node 0's ddpdoctor, which this one doesn't have."""
    yield from ()


def _unproved(finding: Finding) -> Finding:
    # A sentence may hold a command as well.
    fixes = (msgspec.structs.replace(fix, text=f"{UNPROVED}: {fix.text}", appliable=False) for fix in finding.fixes)
    return msgspec.structs.replace(finding, fixes=tuple(fixes))


def examination_of(part: NodeVerdict, snapshot: Snapshot, catalogue: Catalogue, *, proved: bool) -> Examination:
    """Read node 0's verdict on this node as if it had been judged here. A check that only node 0's ddpdoctor has says what it
    found there, and has no page here.

    proved: a token showed that it was node 0. Else whoever took the master's port first may have said it, and its commands
    are shown as his.
    """
    results = tuple(
        Result(
            catalogue.get(result.slug) or Check(plain(result.slug, 40), Severity.WARN, _of_another_version),
            result.findings if proved else tuple(map(_unproved, result.findings)),
            result.not_tested,
        )
        for result in part.results
    )
    return Examination(snapshot, examine(snapshot, None, ()).plan, results)
