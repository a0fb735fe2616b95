"""Waits over all groups where no recorder is on: made-up jobs that are played until they rest, and judged by their ranks' stacks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from ddpdoctor.base.findings import FAIL, WARN
from ddpdoctor.facts.hang import NOT_FOUND, Hang
from ddpdoctor.hang.certainty import severity_of
from ddpdoctor.hang.verdict import HangVerdict, verdict_of
from ddpdoctor.knowledge.hang_causes import HangCause
from tests.support.group_jobs import Job, some_job
from tests.support.group_stacks import SYNCHRONIZE, WATCHED_SECONDS, stacks_of
from tests.support.hangs import Stack, backward, collective, hang, own, rank
from tests.unit.hang.test_hang_waits import SAMPLE, all_sizes, sample_sizes

THOROUGH_JOBS = 5_000
"""Over each backend."""
AT_ONCE = 500
RANKS_OF_A_HOST = 8


def verdict_on(hang: Hang) -> HangVerdict:
    found = verdict_of(hang)
    assert found
    return found


def named_by(found: HangVerdict) -> tuple[int, ...]:
    return () if found.kind is HangCause.STALLED else found.ranks


def expected(job: Job, hang: Hang) -> tuple[int, ...]:
    """The faulty ranks of this host whose own stack and state tell. One in another branch, or whose GPU has failed, waits as all do;
    and over NCCL one that computes looks like one that asks its GPU again and again."""
    if job.branched or any(fault.kind == "error in a kernel" for fault in job.faults):
        return ()
    here = [rank for rank in hang.ranks if rank.rank in job.faulty]
    computes = job.backend == "nccl" and any(one.watched and one.watched.last.state == "R" for one in here)
    return () if computes else tuple(one.rank for one in here)


def wrongly_named(seeds: Iterable[int], backend: str, sizes: Callable[[int], tuple[int, int]]) -> list[object]:
    """By all ranks, as where all are on one host, and by those of one host of several."""
    wrong: list[object] = []
    for seed in seeds:
        chance = random.Random(seed)
        job = some_job(chance, backend=backend, sizes=sizes(seed))
        first = chance.randrange(0, job.world, RANKS_OF_A_HOST)
        host = range(first, min(job.world, first + RANKS_OF_A_HOST))
        for here in (range(job.world), host):
            hang = stacks_of(job, chance, here)
            found = verdict_on(hang)
            if named_by(found) != expected(job, hang):
                wrong.append((seed, job.faults, job.plan.layout.shape, here, found.kind, found.ranks))
    return wrong


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_whoever_is_named_is_faulty_and_all_are_named_whose_stack_tells(backend: str) -> None:
    assert wrongly_named(range(SAMPLE), backend, sample_sizes) == []


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("first", range(1_000, 1_000 + THOROUGH_JOBS, AT_ONCE))
def test_the_same_in_thousands_of_jobs(first: int, backend: str) -> None:
    assert wrongly_named(range(first, first + AT_ONCE), backend, all_sizes) == []


@pytest.mark.parametrize("stack", [own("main", 52), (SYNCHRONIZE, *own("main", 53)), backward()])
@pytest.mark.parametrize("gone", ["no such process", NOT_FOUND])
def test_a_rank_is_gone_and_the_others_ask_their_gpus_again_and_again(gone: str, stack: Stack) -> None:
    """They use a core each, as one does that computes: a warning, for they may end by themselves."""
    spinning = [rank(number, stack, state="R", waits_in="", cores=1.0) for number in (0, 1)]
    found = hang(*spinning, rank(2, gone=gone), backend="nccl", between=WATCHED_SECONDS)
    verdict = verdict_on(found)
    assert (verdict.kind, verdict.ranks) == (HangCause.CRASHED, (2,))
    assert severity_of(verdict, found) is WARN
    sure = hang(*spinning, rank(3, collective()), rank(2, gone=gone), backend="nccl", between=WATCHED_SECONDS)
    assert severity_of(verdict_on(sure), sure) is FAIL
