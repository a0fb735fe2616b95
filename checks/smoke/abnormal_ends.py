"""Ends of a smoke training's ranks: one failed, one hangs, all wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGKILL

import msgspec

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import clip, listed, without_capital
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.checks.smoke.fixes import halted, killed_by, look_at, way_between
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.smoke import LAST, RankEnding, Smoke
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.smoke_training.analysis.failure_attribution import (
    NO_SMOKE,
    TrainingFailure,
    TrainingFailureKind,
    attribute_failure,
    gpu_number,
    has_ended_early,
    is_at_the_end,
    ranks_not_started,
)
from ddpdoctor.smoke_training.analysis.failure_wording import (
    describe_ending,
    describe_others,
    describe_place,
    evidence_of_failure,
    name_ranks,
    words_of,
)
from ddpdoctor.smoke_training.analysis.rank_position import is_waiting, stage_of

ONLY_ITS_END = "the training was over: see smoke-shutdown"


def require_started(smoke: Smoke) -> None:
    """Leave the check untested where no training was run, or its ranks could not be started."""
    requires(smoke.ranks or smoke.problem, NO_SMOKE)
    requires(smoke.ranks and not ranks_not_started(smoke), "ranks could not be started: see smoke-not-started")


def failure_of(smoke: Smoke, *kinds: TrainingFailureKind) -> TrainingFailure | None:
    """The failure of a training, for a check that speaks of those kinds; None where it was finished.

    Leaves the check untested where there was no training, or it ended for another reason, so that nothing is known of these.
    """
    require_started(smoke)
    requires(not has_ended_early(smoke), "what had started the ranks ended: see smoke-ended-early")
    found = attribute_failure(smoke.ranks)
    requires(found is None or found.kind in kinds, "the smoke training ended early for another reason")
    return found


@check("smoke-rank-failed", severity=FAIL, owner=Owner.UNKNOWN)
def smoke_rank_failed(smoke: Smoke, meeting: Maybe[Meeting]) -> Iterator[Finding]:
    """A rank of the smoke training fails by itself.

    ## What breaks
    Your own training would fail at the same place: the smoke training does nothing but what every DDP job does. The other
    ranks only lose the connection ("Connection closed by peer") or wait until their time is up, and often it is their
    messages that a log shows last.

    ## Why
    The stage and the rank's own words tell. An exception in `import` or `device` belongs to the installation or the GPU, one
    in `rendezvous` or `process group` to the network and the settings. A rank that is killed without a word mostly ran out
    of memory.

    ## Fix
    Mend what the first rank's own words say, and leave the words of the others aside. `ddpdoctor check` on the same host
    looks for the cause; then run `ddpdoctor smoke` again.
    """
    found = failure_of(smoke, TrainingFailureKind.FAILED)
    if found is None:
        return
    requires(not is_at_the_end(found), ONLY_ITS_END)
    first = found.first
    why, fixes = _of_failure(found, smoke, meeting)
    yield Finding(
        summary=f"{name_ranks(found.culprits, smoke)} {_how_it_failed(found)}",
        cause=" ".join(filter(None, (why, describe_others(found, smoke)))),
        evidence=evidence_of_failure(found, smoke),
        fixes=fixes,
        rank=first.rank,
        said=words_of(found.culprits),
    )


def _how_it_failed(found: TrainingFailure) -> str:
    """Its end in words; of several ranks in the plural."""
    first = found.first
    if first.ending is RankEnding.ENDED:
        return f"ended in {describe_place(first)} without a word"
    return describe_ending(first, several=len(found.culprits) > 1)


def _of_failure(found: TrainingFailure, smoke: Smoke, meeting: Maybe[Meeting]) -> tuple[str, tuple[Fix, ...]]:
    first = found.first
    look = look_at(stage_of(first), first, smoke)
    if first.ending is RankEnding.KILLED:
        return killed_by(first, smoke)
    if first.ending is RankEnding.EXITED:
        why = "Something in that process called exit: a library, sitecustomize.py, or a crash handler; its last line may say more."
        return why, (look,)
    if not found.alone:
        why = (
            "It is the first that lost another rank, and no rank failed by itself: the connection between them was cut."
        )
        return why, (*way_between(smoke, meeting), look)
    if first.ending is RankEnding.RAISED:
        return "", (look,)
    as_killed = msgspec.structs.replace(first, exit_code=-SIGKILL)
    return "It went away before the others noticed; how it ended isn't known.", killed_by(as_killed, smoke)[1]


@check("smoke-hang", severity=FAIL, owner=Owner.UNKNOWN)
def smoke_hang(smoke: Smoke, meeting: Maybe[Meeting]) -> Iterator[Finding]:
    """The smoke training hangs: the ranks wait for one of them, or for each other.

    ## What breaks
    Training stands still, with all GPUs at 100 % or all at 0, until torch's own limit has passed: 10 minutes with NCCL, 30
    with gloo. Then every rank names the collective in which it waited, and none the rank that it waited for.

    ## Why
    A collective ends when all ranks have called it. Either one doesn't call it: it is stopped, sits in a disk, a driver or a
    lock, or died unseen. Or all have called the same one, and their data doesn't get through: mostly the way between the GPUs
    or the hosts is broken.

    ## Fix
    Where a rank is named, its stack says what it does in place of the collective. Where all wait in the same one, test the
    way between them: `ddpdoctor netcheck` between hosts, `NCCL_P2P_DISABLE=1` between GPUs.
    """
    found = failure_of(smoke, TrainingFailureKind.HUNG, TrainingFailureKind.TOGETHER)
    if found is None:
        return
    requires(not is_at_the_end(found), ONLY_ITS_END)
    tell = _together if found.kind is TrainingFailureKind.TOGETHER else _waited_for
    yield tell(found, smoke, meeting)


def _waited_for(found: TrainingFailure, smoke: Smoke, meeting: Maybe[Meeting]) -> Finding:
    first = found.first
    others = describe_others(found, smoke)
    why, fixes = halted(first, smoke)
    stage = stage_of(first)
    if first.ending is RankEnding.NEVER_CAME:
        why = "Its process was never started, or hangs before its first line: the others wait until their time is up."
    elif found.left_behind and found.others:
        why = f"It waits, too, but in {describe_place(first)}, which the others have left: what they sent didn't reach it."
        fixes = way_between(smoke, meeting)
    elif not why and first.stack:
        waited_for = ", and doesn't come to what the others wait in" if any(map(is_waiting, found.others)) else ""
        why = f"It is in {first.stack[0]}{waited_for}."
    summary = f"{name_ranks(found.culprits, smoke)} {_what_it_does(found)}"
    if others:
        summary += f"; {without_capital(others).rstrip('.')}"
    return Finding(
        summary=summary,
        cause=" ".join(filter(None, (why, others if clip(summary) != summary else ""))),
        evidence=(*evidence_of_failure(found, smoke), _deadline(smoke, stage)),
        fixes=(*fixes, look_at(stage, first, smoke)),
        rank=first.rank,
        said=words_of(found.culprits),
    )


def _what_it_does(found: TrainingFailure) -> str:
    first, several = found.first, len(found.culprits) > 1
    if first.ending is RankEnding.NEVER_CAME:
        return f"{'were' if several else 'was'} never heard of"
    if found.left_behind and found.others:
        return f"still wait{'' if several else 's'} in {describe_place(first)}"
    if first.process_state:
        return f"{'are' if several else 'is'} {first.process_state} in {describe_place(first)}"
    return f"hang{'' if several else 's'} in {describe_place(first)}"


def _together(found: TrainingFailure, smoke: Smoke, meeting: Maybe[Meeting]) -> Finding:
    first = found.first
    who = name_ranks(found.culprits, smoke)
    if len(found.culprits) == smoke.world_size:
        who = "both ranks" if smoke.world_size == 2 else f"all {smoke.world_size} ranks"
    hosts = list(dict.fromkeys(culprit.host for culprit in found.culprits))
    between = f"between {listed(hosts, most=4)}" if smoke.nnodes > 1 else "between the ranks"
    return Finding(
        summary=f"{who} hang in {describe_place(first)} over {smoke.backend}, and none is behind the others",
        cause=_why_together(found, between),
        evidence=(*evidence_of_failure(found, smoke), _deadline(smoke, found.stage)),
        fixes=(*way_between(smoke, meeting), look_at(found.stage, first, smoke)),
        said=words_of(found.culprits),
    )


def _why_together(found: TrainingFailure, between: str) -> str:
    """No more than is known: with NCCL a GPU may hang where no rank's stack shows it."""
    lost = f"what they send doesn't get through {between}"
    if all(is_waiting(culprit) for culprit in found.culprits):
        gpus = ", or one of their GPUs stands still" if gpu_number(found.first) >= 0 else ""
        return f"All have come to the same place and wait there, and nothing tells them apart. Mostly {lost}{gpus}."
    return (
        "Nothing tells them apart, and not of all it is known that they wait for others."
        f" Either {lost}, or they hang in something of their own: their stacks say in what."
    )


def _deadline(smoke: Smoke, stage: str) -> Evidence:
    seconds = smoke.seconds_for(stage)
    if seconds != smoke.deadline:
        return told(smoke, "import_seconds", f"the stage {stage} may take {seconds:g} s")
    return told(smoke, "deadline", f"a stage may take {seconds:g} s")


@check("smoke-shutdown", severity=FAIL, owner=Owner.UNKNOWN)
def smoke_shutdown(smoke: Smoke) -> Iterator[Finding]:
    """The smoke training is over, and its processes don't end, or not cleanly.

    ## What breaks
    A job that has done all its work is still there, holds its GPUs and its port, or is told to have failed: torchrun then
    ends with an error, and a scheduler starts it again.

    ## Why
    Something lives on after `destroy_process_group()` and wants to use the group: a DDP model, a collective that wasn't
    waited for, a thread of a library. With gloo that is a deadlock, with NCCL often a crash.

    ## Fix
    At the end of the training: delete the DDP model and the optimizer, `torch.distributed.barrier()`, then
    `torch.distributed.destroy_process_group()`. See which library leaves threads behind.
    """
    found = failure_of(smoke, TrainingFailureKind.FAILED, TrainingFailureKind.HUNG, TrainingFailureKind.TOGETHER)
    if found is None:
        return
    requires(is_at_the_end(found), "the training wasn't over")
    first, several = found.first, len(found.culprits) > 1
    if found.kind is TrainingFailureKind.FAILED:
        what = _how_it_failed(found)
    else:
        what = f"{'have' if several else 'has'} finished training and hang{'' if several else 's'} in {describe_place(first)}"
    yield Finding(
        summary=f"{name_ranks(found.culprits, smoke)} {what}",
        evidence=(*evidence_of_failure(found, smoke), _deadline(smoke, LAST)),
        fixes=(
            Fix(
                "In your own training, before its end: delete the DDP model and the optimizer, call"
                " torch.distributed.barrier(), then torch.distributed.destroy_process_group()"
            ),
            look_at(LAST, first, smoke),
        ),
        rank=first.rank,
        said=words_of(found.culprits),
    )
