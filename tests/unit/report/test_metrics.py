"""An examination as metrics: each check has one status, what was not tested is never fine, and a figure stands for one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Owner
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Check, Result, Skipped, SkipReason, diagnose
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.report.metrics import CHECK_STATUSES, check_status, metrics_text
from tests.support.registered_checks import find_check

UNSEEN = Skipped(SkipReason.UNKNOWN, "nobody knows")
CRASHED = Skipped(SkipReason.CRASHED, "ZeroDivisionError")
NOTHING = Skipped(SkipReason.NOT_APPLICABLE, "no GPU")


def judged(*findings: Finding, not_tested: Skipped | None = None, seconds: float = 0.25) -> Result:
    return Result(Check("made-up", FAIL, lambda: iter(()), owner=Owner.NODE), findings, not_tested, seconds)


def samples(*results: Result, verdict: Verdict = Verdict.OK) -> dict[str, dict[tuple[str, ...], float]]:
    """The values by name, then by labels in the order of their names."""
    text = metrics_text(Examination(Snapshot(host="n"), Plan(1, ""), results), verdict, ended=1.5e9, seconds=2.5)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.timestamp is None
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {})
            found[sample.name][labels] = sample.value
    return found


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (judged(), "ok"),
        (judged(not_tested=NOTHING), "skip"),
        (judged(not_tested=UNSEEN), "unknown"),
        (judged(not_tested=CRASHED), "crashed"),
        (judged(Finding("x")), "fail"),
        (judged(Finding("x", severity=WARN), Finding("y")), "fail"),
        (judged(Finding("x", severity=WARN), not_tested=UNSEEN), "warn"),
        (judged(Finding("x", severity=INFO)), "ok"),
        (judged(Finding("x", severity=INFO), not_tested=UNSEEN), "unknown"),
    ],
)
def test_a_check_has_one_status(result: Result, status: str) -> None:
    assert check_status(result) == status
    shown = samples(result)["ddpdoctor_check_status"]
    assert shown == {("made-up", known): float(known == status) for known in CHECK_STATUSES}


def test_findings_by_whose_they_are() -> None:
    result = judged(Finding("x"), Finding("y"), Finding("z", owner=Owner.USER, severity=WARN))
    findings = samples(result)["ddpdoctor_findings"]
    assert findings == {("made-up", "node", "fail"): 2, ("made-up", "user", "warn"): 1}


def test_the_run() -> None:
    told = samples(judged(), verdict=Verdict.UNKNOWN)
    assert told["ddpdoctor_verdict"] == {("ok",): 0, ("warn",): 0, ("fail",): 0, ("unknown",): 1}
    assert told["ddpdoctor_last_run_timestamp_seconds"] == {(): 1.5e9}
    assert told["ddpdoctor_last_run_duration_seconds"] == {(): 2.5}
    assert told["ddpdoctor_check_duration_seconds"] == {("made-up",): 0.25}
    assert "ddpdoctor_check_duration_seconds" not in samples(judged(not_tested=UNSEEN, seconds=0))


def test_diagnosing_takes_time() -> None:
    (result,) = diagnose(Snapshot(host="n"), Plan(1, ""), [find_check("shm-too-small")])
    assert 0 < result.seconds < 60


@pytest.mark.parametrize("variable", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
def test_nothing_is_written_into_a_folder_that_the_environment_names(variable: str, tmp_path: Path) -> None:
    script = (
        "from ddpdoctor.engine.examination import Examination, Verdict\n"
        "from ddpdoctor.facts.plan import Plan\n"
        "from ddpdoctor.facts.snapshot import Snapshot\n"
        "from ddpdoctor.report.metrics import metrics_text\n"
        "print(metrics_text(Examination(Snapshot(host='n'), Plan(1, ''), ()), Verdict.OK, 1.5e9, 2.5))\n"
    )
    environ = {**os.environ, variable: str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert "ddpdoctor_last_run_duration_seconds 2.5" in ended.stdout
    assert list(tmp_path.iterdir()) == []
