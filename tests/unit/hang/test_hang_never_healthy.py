"""Watches of healthy jobs of all speeds, thousands with `-m thorough`: a job that goes on is never a failure."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.hang import Hang
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.hang.judging import judge_hang
from tests.support.simulated_jobs import simulated_job

SECONDS = (1, 3, 3, 10, 30, 30, 60)


def judge(seeds: range) -> Counter[tuple[bool, Verdict]]:
    """How often each verdict came, by whether it was watched for long."""
    found: Counter[tuple[bool, Verdict]] = Counter()
    for seed in seeds:
        dice = Random(seed)
        job = simulated_job(dice)
        for _ in range(4):
            seconds = dice.choice(SECONDS)
            start = dice.uniform(0.5, max(1.0, job.end - seconds - 1))
            with pytest.MonkeyPatch.context() as monkeypatch:
                hang = job.watched(monkeypatch, start, seconds, dice)
            verdict = judged(hang, f"seed {seed}, {seconds} s from {start:.2f} s on")
            found[seconds >= 30, verdict] += 1
    return found


def judged(hang: Hang, of: str) -> Verdict:
    examination = judge_hang(Snapshot(host="node01"), hang, catalogue())
    said = [(check.slug, finding.summary, finding.evidence) for check, _, finding in examination.findings]
    assert examination.verdict is not Verdict.FAIL, f"{of}: {said}"
    return examination.verdict


def test_no_healthy_job_fails_in_two_hundred_watches() -> None:
    found = judge(range(50))
    assert found.total() == 200
    assert found[True, Verdict.OK] > found[True, Verdict.WARN]


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, 2500, 250))
def test_no_healthy_job_fails_in_ten_thousand_watches(first: int) -> None:
    found = judge(range(first, first + 250))
    assert found.total() == 1000
    assert found[True, Verdict.OK] > found[True, Verdict.WARN]
