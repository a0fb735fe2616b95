"""`ddpdoctor jobs` on real jobs: healthy, stopped, killed, orphaned, side by side, in another namespace, on GPUs of a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.facts.gpus import GpuHolder
from tests.support.command import ddpdoctor
from tests.support.nvml import FakeNvidia, holding
from tests.support.report_schema import check_against_schema
from tests.support.running_jobs import RunningJob, by_hand, launched, started_by_itself, state, torchrun, wait_until

GIB = 1 << 30


def told(*arguments: object, environ: dict[str, str] | None = None) -> dict[str, Any]:
    """What `jobs --json` says."""
    done = ddpdoctor("jobs", "--json", *map(str, arguments), environ=environ)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    check_against_schema(report)
    assert done.returncode == (1 if report["verdict"] == "fail" else 0)
    return report


def job_in(report: dict[str, Any], job: RunningJob) -> dict[str, Any]:
    """That one of the jobs that are told of."""
    pid = job.pid(0)
    (found,) = [job for job in report["jobs"] if pid in pids(job)]
    return dict(found)


def pids(one: dict[str, Any]) -> list[int]:
    return [rank["process"]["pid"] for rank in one["ranks"]]


def remarks(report: dict[str, Any]) -> dict[str, list[int]]:
    """What stands out in the only job that is told of, to its ranks."""
    (one,) = report["jobs"]
    return {remark["remark"]: remark["ranks"] for remark in one["remarks"]}


def findings(report: dict[str, Any]) -> dict[str, str]:
    return {finding["slug"]: finding["severity"] for finding in report["findings"]}


def test_torchrun_s_job_healthy_then_stopped_then_orphaned(tmp_path: Path) -> None:
    with torchrun(tmp_path) as job:
        job.wait_until_training(0, 1)
        ranks = [job.pid(0), job.pid(1)]
        healthy = told(ranks[1])
        (one,) = healthy["jobs"]
        assert [launcher["pid"] for launcher in one["launchers"]] == [job.process.pid]
        assert [(rank["rank"], rank["source"], rank["process"]["pid"]) for rank in one["ranks"]] == [
            (0, "RANK", ranks[0]),
            (1, "RANK", ranks[1]),
        ]
        assert not remarks(healthy)
        assert "rank-not-running" in healthy["passed"]

        os.kill(ranks[1], signal.SIGSTOP)
        wait_until(lambda: state(ranks[1]) == "T")
        stopped = told(job.process.pid)
        assert remarks(stopped) == {"stopped": [1]}
        assert findings(stopped)["rank-not-running"] == "fail"
        (fix,) = [finding["fixes"] for finding in stopped["findings"] if finding["slug"] == "rank-not-running"]
        subprocess.run(fix[0]["commands"][0], shell=True, check=True)
        step = job.step(1)
        wait_until(lambda: job.step(1) > step + 1)
        assert not remarks(told(ranks[0]))

        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait()
        orphaned = told(ranks[0])
        assert remarks(orphaned) == {"orphaned": [0, 1]}
        assert "orphaned-rank" in findings(orphaned)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_script_that_starts_its_own_ranks(tmp_path: Path, method: str) -> None:
    with started_by_itself(tmp_path, method=method) as job:
        job.wait_until_training(0, 1)
        report = told(job.process.pid)
        (one,) = report["jobs"]
        assert sorted(pids(one)) == sorted([job.pid(0), job.pid(1)])
        assert not remarks(report)


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    with launched(tmp_path, 3) as job:
        lost = job.pid(2)
        os.kill(lost, signal.SIGKILL)
        # Its launcher waits for rank 0.
        wait_until(lambda: state(lost) == "Z")
        report = told(job.pid(0))
        assert remarks(report) == {"dead": [2]}
        assert findings(report)["rank-not-running"] == "warn"


@pytest.mark.thorough
def test_a_rank_that_is_missing(tmp_path: Path) -> None:
    with by_hand(tmp_path, 2, real=False, world_size=3) as job:
        job.pid(1)
        # Only after some seconds it is clear that the third isn't about to be started.
        wait_until(lambda: bool(remarks(told(job.pid(0)))))
        report = told(job.pid(0))
        assert remarks(report) == {"missing": [2]}
        assert findings(report)["rank-not-running"] == "warn"


def test_two_jobs_side_by_side(tmp_path: Path) -> None:
    with launched(tmp_path) as one, launched(tmp_path, 3) as two:
        both = told()
        assert job_in(both, one)["name"] == str(one.process.pid)
        assert len(job_in(both, two)["ranks"]) == 3
        (alone,) = told(two.pid(2))["jobs"]
        assert alone["name"] == str(two.process.pid)
        done = ddpdoctor("jobs", "1")
        assert done.returncode == 2
        for each in (one, two):
            assert f"{each.process.pid} (" in done.stderr


def test_the_table(tmp_path: Path) -> None:
    with launched(tmp_path) as job:
        done = ddpdoctor("jobs", str(job.process.pid), environ={"COLUMNS": "80"})
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        for rank in (0, 1):
            (row,) = [line for line in lines if line[:2] == [str(rank), str(job.pid(rank))]]
            assert "sleeping" in row
        assert "\x1b" not in done.stdout


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_a_job_in_a_pid_namespace_of_its_own(tmp_path: Path) -> None:
    with launched(tmp_path, prefix=["unshare", "--pid", "--fork", "--mount-proc"]) as job:
        inside = job.pid(1)
        # What it calls itself is its pid in there.
        outside = [pid for pid in job.pids() if f"NSpid:\t{pid}\t{inside}\n" in Path(f"/proc/{pid}/status").read_text()]
        (one,) = told(outside[0])["jobs"]
        (rank,) = [rank["process"] for rank in one["ranks"] if rank["rank"] == 1]
        assert (rank["pid"], rank["pid_inside"]) == (outside[0], inside)
        done = ddpdoctor("jobs", str(outside[0]))
        assert f"{outside[0]} ({inside} inside)" in done.stdout


@pytest.mark.tool("gcc")
def test_on_which_gpus_the_ranks_are(tmp_path: Path, fake_nvidia: FakeNvidia) -> None:
    with launched(tmp_path, 3) as job:
        on = [
            [GpuHolder(pid=job.pid(0), memory=30 * GIB), GpuHolder(pid=job.pid(1), memory=GIB // 2)],
            [GpuHolder(pid=job.pid(1), memory=31 * GIB)],
            [],
            [GpuHolder(pid=job.pid(2), memory=32 * GIB)],
        ]
        environ = fake_nvidia.environ(
            4, of_gpu={index: {"holders": holding(*one)} for index, one in enumerate(on) if one}, base={}
        )
        report = told(job.pid(0), environ=environ)
        (one,) = report["jobs"]
        assert [[(held["gpu"], held["memory"]) for held in rank["gpus"]] for rank in one["ranks"]] == [
            [(0, 30 * GIB)],
            [(1, 31 * GIB), (0, GIB // 2)],
            [(3, 32 * GIB)],
        ]
        assert remarks(report) == {"extra context": [1], "other GPU": [2]}
        assert findings(report)["gpu0-extra-contexts"] == "warn"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["-v", "-q"], "exclude each other"), ([""], "the job is empty"), (["train.py"], "'train.py' is no pid")],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    done = ddpdoctor("jobs", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["train.py"], ["--hang", "train.py"]])
def test_a_job_that_is_not_there_in_json(arguments: list[str]) -> None:
    done = ddpdoctor("jobs", *arguments, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"], told["findings"]) == (2, "unknown", [])
    assert "'train.py' is no pid" in told["problems"][0]
    assert told["host"]
