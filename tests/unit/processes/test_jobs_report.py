"""How the report of running jobs reads: tables, folding, what is said once, narrow and many, and as JSON."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import msgspec
import pytest

from ddpdoctor.base.findings import INFO
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue, select
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.gpus import GpuHolder
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.processes import Process
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.processes.job_words import age
from ddpdoctor.processes.overview import Overview, UnknownJobError, checks_of_jobs, overview
from ddpdoctor.processes.rank_table import JobRow, table_of, waits_for
from ddpdoctor.processes.render_jobs import jobs_document, jobs_report
from ddpdoctor.report.contract import to_json
from ddpdoctor.report.terminal import Screen, text_of
from tests.support.report_schema import check_against_schema
from tests.support.running import GIB, gpus, launcher, on_their_gpus, processes, rank, running

RANKS = tuple(rank(number) for number in range(4))
HEALTHY = running(processes(launcher(), *RANKS), gpus(on_their_gpus(RANKS)))
STOPPED = running(processes(launcher(), *RANKS[:2], rank(2, state="T", recent_cpu=0.0), RANKS[3]))


def looked(snapshot: Snapshot, name: str | None = None) -> Overview:
    return overview(snapshot, checks_of_jobs(catalogue()), name)


def report(one: Overview, width: int = 80, **options: bool) -> str:
    return text_of(jobs_document(one, **options), width)


def as_json(one: Overview) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(to_json(jobs_report(one)))
    check_against_schema(told)
    return told


def other_job() -> list[Process]:
    """A second one, of which rank 1 is stopped."""
    boss = launcher(pid=5711, start=99_000)
    return [
        boss,
        *(
            rank(number, 2, pid=5720 + number, start=99_010 + number, parent=5711, state="T" if number else "S")
            for number in range(2)
        ),
    ]


def test_a_healthy_job() -> None:
    one = looked(HEALTHY)
    text = report(one)
    assert one.verdict is Verdict.OK
    assert "Job 4711  python torchrun --nproc-per-node=4 train.py" in text
    assert "alice, up 2.1 h, 4 ranks, launcher pid 4711" in text
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("2  4722")]
    assert rows == [["2", "4722", "alice", "2.1", "h", "2", "31", "GiB", "sleeping", "100", "%", "a", "lock"]]
    assert "GPU memory" in text
    assert "1 job, and nothing wrong stands out" in text


UNDER_A_LAUNCHER = {
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "64", "OMPI_COMM_WORLD_LOCAL_SIZE": "64"},
    "Slurm": {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "64", "SLURM_NTASKS": "64"},
    "a shell's own": {"OMP_NUM_THREADS": "64"},
}


@pytest.mark.parametrize("settings", UNDER_A_LAUNCHER.values(), ids=UNDER_A_LAUNCHER.keys())
@pytest.mark.parametrize("host", [running(processes(), gpus(count=1)), HEALTHY], ids=["no job", "a healthy job"])
def test_what_a_launcher_has_set_for_us_is_no_job(host: Snapshot, settings: dict[str, str]) -> None:
    """Under srun or mpirun we have the settings of 64 ranks: none of them runs, and `jobs` judges those that do."""
    environment = Environment(settings=tuple(Setting(name, value) for name, value in settings.items()))
    machine = Machine(
        system="Linux", kernel="", architecture="x86_64", os_name="", os_id="",
        logical_cores=2, usable_cores=2, memory_total=GIB, memory_available=GIB,
    )  # fmt: skip
    one = looked(msgspec.structs.replace(host, environment=environment, machine=machine))
    assert (one.verdict, one.examination.findings) == (Verdict.OK, [])


def test_without_nvml_the_memory_is_called_resident() -> None:
    text = report(looked(STOPPED))
    assert "resident" in text
    assert "GPU memory" not in text


def test_what_a_check_says_is_said_once() -> None:
    one = looked(STOPPED)
    text = report(one, 200)
    assert one.verdict is Verdict.FAIL
    assert text.count("SIGSTOP or Ctrl-Z") == 1
    assert "[rank-not-running]" in text
    assert "kill -CONT 4722" in text
    (row,) = [line for line in text.splitlines() if line.strip().startswith("2  4722")]
    assert row.split().count("stopped") == 2  # its state, and the remark


def test_what_no_check_says_is_a_remark_that_changes_no_verdict() -> None:
    held = on_their_gpus(RANKS)
    held[2], held[3] = held[3], held[2]
    one = looked(running(processes(launcher(), *RANKS), gpus(held)))
    assert "not on the GPU of the local rank: rank 2 is on GPU 3, not 2" in report(one, 200)
    assert {remark.severity for view in one.views for remark in view.remarks} == {INFO}
    assert one.verdict is Verdict.OK


def test_table_and_findings_agree_on_how_bad_it_is() -> None:
    held = on_their_gpus(RANKS)
    held[0] += [GpuHolder(pid=4721, memory=500 << 20)]
    one = looked(running(processes(launcher(), *RANKS), gpus(held)))
    told = {severity for check, severity, _ in one.examination.findings if check.slug == "gpu0-extra-contexts"}
    assert {remark.severity for view in one.views for remark in view.remarks} == told


def test_a_container_s_pid() -> None:
    inside = rank(2, pid_inside=12, container="0123456789ab")
    text = report(looked(running(processes(launcher(), *RANKS[:2], inside, RANKS[3]))))
    assert "4722 (12 inside)" in text
    assert "in container 0123456789ab" in text


def test_many_ranks_are_folded_but_for_those_that_stand_out() -> None:
    ranks = [rank(number, 64, state="R" if number % 2 else "S") for number in range(64)]
    ranks[17] = rank(17, 64, state="T")
    one = looked(running(processes(launcher(), *ranks)))
    table = report(one, 120).partition("FAIL")[0]
    assert "0-16,18-63  4720..4783" in table
    assert "running/sleeping" in table
    assert "17  4737" in table
    assert len(table.splitlines()) < 12
    assert report(one, 120, verbose=True).count(" 47") >= 64


def test_32_ranks_are_not_folded() -> None:
    ranks = [rank(number, 32) for number in range(32)]
    assert report(looked(running(processes(launcher(), *ranks)))).count("  47") >= 32


@pytest.mark.parametrize("width", [40, *range(70, 121, 3)])
def test_no_line_of_a_table_is_wider_than_the_terminal(width: int) -> None:
    held = on_their_gpus(RANKS)
    held[0] += [GpuHolder(pid=4721, memory=500 << 20)]
    held[2] += held.pop(3)
    ranks = [RANKS[0], rank(1, pid_inside=12), rank(2, state="T"), RANKS[3]]
    text = report(looked(running(processes(launcher(), *ranks), gpus(held))), width)
    table = text.partition("Job 4711")[2].partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= width
    for word in ("extra context", "stopped"):
        assert word in table


def test_what_has_no_room_goes_in_order() -> None:
    cells = {
        "rank": "0",
        "pid": "4720",
        "user": "alice",
        "age": "2 h",
        "gpus": "0",
        "memory": "31 GiB",
        "state": "sleeping",
        "cpu": "100 %",
        "waits": "a lock",
    }
    table = table_of([JobRow(cells=cells)], "GPU memory")
    headings = []
    for width in (71, 64, 59, 48):
        file = io.StringIO()
        Screen(file, width).write(table)
        headings.append(set(re.split(r"\s{2,}", file.getvalue().splitlines()[0].strip())))
    everything = {"rank", "pid", "user", "age", "GPU", "GPU memory", "state", "CPU", "waits for"}
    assert headings[0] == everything
    assert headings[1] == everything - {"user"}
    assert headings[2] == everything - {"user", "age"}
    assert headings[3] == everything - {"user", "age", "waits for"}


def test_no_job() -> None:
    one = looked(running(processes(closed=380, unseen="hidepid hides others' processes")))
    text = " ".join(report(one).split())
    assert "No training job runs on this host that this user can see" in text
    assert "380 of which can't be looked into, being others': only root may" in text
    assert "there may be more: hidepid hides others' processes" in text
    assert one.verdict is Verdict.OK
    assert as_json(one)["jobs"] == []


def test_processes_that_could_not_be_seen_are_no_verdict() -> None:
    one = looked(msgspec.structs.replace(STOPPED, processes=Unknown("/proc: Permission denied")))
    assert one.verdict.exit_code(strict=False) == 2
    text = " ".join(report(one).split())
    assert "can't be told: /proc: Permission denied" in text
    assert "No training job runs" not in text
    assert as_json(one)["verdict"] == "unknown"


def test_a_hostile_command_steers_no_terminal() -> None:
    hostile = "\x1b]0;owned\x07\x1b[31mtrain\u202e.py\n[bold]FAIL[/bold]"
    snapshot = running(
        processes(launcher(command=hostile, name=hostile), *RANKS[:3], rank(3, user="\x1b[2J", waits_in="\x1b[2J"))
    )
    text = report(looked(snapshot))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]" in text


def test_quiet_and_json() -> None:
    one = looked(STOPPED)
    assert report(one, quiet=True).splitlines()[0].startswith("FAIL  rank-not-running: Job 4711: rank 2 stopped")
    told = as_json(one)
    assert told["command"] == "jobs"
    assert told["verdict"] == "fail"
    (job,) = told["jobs"]
    assert [launcher["pid"] for launcher in job["launchers"]] == [4711]
    assert [rank["rank"] for rank in job["ranks"]] == [0, 1, 2, 3]
    assert job["ranks"][2]["remarks"] == ["stopped"]
    assert job["remarks"][0]["severity"] == "fail"
    assert "rank-not-running" in {finding["slug"] for finding in told["findings"]}


def test_json_has_what_each_rank_holds() -> None:
    (job,) = as_json(looked(HEALTHY))["jobs"]
    assert job["ranks"][3]["gpus"] == [{"gpu": 3, "memory": 31 * GIB, "mig_uuid": ""}]
    assert job["missing"] == []


# --- one of several jobs ----------------------------------------------------------------------------------------------------

BOTH = running(processes(launcher(), *RANKS, *other_job()))


@pytest.mark.parametrize("pid", ["4711", "4720", " 4723 "])
def test_a_job_by_any_of_its_pids_without_what_concerns_another(pid: str) -> None:
    one = looked(BOTH, pid)
    assert [view.job.name for view in one.views] == ["4711"]
    assert one.verdict is Verdict.OK
    assert one.others == 1
    assert "1 finding on other processes left out: ddpdoctor jobs" in report(one, 120)
    assert looked(BOTH, "5721").verdict is Verdict.FAIL
    assert looked(BOTH, "5721").others == 0
    assert looked(BOTH).verdict is Verdict.FAIL


def test_a_job_by_what_it_started_or_what_started_it() -> None:
    script = Process(pid=4800, start=91_000, parent=4723, uid=1000, name="sh")
    lone = running(processes(launcher(), *RANKS, script))
    assert looked(lone, "4800").views[0].job.name == "4711"
    assert looked(lone, "4000").views[0].job.name == "4711"


@pytest.mark.parametrize(
    ("pid", "said"),
    [
        ("abc", "'abc' is no pid"),
        ("-1", "'-1' is no pid"),
        ("9" * 5000, "is no pid"),
        ("\u0661", "is no pid"),
        ("1", "pid 1 is part of no training job"),
        ("99999999999999999999", "is no pid"),
        ("4000", "pid 4000 has started 2 jobs: name one"),
    ],
)
def test_an_unknown_job_is_told_which_there_are(pid: str, said: str) -> None:
    with pytest.raises(UnknownJobError) as error:
        looked(BOTH, pid)
    assert said in str(error.value)
    assert "4711 (python torchrun --nproc-per-node=4 train.py, 4 ranks)" in str(error.value)
    assert "5711" in str(error.value)


def test_a_launcher_whose_ranks_have_ended() -> None:
    with pytest.raises(UnknownJobError, match=r"pid 4711 is a launcher \(torchrun\), .* they have ended, or"):
        looked(running(processes(launcher())), "4711")


def test_without_any_job_an_unknown_one_is_told_so() -> None:
    with pytest.raises(UnknownJobError, match="No training job runs on this host that this user can see"):
        looked(running(processes()), "4711")
    with pytest.raises(UnknownJobError, match="380 processes can't be looked into by this user"):
        looked(running(processes(closed=380)), "4711")


# --- words ------------------------------------------------------------------------------------------------------------------


def test_ages() -> None:
    assert [age(one) for one in (0.4, 59, 60, 3599, 3600, 36_000, 90_000)] == [
        "0 s",
        "59 s",
        "1 min",
        "60 min",
        "1.0 h",
        "10 h",
        "1.0 d",
    ]


def test_what_a_process_waits_for() -> None:
    assert waits_for("futex_wait_queue") == "a lock"
    assert waits_for("__x64_sys_pause") == "pause"
    assert waits_for("rpc_wait_bit_killable") == "rpc_wait_bit_killable"


def test_the_checks_of_jobs_are_those_that_judge_running_ones() -> None:
    slugs = {job.slug for job in checks_of_jobs(catalogue())}
    assert {"rank-not-running", "gpu0-extra-contexts", "duplicate-gpu"} <= slugs
    assert slugs <= {one.slug for one in select()}


def test_what_is_wrong_with_another_user_s_job_stands_out_and_is_no_failure_of_ours() -> None:
    assert not isinstance(STOPPED.processes, Unknown)
    theirs = msgspec.structs.replace(STOPPED, processes=msgspec.structs.replace(STOPPED.processes, uid=2000))
    one = looked(theirs)
    assert one.verdict is Verdict.OK
    assert {remark.severity for view in one.views for remark in view.remarks} == {INFO}
    assert "INFO  rank 2 (pid 4722): stopped by a signal" in report(one, 120)
