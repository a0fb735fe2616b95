"""Whether the ranks of a smoke training did the same, and came to the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.base.text import listed, ranks_named
from ddpdoctor.base.unknown import Maybe, known
from ddpdoctor.checks.hang.calls import different_calls
from ddpdoctor.checks.hang.hang_check import findings_of
from ddpdoctor.checks.smoke.abnormal_ends import failure_of
from ddpdoctor.checks.smoke.fixes import check_host, look_at, on_one_host, smoke_command, way_between
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.smoke import LAST, RankEnding, Smoke, StageState
from ddpdoctor.facts.snapshot import Hang, Meeting
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.smoke_training.analysis.failure_attribution import TrainingFailure, TrainingFailureKind
from ddpdoctor.smoke_training.analysis.failure_wording import describe_others, evidence_of_failure, name_ranks, words_of

WITHOUT_RESULTS = ("import", "device", "rendezvous", "process group", "barrier", LAST)
"""Stages in which nothing is computed."""


@check("collective-desync", severity=FAIL, owner=Owner.UNKNOWN, stands_for=(HangCause.DESYNC,))
def collective_desync(smoke: Smoke, hang: Maybe[Hang]) -> Iterator[Finding]:
    """The ranks call different collectives, or the same one with different shapes.

    ## What breaks
    NCCL hangs until the watchdog ends the job. gloo hangs, fails with "Connection closed by peer", or carries on with wrong
    sums. The message names the collective that a rank waited in, not the rank that called another one.

    ## Why
    Collectives have no names on the wire: the third call of one rank meets the third call of the others. One `if rank == 0:`
    around a collective, a loop with one batch less, or other code or another release on one host is enough.

    ## Fix
    Every rank must call the same collectives in the same order, with the same type and shape. In your own training
    `TORCH_DISTRIBUTED_DEBUG=DETAIL` has torch compare every call and name the rank; over gloo, DDP() of torch 2.13 crashes
    under it (SIGSEGV). Several hosts need the same code, torch and settings.
    """
    if isinstance(hang, Hang) and hang.asked:
        yield from findings_of(hang, HangCause.DESYNC, different_calls)
        return
    known(hang)
    found = failure_of(smoke, TrainingFailureKind.DIFFERENT_CALLS)
    if found is None:
        requires(any(rank.called for rank in smoke.ranks), "no collective was run")
        return
    first = found.first
    yield Finding.of(
        _who_calls_what(found, smoke),
        (told(smoke, "ranks", f"{ranks_named(members)}: {call}") for call, members in found.calls[:4]),
        evidence_of_failure(found, smoke),
        _the_same_everywhere(found, smoke),
        Fix(
            "Where your own training does the same over NCCL, let torch compare every call and name the rank (over gloo, "
            "DDP() of torch 2.13 crashes under this)",
            ("export TORCH_DISTRIBUTED_DEBUG=DETAIL",),
        ),
        look_at(found.stage, first, smoke),
        cause=f"In the stage {found.stage} all ranks are to call the same. {describe_others(found, smoke)}".strip(),
        rank=first.rank,
    )


def _who_calls_what(found: TrainingFailure, smoke: Smoke) -> str:
    (most, majority), *rest = found.calls
    if any(rank == culprit.rank for culprit in found.culprits for rank in majority):
        calls = listed((f"{ranks_named(members)} {call}" for call, members in found.calls), most=3)
        return f"{name_ranks(found.culprits, smoke)} differ in {found.stage}: {calls}"
    s = "s" if len(found.culprits) == 1 else ""
    calls = listed((call for call, _ in rest), most=2)
    return f"{name_ranks(found.culprits, smoke)} call{s} {calls} in {found.stage}, where {ranks_named(majority)} call {most}"


def _the_same_everywhere(found: TrainingFailure, smoke: Smoke) -> tuple[Fix, ...]:
    if smoke.nnodes == 1:
        return ()
    hosts = list(dict.fromkeys(culprit.host for culprit in found.culprits))
    return (
        Fix(
            f"Compare torch and ddpdoctor on {listed(hosts, most=3)} with the other hosts",
            ("ddpdoctor --version", f"{shlex.quote(smoke.python or 'python')} -m pip list"),
        ),
    )


@check("smoke-wrong-result", severity=FAIL, owner=Owner.NODE)
def smoke_wrong_result(smoke: Smoke, meeting: Maybe[Meeting]) -> Iterator[Finding]:
    """The smoke training comes to a wrong result.

    ## What breaks
    Training runs and learns something else: sums of gradients are wrong, ranks drift apart, data is seen twice or never. No
    error says so.

    ## Why
    Data is spoilt on its way between GPUs (peer-to-peer copies behind an IOMMU or ACS), a GPU or memory is faulty, or the
    ranks don't do the same: another seed, another sampler, another release.

    ## Fix
    Where a rank is named, look at its GPU and host first. Between GPUs of one host `NCCL_P2P_DISABLE=1` takes another way: if
    the result is right then, it is the peer-to-peer copies.
    """
    found = failure_of(smoke, TrainingFailureKind.WRONG)
    if found is None:
        requires(
            any(
                stage.state is StageState.PASSED and stage.name not in WITHOUT_RESULTS
                for run in smoke.ranks
                for stage in run.stages
            ),
            "no stage with a result was run",
        )
        return
    noticed = [rank for rank in smoke.ranks if rank.ending is RankEnding.WRONG]
    words = noticed[0].words
    who = name_ranks(found.culprits, smoke)
    if found.accused:
        summary = f"wrong result in {found.stage}, caused by {who}: {words}"
        cause = f"That is the word of {name_ranks(noticed, smoke)}."
    else:
        summary = f"{who} found a wrong result in {found.stage}: {words}"
        everywhere = "It is wrong on all ranks, so that it doesn't say which of them has caused it."
        elsewhere = "On the others it is right, or they had not got so far."
        cause = everywhere if len(found.culprits) == smoke.world_size else elsewhere
    has_other_ways = smoke.world_size > 1 and (smoke.backend == "nccl" or smoke.nnodes > 1)
    yield Finding(
        summary=summary,
        cause=cause,
        evidence=evidence_of_failure(found, smoke),
        # Over gloo on one host there is no other way.
        fixes=(*_same_again(smoke), *(way_between(smoke, meeting)[:1] if has_other_ways else ()), _look(found, smoke)),
        rank=found.first.rank if len(found.culprits) == 1 else None,
        said=words_of(noticed),
    )


def _same_again(smoke: Smoke) -> tuple[Fix, ...]:
    if not on_one_host(smoke):
        return ()
    text = (
        "Run it again: a faulty GPU or memory is wrong at another place, or now and then; software always in the same"
    )
    return (Fix(text, (smoke_command(smoke),)),)


def _look(found: TrainingFailure, smoke: Smoke) -> Fix:
    families = ("gpu", "torch", "settings") if smoke.backend == "nccl" else ("torch", "settings")
    host = found.first.host if smoke.nnodes > 1 else "this host"
    return check_host(f"See what is known to be wrong with {host}", families, found.first, smoke)
