"""What is said of trainings by Lightning and accelerate, healthy and not, started as their users start them."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ddpdoctor, plain_environ
from tests.support.framework_jobs import ACCELERATE, BY_ARGUMENTS, LIGHTNING, OPEN_MPI, TRAINER, job_of, pids_of
from tests.support.free_ports import free_port
from tests.support.running_jobs import start_time, state, wait_until

OF_JOBS = ("job-settings-differ", "rank-not-running", "orphaned-rank", "omp-threads")
"""Checks that judge running jobs; other tests' jobs run beside ours."""


def jobs(*arguments: str) -> dict[str, Any]:
    done = ddpdoctor("jobs", "--json", *arguments, environ=plain_environ())
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def jobs_with(report: dict[str, Any], pids: list[int]) -> list[list[int]]:
    """The ranks' pids of each job that has one of these."""
    found = [[rank["process"]["pid"] for rank in job["ranks"]] for job in report["jobs"]]
    return sorted(one for one in found if set(one) & set(pids))


def about(report: dict[str, Any], pids: list[int]) -> list[str]:
    """Summaries of the findings that name one of them."""
    return [
        finding["summary"]
        for finding in report["findings"]
        if finding["slug"] in OF_JOBS and any(str(pid) in json.dumps(finding) for pid in pids)
    ]


def test_two_healthy_runs_of_lightning_from_one_script(tmp_path: Path) -> None:
    """The first process of each sets for itself where the ranks meet; both runs have the same parent and settings."""
    with job_of(tmp_path, LIGHTNING, '"$python" train.py a & "$python" train.py b & wait') as job:
        runs = pids_of(job, ["a", "b"])
        pids = [pid for run in runs for pid in run]
        report = jobs()
        assert jobs_with(report, pids) == sorted(runs)
        assert about(report, pids) == []
        done = ddpdoctor("check", "--quick", "--json", "--select", ",".join(OF_JOBS), environ=plain_environ())
        assert about(json.loads(done.stdout), pids) == []


def test_local_rank_left_in_the_shell(tmp_path: Path) -> None:
    """Lightning starts no other ranks, and waits for them; how many there should be, nothing outside says."""
    with job_of(tmp_path, LIGHTNING, 'exec "$python" train.py', {"LOCAL_RANK": "0"}) as job:
        pid = int(job.wait_for("rank-0.pid"))
        wait_until(lambda: "pt_tcpstore" in threads_of(pid), job.output())
        wait_until(lambda: age(pid) > 11)
        report = jobs(str(pid))
        (summary,) = about(report, [pid])
        assert "alone" in summary
        assert report["jobs"][0]["world_size"] is None
        hang = jobs("--hang", str(pid))
        (waiting,) = [finding for finding in hang["findings"] if finding["slug"] == "rendezvous-waiting"]
        assert "all ranks are there" not in waiting["summary"]
        assert "LOCAL_RANK=0" in waiting["cause"]
        assert ["unset LOCAL_RANK"] in [fix["commands"] for fix in waiting["fixes"]]
        done = ddpdoctor("check", "--quick", "--json", environ={**plain_environ(), "LOCAL_RANK": "0"})
        found = json.loads(done.stdout)
        assert "rank-leftover" in [finding["slug"] for finding in found["findings"]]
        assert about(found, [pid])


def test_node_rank_left_in_the_shell(tmp_path: Path) -> None:
    """Lightning starts the ranks of a second node, 2 and 3 of 2, and these wait for the first node's."""
    with job_of(tmp_path, LIGHTNING, 'exec "$python" train.py', {"NODE_RANK": "1"}) as job:
        pids = [int(job.wait_for(f"rank-{local}.pid")) for local in range(2)]
        report = jobs()
        assert jobs_with(report, pids) == [pids]
        (summary,) = about(report, pids)
        assert "ranks 2 and 3 beyond the world" in summary
        (finding,) = [finding for finding in report["findings"] if finding["summary"] == summary]
        assert "unset NODE_RANK GROUP_RANK" in finding["fixes"][0]["commands"]
        done = ddpdoctor("check", "--quick", "--json", environ={**plain_environ(), "NODE_RANK": "1"})
        found = json.loads(done.stdout)
        assert "rank-leftover" in [finding["slug"] for finding in found["findings"]]


def test_accelerate_that_starts_one_process_of_two(tmp_path: Path) -> None:
    with job_of(tmp_path, ACCELERATE, 'exec "$bin/accelerate" launch --num_processes 2 --cpu train.py') as job:
        job.wait_for("rank-0.training")
        launcher, rank = job.process.pid, job.pid(0)
        report = jobs(str(launcher))
        assert jobs_with(report, [rank]) == [[rank]]
        (summary,) = about(report, [rank])
        assert "fewer than asked for" in summary
        (finding,) = [finding for finding in report["findings"] if finding["summary"] == summary]
        # Without it each would train alone: accelerate looks for GPUs first.
        assert finding["fixes"][0]["commands"] == ["ACCELERATE_USE_CPU=true torchrun --nproc-per-node=2 train.py"]


TORCHRUN = 'exec "$bin/torchrun" --standalone --nproc-per-node 2 train.py'


@pytest.mark.slow
@pytest.mark.parametrize("script", [LIGHTNING, ACCELERATE], ids=["lightning", "accelerate"])
def test_under_torchrun_healthy_and_then_with_a_stopped_rank(tmp_path: Path, script: str) -> None:
    with job_of(tmp_path, script, TORCHRUN) as job:
        (pids,) = pids_of(job, ["rank"])
        report = jobs(str(pids[0]))
        assert jobs_with(report, pids) == [pids]
        assert about(report, pids) == []
        hang = jobs("--hang", str(pids[0]))
        assert [finding["slug"] for finding in hang["findings"] if finding["severity"] == "fail"] == []
        os.kill(pids[1], signal.SIGSTOP)
        wait_until(lambda: "\nState:\tT" in Path(f"/proc/{pids[1]}/status").read_text())
        stopped = jobs(str(pids[0]))
        assert stopped["verdict"] == "fail"
        assert f"kill -CONT {pids[1]}" in json.dumps(stopped)
        (summary,) = about(stopped, pids)
        assert "rank 1 stopped" in summary


@pytest.mark.slow
def test_transformers_trainer_under_torchrun_healthy_and_then_asleep_in_user_code(tmp_path: Path) -> None:
    with job_of(tmp_path, TRAINER, TORCHRUN) as job:
        (pids,) = pids_of(job, ["rank"])
        assert about(jobs(str(pids[0])), pids) == []
        assert [finding["severity"] for finding in jobs("--hang", str(pids[0]))["findings"]].count("fail") == 0
        (job.folder / "sleep").touch()
        job.wait_for("rank-1.asleep")
        wait_until(lambda: "rank 1" in first_summary(jobs("--hang", str(pids[0]))))
        found = jobs("--hang", str(pids[0]))["findings"][0]
        assert "on_step_end (train.py:" in json.dumps(found)


MPIRUN = (
    'exec "$bin/accelerate" launch --cpu --num_processes 2 --main_process_port "$port" --mpirun_hostfile hosts train.py'
)
"""How accelerate starts several processes on CPUs."""


@pytest.mark.slow
@pytest.mark.tool("mpirun")
def test_accelerate_and_the_trainer_by_accelerates_mpirun_healthy_and_then_with_a_stopped_rank(tmp_path: Path) -> None:
    shell = f"echo localhost slots=2 >hosts; {MPIRUN}"
    with ExitStack() as stack:
        started = [
            stack.enter_context(job_of(tmp_path, script, shell, {**OPEN_MPI, "port": str(free_port())}))
            for script in (ACCELERATE, TRAINER)
        ]
        ranks = [pids_of(job, ["rank"])[0] for job in started]
        pids = [pid for own_pids in ranks for pid in own_pids]
        report = jobs()
        assert jobs_with(report, pids) == sorted(ranks)
        assert about(report, pids) == []
        for job in started:
            assert [finding["severity"] for finding in jobs("--hang", str(job.process.pid))["findings"]].count(
                "fail"
            ) == 0
        for _, second in ranks:
            os.kill(second, signal.SIGSTOP)
        wait_until(lambda: all(state(second) == "T" for _, second in ranks))
        stopped = jobs()
        assert all("rank 1 stopped" in about(stopped, own_pids)[0] for own_pids in ranks)
        assert all(f"kill -CONT {second}" in json.dumps(stopped) for _, second in ranks)


def first_summary(report: dict[str, Any]) -> str:
    return report["findings"][0]["summary"] if report["findings"] else ""


def test_accelerate_whose_configuration_asks_for_more_than_it_starts(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("distributed_type: MULTI_CPU\nnum_processes: 4\nuse_cpu: true\n")
    shell = f'cd {tmp_path} && exec "$bin/accelerate" launch --config_file cluster.yaml "$RUNNING_JOB/train.py"'
    with job_of(tmp_path, ACCELERATE, shell) as job:
        job.wait_for("rank-0.training")
        report = jobs(str(job.process.pid))
        (finding,) = [finding for finding in report["findings"] if "fewer than asked for" in finding["summary"]]
        assert f"4 processes were asked for ({tmp_path}/cluster.yaml, line 2)" in finding["evidence"][0]["text"]


def test_accelerate_that_starts_the_one_process_that_it_is_told_to(tmp_path: Path) -> None:
    with job_of(tmp_path, ACCELERATE, 'exec "$bin/accelerate" launch --num_processes 1 --cpu train.py') as job:
        job.wait_for("rank-0.training")
        report = jobs()
        assert jobs_with(report, [job.pid(0)]) == [[job.pid(0)]]
        assert about(report, [job.pid(0)]) == []


def threads_of(pid: int) -> str:
    return " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm"))


def age(pid: int) -> float:
    return float(Path("/proc/uptime").read_text().split()[0]) - start_time(pid) / os.sysconf("SC_CLK_TCK")


def test_two_runs_whose_scripts_say_where_they_meet(tmp_path: Path) -> None:
    """Settings and parent are the same: only the sockets tell whose each rank is."""
    one, other = free_port(), free_port()
    starts = [
        f'RANK={rank} WORLD_SIZE=2 "$python" train.py {run} {port} &'
        for rank in range(2)
        for run, port in (("a", one), ("b", other))
    ]
    with job_of(tmp_path, BY_ARGUMENTS, "\n".join([*starts, "wait"])) as job:
        runs = pids_of(job, ["a", "b"])
        pids = [pid for run in runs for pid in run]
        report = jobs()
        assert jobs_with(report, pids) == sorted(runs)
        assert about(report, pids) == []
