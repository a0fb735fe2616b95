"""From what the ranks said to one verdict, and back to the results of checks on whichever rank wants to show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.base.text import plural
from ddpdoctor.engine.examination import Examination, Verdict, examine, unless_unjudged, verdict_on
from ddpdoctor.engine.registry import Catalogue, Check, Result, SkipReason, Subject
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.preflight import Preflight, PreflightRank
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.job_preflight.exchange import Gathered
from ddpdoctor.job_preflight.messages import HostAnswer, JobVerdict, JudgedCheck
from ddpdoctor.knowledge.node_words import names_by_rank

GROUPS: Final = {"preflight", "fleet"}
"""Groups of facts that a running job tells of itself."""
BESIDE_THE_POINT: Final = {Subject.RUNNING_JOB, Subject.NEXT_JOB}
MAX_KINDS_OF_RANKS: Final = 8
"""Kinds of ranks, by their torch and settings, of which one each is judged."""


def judge(gathered: Gathered, judge_rank: int, meeting: Meeting, catalogue: Catalogue) -> JobVerdict:
    """Come to the verdict.

    Args:
        gathered: the ranks' own words.
        judge_rank: that of this process.
        meeting: where the job's ranks meet.
        catalogue: of the checks.
    """
    facts = gathered.facts
    # Those with other groups need not be imported for this.
    checks = tuple(
        check for check in catalogue.checks if GROUPS & check.groups and Subject.JOB_FROM_WITHIN in check.judges
    )
    results = [examine(snapshot, len(facts.ranks), checks).results for snapshot in _snapshots(facts, meeting)]
    judged = tuple(_merged(of_one_check) for of_one_check in zip(*results, strict=True))
    told = tuple(result for result in judged if result is not None)
    passed = len(checks) - len(told)
    hosts = tuple(_without_other_jobs(host, catalogue) for host in gathered.hosts)
    problems = tuple(f"{host.host} was not looked at: {host.problem}" for host in hosts if host.problem)
    return JobVerdict(
        verdict=unless_unjudged(_verdict(told, hosts, passed, catalogue), problems),
        judge=judge_rank,
        world_size=facts.world_size,
        answered=len(facts.ranks),
        hosts=hosts,
        checks=told,
        tokens=gathered.tokens,
        absent=facts.absent,
        calls=_passed_calls(facts),
        problems=problems,
    )


def _snapshots(facts: Preflight, meeting: Meeting) -> Iterator[Snapshot]:
    """The facts as each kind of rank sees them, first those of the lowest rank."""
    hosts = names_by_rank({rank.rank: rank.host for rank in facts.ranks}, "rank")
    fleet = Fleet(
        nodes=tuple(_node(rank, hosts[rank.rank]) for rank in facts.ranks if not rank.problem),
        seat="rank",
        expected=facts.world_size,
    )
    kinds = {_kind(rank): rank for rank in reversed(facts.ranks)}
    for rank in sorted(kinds.values(), key=lambda rank: rank.rank)[:MAX_KINDS_OF_RANKS]:
        yield Snapshot(
            host=rank.host,
            target_python=TargetPython(python=rank.python, chosen_by="the running rank", version=rank.python_version),
            environment=Environment(settings=rank.settings),
            meeting=msgspec.structs.replace(meeting, node_rank=rank.rank),
            fleet=fleet,
            preflight=facts,
        )


def _kind(rank: PreflightRank) -> object:
    return rank.torch, rank.python_version, rank.cuda, rank.nccl, rank.driver, rank.settings


def _node(rank: PreflightRank, host: str) -> Node:
    return Node(
        rank=rank.rank,
        host=host,
        address="",
        python=rank.python_version,
        torch=rank.torch,
        nccl=rank.nccl,
        cuda=rank.cuda,
        driver=rank.driver,
        settings=rank.settings,
    )


def _merged(results: Sequence[Result]) -> JudgedCheck | None:
    """What one check came to for all kinds of ranks; None where it passed for all that it had something to look at."""
    findings = tuple(dict.fromkeys(finding for result in results for finding in result.findings))
    skips = [result.not_tested for result in results if result.not_tested is not None]
    skips.sort(key=lambda skipped: skipped.why is SkipReason.NOT_APPLICABLE)
    if not findings and len(skips) < len(results) and (not skips or skips[0].why is SkipReason.NOT_APPLICABLE):
        return None
    return JudgedCheck(results[0].check.slug, findings, skips[0] if skips else None)


def _verdict(checks: Sequence[JudgedCheck], hosts: Sequence[HostAnswer], passed: int, catalogue: Catalogue) -> Verdict:
    """The worst of all findings; none where not a single check, of the job or of a host, could be judged."""
    judged = (*checks, *(judged for host in hosts for judged in host.checks))
    return verdict_on(_results(judged, catalogue), passed=passed > 0 or any(host.passed for host in hosts))


def _without_other_jobs(host: HostAnswer, catalogue: Catalogue) -> HostAnswer:
    """The answer without what a check says of other jobs there, or of one that is yet to be started: this one holds its port, its memory and
    its GPUs already."""
    kept = tuple(
        judged
        for judged in host.checks
        if (check := catalogue.get(judged.slug)) is None or not BESIDE_THE_POINT & set(check.judges)
    )
    return msgspec.structs.replace(host, checks=kept)


def _passed_calls(facts: Preflight) -> tuple[str, ...]:
    if facts.untried or facts.silent or not facts.calls or not all(tried.ok for tried in facts.calls):
        return ()
    seconds = max(tried.seconds for tried in facts.calls)
    return (f"barrier, all_reduce and all_gather of {plural(len(facts.calls), 'rank')} over gloo in {seconds:.2f} s",)


def examinations_of(verdict: JobVerdict, catalogue: Catalogue) -> tuple[list[str], list[Examination]]:
    """What the checks came to, of the job and of each host, each with the name of what was judged."""
    names = ["the job", *(host.host for host in verdict.hosts)]
    judged = (verdict.checks, *(host.checks for host in verdict.hosts))
    return names, [_examination(name, checks, catalogue) for name, checks in zip(names, judged, strict=True)]


def _examination(host: str, checks: Sequence[JudgedCheck], catalogue: Catalogue) -> Examination:
    snapshot = Snapshot(host=host)
    return Examination(snapshot, examine(snapshot, None, ()).plan, _results(checks, catalogue))


def _results(checks: Sequence[JudgedCheck], catalogue: Catalogue) -> tuple[Result, ...]:
    return tuple(
        Result(catalogue.get(judged.slug) or _foreign(judged.slug), judged.findings, judged.not_tested)
        for judged in checks
    )


def _foreign(slug: str) -> Check:
    """A check of another release, which this one doesn't have."""
    return Check(slug, Severity.WARN, _nothing)


def _nothing() -> Iterator[Finding]:
    yield from ()
