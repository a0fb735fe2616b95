"""Judges a smoke training by the checks: its plan before it, its facts after it, and the host where it failed; and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ddpdoctor.base.findings import FAIL, WARN, Finding, Severity
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict, examine
from ddpdoctor.engine.registry import Catalogue, Check, Result, Subject
from ddpdoctor.facts.smoke import RankEnding, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.smoke_training.analysis.nccl_report import is_of_report, is_told_by_report, judge_report
from ddpdoctor.smoke_training.plan import SmokePlan

FAMILY = "smoke"

JudgedFinding = tuple[Check, Severity, Finding]


def facts_of_plan(plan: SmokePlan) -> Smoke:
    """The facts of a training that is planned and not started."""
    return Smoke(
        world_size=plan.nproc, backend=plan.backend, chosen=plan.chosen, gpus_passed_over=plan.gpus_passed_over
    )


def checks_of_plans(catalogue: Catalogue) -> list[Check]:
    """The checks that know of a plan, before anything is started, that it can't be run."""
    return [check for check in catalogue.checks if Subject.TRAINING_PLAN in check.judges]


def judge_plan(snapshot: Snapshot, plan: SmokePlan, catalogue: Catalogue) -> Examination | None:
    """Judge a plan; None where nothing speaks against trying it."""
    planned = msgspec.structs.replace(snapshot, smoke=facts_of_plan(plan))
    examination = examine(planned, plan.nproc, checks_of_plans(catalogue))
    return examination if plan.backend == "nccl" and examination.verdict is Verdict.FAIL else None


def judge_training(snapshot: Snapshot, facts: Smoke, catalogue: Catalogue) -> Examination:
    """Judge a training. snapshot: this host's facts, as far as they were collected before."""
    here = sum(rank.host == snapshot.host for rank in facts.ranks) or facts.world_size
    with_smoke = msgspec.structs.replace(snapshot, smoke=facts)
    own = examine(with_smoke, here, [check for check in catalogue.checks if check.family == FAMILY])
    return msgspec.structs.replace(own, results=(*own.results, *judge_report(facts, catalogue)))


def add_host_findings(examination: Examination, host: Snapshot, catalogue: Catalogue) -> Examination:
    """Add all that `check` finds on this host; first those illnesses of which the ranks' words are a sign."""
    before = examination.snapshot
    whole = msgspec.structs.replace(host, smoke=before.smoke, meeting=before.meeting, fleet=before.fleet)
    everything = examine(whole, examination.plan.nproc, catalogue.checks)
    words = "\n".join(finding.said for _, _, finding in own_findings(everything))
    place = {check.slug: number for number, check in enumerate(catalogue.saying(words))}
    # Of what NCCL reports of all ranks this host may know nothing.
    reported = [result for result in examination.results if is_of_report(result)]
    results = sorted(
        [*reported, *everything.results],
        key=lambda result: (result.check.family != FAMILY, place.get(result.check.slug, len(place))),
    )
    return Examination(whole, examination.plan, tuple(results))


def smoke_of(examination: Examination) -> Smoke:
    """The facts of the training; without any rank where there are none."""
    facts = examination.snapshot.smoke
    return Smoke() if isinstance(facts, Unknown) else facts


def own_findings(examination: Examination) -> list[JudgedFinding]:
    """The findings on the training itself, worst first."""
    return [finding for finding in examination.findings if _is_own_finding(finding)]


def host_findings(examination: Examination) -> list[JudgedFinding]:
    """The failures and warnings that `check` found on the host."""
    return [finding for finding in examination.findings if not _is_own_finding(finding) and finding[1] in (FAIL, WARN)]


def own_results(examination: Examination) -> Sequence[Result]:
    return [result for result in examination.results if _is_own(result.check) or is_of_report(result)]


def host_results(examination: Examination) -> Sequence[Result]:
    return [result for result in examination.results if not _is_own(result.check) and not is_of_report(result)]


def _is_own(check: Check) -> bool:
    return check.family == FAMILY or Subject.TRAINING_PLAN in check.judges


def _is_own_finding(found: JudgedFinding) -> bool:
    return _is_own(found[0]) or is_told_by_report(found[2])


def nothing_ran(facts: Smoke) -> bool:
    """Whether not one rank has ever reported."""
    return all(rank.ending is RankEnding.NEVER_CAME for rank in facts.ranks)


def has_passed(facts: Smoke) -> bool:
    """Whether every rank came to its end."""
    return bool(facts.ranks) and not facts.problem and all(rank.ending is RankEnding.FINISHED for rank in facts.ranks)


def has_only_scaling_failed(examination: Examination) -> bool:
    """Whether the training itself passed, and only what it measured of its speed failed."""
    failed = [check for check, severity, _ in own_findings(examination) if severity is FAIL]
    only_speed = bool(failed) and all(Subject.TRAINING_SPEED in check.judges for check in failed)
    return only_speed and has_passed(smoke_of(examination))


def needs_host_check(examination: Examination) -> bool:
    """Whether something was run and failed, or could not even be run: the host may say why."""
    return bool(smoke_of(examination).ranks) and verdict_of(examination) in (Verdict.FAIL, Verdict.UNKNOWN)


def verdict_of(examination: Examination) -> Verdict:
    """The verdict on the training: a rank that didn't finish has failed, whether or not a check knows why; what is wrong with the
    host beside that changes nothing."""
    facts = smoke_of(examination)
    severities = {severity for _, severity, _ in own_findings(examination)}
    if FAIL in severities:
        return Verdict.FAIL
    if nothing_ran(facts):
        return Verdict.UNKNOWN
    if facts.problem or any(rank.ending is not RankEnding.FINISHED for rank in facts.ranks):
        return Verdict.FAIL
    return Verdict.WARN if WARN in severities else Verdict.OK
