"""Which of several failures came first, as far as a log can tell, and which has most to say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.logs.analyze.endings import is_same_host
from ddpdoctor.logs.analyze.failures import Failure, FailureKind, is_of
from ddpdoctor.logs.analyze.illness_traits import is_about_others, is_certain, is_grave
from ddpdoctor.logs.analyze.rules import LogRule
from ddpdoctor.logs.analyze.survival import got_over
from ddpdoctor.logs.analyze.timeline import Timeline

MERE_HINT: Final = 9
"""The weight of a hint at what would not even end a training."""
MAX_LEADING_WEIGHT: Final = 5
"""Failures of that weight and less lead if they came first."""
ANY_EXCEPTION: Final = 1
"""The code with which Python ends on whatever exception, those that a lost rank leads to among them."""


def _says_less(failure: Failure, course: Timeline) -> bool:
    """Whether it is a launcher's mere word that a rank ended, of which there is no other word, as on whatever exception, beside one that the same
    launcher saw end first, and that says why; or beside another rank that raised something before: mostly all raise the same, and the log has
    it of one. Or whether it is the name alone of an exception whose words stand in a traceback that is mixed with its own."""
    if failure.raised and not (failure.raised.message or failure.signs):
        same = (other for other in course.own if other.raised and other.raised.exception == failure.raised.exception)
        return any(other.signs and _are_mixed(other, failure) for other in same)
    exited = failure.exited
    if exited is None or exited.error or failure.signs or exited.exit_code != ANY_EXCEPTION:
        return False
    if exited.first:
        return any(
            other.raised and other.line.file == exited.line.file and other.over.number < exited.line.number
            for other in course.own
            if other.is_ordinary and not (course.outlived(other) or got_over(other, course))
        )
    first = [
        process_exit
        for process_exit in course.first
        if process_exit.line.file == exited.line.file and is_same_host(process_exit.host, exited.host)
    ]
    spoke = [follower for follower in course.own if not (course.outlived(follower) or got_over(follower, course))]
    return any(is_of(follower.line, process_exit) for follower in spoke for process_exit in first)


def _is_said(failure: Failure) -> bool:
    return failure.kind is FailureKind.SAID


def _is_over(failure: Failure, course: Timeline) -> bool:
    return got_over(failure, course) or (failure.kind is FailureKind.RAISED and course.outlived(failure))


def _is_mild(failure: Failure, course: Timeline) -> bool:
    """Whether its words are of nothing that ends a training."""
    return _is_said(failure) and not any(is_grave(course.catalogue, sign.slug, sign.sign) for sign in failure.signs)


def _is_mere_hint(failure: Failure, course: Timeline) -> bool:
    """Whether its words only fit what would not even end a training."""
    certain = any(is_certain(course.catalogue, sign.slug, sign.sign) for sign in failure.signs)
    return _is_mild(failure, course) and not failure.names and not certain


def _is_of_others(failure: Failure, course: Timeline) -> bool:
    """Whether it names what lies between ranks."""
    return bool(failure.names) and all(is_about_others(course.catalogue, name.slug) for name in failure.names)


WEIGHTS: Final = (
    LogRule("told-to-end", "stopped-from-outside/sick-ctrl-c.log", lambda failure, course: failure.is_from_outside, 5),
    LogRule("over", "oom-batch-too-large/sick-own-rank-label-after-skipped-sample.log", _is_over, 7),
    LogRule("says-less", "cuda-illegal-access/sick-other-rank-silent.log", _says_less, 7),
    LogRule("ordinary", "rdzv-store-host-exited/near-miss-rank-0-bug.log", lambda failure, course: failure.is_ordinary, 1),
    LogRule("mere-hint", "nccl-watchdog-timeout/sick-bus-error-before-it.log", _is_mere_hint, MERE_HINT),
    LogRule("mild", "ib-link-error/sick-port-error.log", _is_mild, 8),
    LogRule("outlived", "ckpt-arch-mismatch/sick-megatron-parts-missing.log", lambda failure, course: _is_said(failure) and (not failure.names or course.outlived(failure)), 7),
    LogRule("said-of-others", "user-code-error/sick-behind-a-doubled-rank.log", lambda failure, course: _is_said(failure) and _is_of_others(failure, course), 2),
    LogRule("said", "container-network-isolated/sick-docker.log", lambda failure, course: _is_said(failure), 1),
    LogRule("named-of-others", "container-network-isolated/near-miss-docker0.log", _is_of_others, 3),
    LogRule("named", "batchnorm-batch-of-one/sick-srun-torchrun.log", lambda failure, course: failure.names, 0),
    LogRule("ended", "collective-desync/sick-gather-tee.log", lambda failure, course: failure.exited, 1),
    LogRule("hints", "cuda-illegal-access/sick-interrupted-behind-it.log", lambda failure, course: failure.signs, 4),
)  # fmt: skip
"""How much a failure has to say of the cause, by the first that applies: the less the better. What only may be a cause comes behind what surely
ended a rank."""
WITHOUT_SIGNS: Final = 6


def weight(failure: Failure, course: Timeline) -> int:
    """Weigh how much a failure has to say of the cause."""
    return next((rule.score for rule in WEIGHTS if rule(failure, course)), WITHOUT_SIGNS)


def _are_mixed(one: Failure, other: Failure) -> bool:
    """Whether each began before the other was over, so that the order of their lines says nothing."""
    same = one.line.file == other.line.file
    return same and one.began.number <= other.over.number and other.began.number <= one.over.number


def lead_of(failures: Sequence[Failure], course: Timeline) -> Failure | None:
    """Pick the failure that leads; failures: without mere effects."""
    ended = {id(failure) for failure in failures if course.ended_first(failure)}
    # What a rank itself says tells more than its launcher's word on its end.
    ordered = sorted(
        failures,
        key=lambda failure: (
            weight(failure, course),
            not (failure.exited and id(failure) in ended) or failure.explained,
            failure.line.order,
        ),
    )
    if not ordered:
        return None
    best = ordered[0]
    if id(best) not in ended:
        mixed = (candidate for candidate in ordered if id(candidate) in ended and _are_mixed(candidate, best))
        best = next((candidate for candidate in mixed if weight(candidate, course) == weight(best, course)), best)
    for candidate in ordered[1:]:
        # Words by themselves may be a warning; an exception that names its cause is not behind it.
        may_lead = weight(candidate, course) <= MAX_LEADING_WEIGHT and (
            candidate.kind is not FailureKind.SAID or weight(best, course) > 0
        )
        if may_lead and course.clearly_before(candidate, best):
            best = candidate
    return best
