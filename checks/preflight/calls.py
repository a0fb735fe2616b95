"""What came of the collectives that a job's ranks tried together before training."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import capital, clip, ranks_named
from ddpdoctor.checks.preflight.ranks import MAX_SHOWN_RANKS, of_several
from ddpdoctor.engine.registry import Subject, check, leave_untested
from ddpdoctor.facts.preflight import GROUP, Preflight, PreflightRank, TriedCall
from ddpdoctor.knowledge.evidence import told


@check("preflight-collective-failed", severity=FAIL, owner=Owner.UNKNOWN, judges=(Subject.JOB_FROM_WITHIN,))
def preflight_collective_failed(preflight: Preflight) -> Iterator[Finding]:
    """Collectives of a job's ranks fail before its training has begun.

    ## What breaks
    Training fails or hangs at its first collective. Over NCCL the ranks take other ways than over gloo, but meet through the same hosts and,
    without InfiniBand, the same interfaces.

    ## Why
    A rank was stopped or ended in between; or the ranks reach the store and not each other: a packet filter, an interface or address that the
    others can't dial (GLOO_SOCKET_IFNAME), or large packets that are lost on the way (MTU), where small calls pass and 1 MiB does not.

    ## Fix
    Let `ddpdoctor netcheck` try every connection between the nodes. See with `ddpdoctor jobs --hang` where a rank that says nothing stands.
    """
    of_several(preflight)
    if preflight.untried:
        leave_untested(f"no collectives were tried: {preflight.untried}")
    failed = [tried for tried in preflight.calls if not tried.ok]
    if not failed and not preflight.silent:
        if any("nccl" in rank.backend for rank in preflight.ranks):
            leave_untested("the ranks called each other over gloo alone: NCCL was not tried")
        return
    ranks = {rank.rank: rank for rank in preflight.ranks}
    own = [tried for tried in failed if not tried.waited]
    if preflight.silent:
        first = ranks.get(preflight.silent[0])
        summary = f"{capital(ranks_named(preflight.silent))} began the collectives over gloo, and said nothing any more"
        culprit: int | None = preflight.silent[0] if len(preflight.silent) == 1 else None
    elif own:
        first = ranks.get(own[0].rank)
        summary = (
            f"{capital(ranks_named(tried.rank for tried in own))}: {_doing(own[0])} over gloo fails: {own[0].words}"
        )
        culprit = own[0].rank if len(own) == 1 else None
    else:
        first, culprit = None, None
        where = min(failed, key=lambda tried: tried.seconds)
        who = "all ranks wait" if len(failed) == len(ranks) else f"{ranks_named(tried.rank for tried in failed)} wait"
        summary = f"{capital(_doing(where))} over gloo doesn't end: {who}, and none has an error of its own"
    yield Finding.of(
        clip(summary),
        _words(preflight, ranks),
        _where_it_stands(first),
        Fix("Once the job has ended, try every connection between the nodes, on each of them", ("ddpdoctor netcheck",)),
        rank=culprit,
    )


def _doing(tried: TriedCall) -> str:
    return "the making of a group" if tried.call == GROUP else f"the {tried.call}"


def _words(preflight: Preflight, ranks: dict[int, PreflightRank]) -> tuple[Evidence, ...]:
    """What came of each rank's calls, those that failed first."""
    ordered = sorted(preflight.calls, key=lambda tried: tried.ok)[:MAX_SHOWN_RANKS]
    hosts = {rank.rank: f" on {rank.host}" for rank in ranks.values()}
    return tuple(
        told(
            preflight,
            "calls",
            f"rank {tried.rank}{hosts.get(tried.rank, '')}: "
            + (
                f"all well after {tried.seconds:.1f} s"
                if tried.ok
                else f"{tried.call}, after {tried.seconds:.1f} s: {tried.words}"
            ),
        )
        for tried in ordered
    )


def _where_it_stands(rank: PreflightRank | None) -> Fix | None:
    if rank is None:
        return None
    return Fix(f"On {rank.host}, see where it stands", (f"ddpdoctor jobs --hang {rank.pid}",))
