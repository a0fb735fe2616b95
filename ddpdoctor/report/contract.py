"""The JSON that every judging command prints. A field may be added, none is renamed; the schema lies beside this file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ddpdoctor.base.findings import Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import escaped_json
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.base.version import __version__
from ddpdoctor.engine.examination import Examination, Verdict, node_names, overall, unless_unjudged
from ddpdoctor.engine.explanations import Explanation
from ddpdoctor.engine.registry import Check, SkipReason
from ddpdoctor.facts.fleet import Fleet, Link, Phase, Reach
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.report.merged_findings import passed_everywhere
from ddpdoctor.report.reported_checkpoints import CheckpointOutcome
from ddpdoctor.report.reported_fixes import Treatment
from ddpdoctor.report.reported_fleet import ReportedFleet
from ddpdoctor.report.reported_gate import ReportedGate
from ddpdoctor.report.reported_jobs import ReportedJob
from ddpdoctor.report.reported_leftovers import ReportedLeftover
from ddpdoctor.report.reported_log import ReportedLog
from ddpdoctor.report.reported_scripts import ReportedScript

T = TypeVar("T", bound=msgspec.Struct)


class ReportedFinding(msgspec.Struct, frozen=True):
    """One finding. `node` names the host where several were judged, `nodes` all that have the same, as Slurm writes lists of hosts; `rank`
    the rank where it concerns one; `docs` the page of the check, as a path in the project's repository; `owner` whose it is to mend it."""

    slug: str
    family: str
    severity: Severity
    owner: Owner
    summary: str
    cause: str
    evidence: tuple[Evidence, ...]
    fixes: tuple[Fix, ...]
    node: str | UnsetType = UNSET
    rank: int | UnsetType = UNSET
    docs: str = ""
    nodes: str | UnsetType = UNSET
    file: str | UnsetType = UNSET
    """Of a finding about source code, with `line` and `column`, both from 1."""
    line: int | UnsetType = UNSET
    column: int | UnsetType = UNSET
    explains: tuple[str, ...] | UnsetType = UNSET
    """Of a finding in the script of a run: slugs of the illnesses of the run that may come of it."""


def report_finding(
    check: Check,
    severity: Severity,
    finding: Finding,
    node: str | UnsetType = UNSET,
    explains: tuple[str, ...] | UnsetType = UNSET,
) -> ReportedFinding:
    """A finding as programs get it.

    Args:
        check: that found it.
        severity: of this finding.
        finding: as the check gave it.
        node: the host that has it, where several were judged.
        explains: slugs of what it may have brought about, of a finding in the script of a run.
    """
    place = finding.place
    return ReportedFinding(
        check.slug,
        check.family,
        severity,
        finding.owner or check.owner,
        finding.summary,
        finding.cause or check.section("Why"),
        finding.evidence,
        finding.fixes,
        node,
        UNSET if finding.rank is None else finding.rank,
        check.docs,
        file=place.file if place else UNSET,
        line=place.line if place else UNSET,
        column=place.column if place else UNSET,
        explains=explains,
    )


class ReportedNotTested(msgspec.Struct, frozen=True):
    """One check without a verdict. `why`: a fact is unknown, nothing to look at here, or the check crashed."""

    slug: str
    reason: str
    why: SkipReason
    node: str | UnsetType = UNSET


class ReportedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of netcheck's fleet. A version is null where the thing isn't installed, and left out where it could not be
    learned; `clock_offset`: seconds that its clock is ahead of node 0's; `lost`: when and how it went away."""

    rank: int
    host: str
    address: str
    interface: str
    mtu: int
    python: str | UnsetType | None = UNSET
    torch: str | UnsetType | None = UNSET
    nccl: str | UnsetType | None = UNSET
    cuda: str | UnsetType | None = UNSET
    driver: str | UnsetType | None = UNSET
    clock_offset: float
    clock_error: float
    lost: str = ""


class ReportedAbsent(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was expected and didn't come, and what to run there."""

    rank: int
    host: str
    command: str


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of netcheck between pairs of nodes. `reach`: who reaches whom, by place in `nodes`; `links`: the measured
    pairs, by rank, with seconds and Mbit/s."""

    reach: tuple[Reach, ...]
    links: tuple[Link, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a command that judges. `passed` are the slugs that passed on every host; `problems` what kept a host
    from being judged at all; `facts` (with -v) the snapshots by host; `files` what fix-checkpoint did with each. Of
    netcheck on node 0 there are also its `nodes`, those that are `absent`, the `strangers` that knocked
    and were refused, its `phases`, the `matrix`, and the `seconds` from the last join to the verdict. On another node the
    findings are its own, the verdict that of all nodes. Of smoke there is `smoke`: each rank stage by stage, and how fast it
    went; where the training failed, the findings of the whole check on this host come with those of the training. Of zombies
    there are the `leftovers`: what earlier runs left behind, what is proven first; what of it is still there is among the
    `findings`, too, by the slug of the check that says the same of a host; `not_seen`: where more may be left over, and why
    nobody could look there; with --kill `freed`: what is free again, in words."""

    schema: Literal[1] = 1
    version: str = __version__
    command: str
    host: str
    verdict: Verdict
    findings: tuple[ReportedFinding, ...]
    not_tested: tuple[ReportedNotTested, ...]
    passed: tuple[str, ...]
    problems: tuple[str, ...] = ()
    facts: dict[str, Snapshot] | UnsetType = UNSET
    files: tuple[CheckpointOutcome, ...] | UnsetType = UNSET
    nodes: tuple[ReportedNode, ...] | UnsetType = UNSET
    absent: tuple[ReportedAbsent, ...] | UnsetType = UNSET
    strangers: tuple[str, ...] | UnsetType = UNSET
    phases: tuple[Phase, ...] | UnsetType = UNSET
    matrix: Matrix | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    smoke: Smoke | UnsetType = UNSET
    treatments: tuple[Treatment, ...] | UnsetType = UNSET
    """`check --fix`: what became of each finding's fix; the findings are those that were left."""
    jobs: tuple[ReportedJob, ...] | UnsetType = UNSET
    """`jobs`: the training jobs of this host, the oldest first; empty where none was found."""
    leftovers: tuple[ReportedLeftover, ...] | UnsetType = UNSET
    """`zombies`."""
    not_seen: tuple[str, ...] | UnsetType = UNSET
    """`zombies`."""
    freed: tuple[str, ...] | UnsetType = UNSET
    """`zombies --kill`."""
    gate: ReportedGate | UnsetType = UNSET
    """`gate`: what it came to for its caller; after a job there are `leftovers`, `not_seen` and `freed`, too, of that job."""
    hang: Hang | UnsetType = UNSET
    """`jobs --hang`: where each rank stood, and what the flight recorders say."""
    log: ReportedLog | UnsetType = UNSET
    """`diagnose-log`: what failed first, of what, and what only followed. `host` is that whose facts the suspicions were held
    against, and empty without --here and --snapshot."""
    fleet: ReportedFleet | UnsetType = UNSET
    """`fleet`: each host, who didn't answer, and the odd ones out."""
    scripts: tuple[ReportedScript, ...] | UnsetType = UNSET
    """`lint`: each file of Python that was read, or could not be. `host` is empty: nothing of the host was looked at."""


def build_report(
    command: str,
    examinations: Sequence[Examination],
    problems: Sequence[str] = (),
    *,
    with_facts: bool = False,
    fleet: Fleet | None = None,
    seconds: float | None = None,
    of_all: Verdict | None = None,
    smoke: Smoke | None = None,
    hang: Hang | None = None,
) -> Report:
    """Puts the examinations of one or several hosts into one report.

    fleet: what all nodes found out, where netcheck ran on node 0; `seconds`: from the last join to the verdict; `of_all`:
    the verdict on all nodes, where the examination is of one of them, or on the training; smoke: what that came to; hang: where the ranks of
    a running job stand.
    """
    several = len(examinations) > 1
    findings = []
    not_tested = []
    names = node_names(examinations)
    for examination, name in zip(examinations, names, strict=True):
        node = name if several else UNSET
        findings += [
            report_finding(check, severity, finding, node) for check, severity, finding in examination.findings
        ]
        not_tested += [
            ReportedNotTested(result.check.slug, result.not_tested.reason, result.not_tested.why, node)
            for result in examination.results
            if result.not_tested is not None
        ]
    verdict = of_all or overall(examinations)
    return Report(
        command=command,
        host=", ".join(names),
        verdict=unless_unjudged(verdict, problems),
        findings=tuple(sorted(findings, key=lambda finding: finding.severity.rank)),
        not_tested=tuple(not_tested),
        passed=tuple(passed_everywhere(examinations)),
        problems=tuple(problems),
        facts=_facts(names, examinations) if with_facts else UNSET,
        nodes=UNSET if fleet is None else tuple(mirror(ReportedNode, node) for node in fleet.nodes),
        absent=UNSET if fleet is None else _absent(fleet, examinations[0].snapshot.meeting),
        strangers=UNSET if fleet is None else fleet.strangers,
        phases=UNSET if fleet is None else fleet.phases,
        matrix=UNSET if fleet is None else Matrix(reach=fleet.reach, links=fleet.links),
        seconds=UNSET if seconds is None else seconds,
        smoke=UNSET if smoke is None else smoke,
        hang=UNSET if hang is None else hang,
    )


def with_explanations(report: Report, explanations: Sequence[Explanation]) -> Report:
    """Add what a run's script explains to the findings of the run: worst first, and behind what it explains."""
    told = [report_finding(found.check, found.severity, found.finding, explains=found.slugs) for found in explanations]
    findings = sorted((*report.findings, *told), key=lambda finding: finding.severity.rank)
    return msgspec.structs.replace(report, findings=tuple(findings))


def _facts(names: Sequence[str], examinations: Sequence[Examination]) -> dict[str, Snapshot]:
    """The snapshots by host. What a fleet found out is the same in all of them, and stays in the first only."""
    return {
        name: msgspec.structs.replace(examination.snapshot, fleet=Fleet()) if place else examination.snapshot
        for place, (name, examination) in enumerate(zip(names, examinations, strict=True))
    }


def _absent(fleet: Fleet, meeting: Maybe[Meeting]) -> tuple[ReportedAbsent, ...]:
    return tuple(
        ReportedAbsent(
            rank=node.rank,
            host=node.host,
            command="" if isinstance(meeting, Unknown) else netcheck_command(meeting, fleet.expected, node.rank),
        )
        for node in fleet.absent
    )


def mirror(kind: type[T], source: object, **fields: Any) -> T:
    """A struct for the report out of one of the facts.

    Args:
        kind: of the struct.
        source: has the attributes that are its fields; one that is unknown is left out.
        fields: those that differ.
    """
    same = {
        name: getattr(source, name) for name in kind.__struct_fields__ if name not in fields and hasattr(source, name)
    }
    return kind(**{name: value for name, value in same.items() if not isinstance(value, Unknown)}, **fields)


def to_json(report: Report) -> str:
    """Indented JSON, ASCII only, so that no terminal or log mangles it."""
    return escaped_json(json.dumps(msgspec.to_builtins(report), indent=2))
