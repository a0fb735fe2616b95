"""What the benchmark of watch counts as an hour beside a healthy job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.bench_watch import HealthyJob, Lived, live
from tests.support.watched_jobs import end


@pytest.mark.parametrize(
    ("steps", "said", "ended", "counts"),
    [
        (40, "Watching job 7", "", True),
        (40, "Job 7 has not moved for 120 s: rank 1", "", True),
        (0, "", "", False),
        (40, "", "job (exit code 1)", False),
        (40, "Job 7 could not be looked at: ddpdoctor itself failed", "", False),
    ],
    ids=["silent", "an alarm", "no step", "ended", "not looked at"],
)
def test_what_counts(steps: int, said: str, ended: str, *, counts: bool) -> None:
    assert Lived("steps", 3600.0, steps, said, ended).counts is counts


def test_what_is_told_of_a_healthy_job() -> None:
    said = "Job 7: rank 0 holds the others up for 12 s\nJob 7 has not moved for 120 s: rank 1\nJob 7 could not be looked at: no"
    assert Lived("steps", 1800.0, 1234, said, "").row == ("steps", "0.5", "1,234", "1", "1", "1", "-")


def sleeping(seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds}); raise SystemExit(3)"])


@pytest.mark.parametrize(
    ("job", "watch", "ended"),
    [(60.0, 60.0, ""), (0.0, 60.0, "job (exit code 3)"), (60.0, 0.0, "watch (exit code 3)")],
    ids=["both live", "the job ends", "the watch ends"],
)
def test_one_that_ends_too_early_is_told(job: float, watch: float, ended: str, tmp_path: Path) -> None:
    (tmp_path / "watched").write_text("Watching job 7")
    (tmp_path / "steps").write_bytes((300).to_bytes(8, "little"))
    one = HealthyJob("steps", tmp_path, sleeping(job), sleeping(watch))
    try:
        if ended:
            (one.job if job == 0 else one.watching).wait()
        [lived] = live([one], 30.0 if ended else 0.2)
    finally:
        end(one.job)
        end(one.watching)
    assert (lived.ended, lived.steps, lived.said) == (ended, 300, "Watching job 7")
    assert lived.seconds < 1.0 if ended else lived.seconds >= 0.2
