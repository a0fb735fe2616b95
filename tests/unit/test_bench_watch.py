"""What the benchmark of watch counts as an hour beside a healthy job."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.facts.processes import Process
from ddpdoctor.hang.permission import Missed, hidden_stacks, powers
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import PySpyTrouble
from ddpdoctor.watching.session import put_off_words
from tests.benchmarks import bench_watch
from tests.benchmarks.bench_watch import HealthyJob, Lived, live
from tests.support.watched_jobs import EVERYBODY, FAULTS, Played, end

SLOW = Missed(rank=0, process=Process(pid=4000, start=1, parent=1), trouble=PySpyTrouble.SLOW)
[STACKS_NOT_READ] = hidden_stacks([SLOW], powers(Proc()), "7")


@pytest.mark.parametrize(
    ("steps", "said", "ended", "counts"),
    [
        (40, "Watching job 7", "", True),
        (40, "Job 7 has not moved for 120 s: rank 1", "", True),
        (0, "", "", False),
        (40, "", "job (exit code 1)", False),
        (40, "Job 7 could not be looked at: ddpdoctor itself failed", "", False),
        (40, put_off_words(61_234), "", False),
        (40, STACKS_NOT_READ, "", False),
    ],
    ids=["silent", "an alarm", "no step", "ended", "not looked at", "its turn comes later", "stacks not read"],
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


NAMED = Played("sleep", 12.0, 14.0, "rank 1 stands in fault_of_one", "1")


@pytest.mark.parametrize(
    ("played", "code", "told"),
    [
        ([NAMED], 0, "1 of 1 named, 1 in time (12 to 54 s after the fault)"),
        ([NAMED, NAMED._replace(name=EVERYBODY)], 1, "1 of 2 named, 2 in time"),
        ([NAMED, NAMED._replace(after=60.0)], 1, "2 of 2 named, 1 in time"),
        ([NAMED, NAMED._replace(after=11.0)], 1, "2 of 2 named, 1 in time"),
        ([NAMED, Played("sleep", 12.0, math.nan, "", "")], 1, "1 of 2 named, 1 in time"),
    ],
    ids=["well", "not named", "late", "early", "no alarm"],
)
def test_faults_are_well_only_if_all_are_named_in_time(
    played: list[Played], code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(played)
    monkeypatch.setattr(bench_watch, "play", lambda *_: next(left))
    line = ["bench_watch", "faults", *(word for fault in played for word in ("--only", fault.name))]
    monkeypatch.setattr(sys, "argv", line)
    assert bench_watch.main() == code
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(("what", "name"), [("faults", "snores"), ("healthy", "sleep"), ("cost", "sleep")])
def test_a_name_that_is_none_is_refused(
    what: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "sleep" in FAULTS
    monkeypatch.setattr(sys, "argv", ["bench_watch", what, "--only", name])
    with pytest.raises(SystemExit) as ended:
        bench_watch.main()
    assert ended.value.code == 2
    assert f"--only: {what} has no {name}; it has " in capsys.readouterr().err
