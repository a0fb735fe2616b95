"""`jobs --hang` on real gloo jobs: it names the rank that keeps the others waiting, and harms none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, plain_environ
from tests.support.running_jobs import RunningJob, by_hand, launched, start_time, state, torchrun, wait_until

A_FOREIGN_USER = (
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
)  # fmt: skip
"""Who may read all files, since the interpreter may lie in root's home, and look into no process."""


def looked(job: RunningJob, pid: int | None = None, prefix: Sequence[str] = (), seconds: int = 1) -> dict[str, Any]:
    """What it says of that job."""
    return told_by(started_look(job, pid, prefix, seconds))


def started_look(
    job: RunningJob, pid: int | None = None, prefix: Sequence[str] = (), seconds: int = 1
) -> subprocess.Popen[str]:
    doctor = [*prefix, *command("jobs", "--hang", str(pid or job.pid(0)), "--json", "--seconds", str(seconds))]
    return subprocess.Popen(doctor, env=plain_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told_by(look: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, err = look.communicate(timeout=90)
    finally:
        look.kill()
    assert out, err
    told: dict[str, Any] = json.loads(out)
    return told


def slugs(told: Mapping[str, Any]) -> list[str]:
    return [finding["slug"] for finding in told["findings"]]


def stack(told: Mapping[str, Any], rank: int) -> list[str]:
    """The functions of that rank, the innermost first."""
    [one] = [one for one in told["hang"]["ranks"] if one["rank"] == rank]
    return [frame["function"].rpartition(".")[2] for frame in one["watched"]["looks"][-1]["frames"]]


def assert_blamed(told: Mapping[str, Any], slug: str, rank: int) -> None:
    assert slugs(told) == [slug], told
    assert told["findings"][0]["rank"] == rank
    assert f"rank {rank}" in told["findings"][0]["summary"]
    assert told["hang"]["paused"] == 0.0


SLOW_STEPS = [(0.5, 3), (4, 5), (8, 30)]
"""Seconds that each step of one rank takes, and for which it is watched."""


@pytest.fixture(scope="module")
def slow_steps(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[tuple[float, int], subprocess.Popen[str]]]:
    """Jobs with slow steps, and looks at them, which go on while the other tests of this file run."""
    with ExitStack() as stack:
        jobs = {}
        for pause, seconds in SLOW_STEPS:
            settings = {"RUNNING_JOB_PAUSE_1": str(pause)}
            jobs[pause, seconds] = stack.enter_context(by_hand(tmp_path_factory.mktemp("slow"), settings=settings))
        for job in jobs.values():
            job.wait_until_training(0, 1)
        looks = {case: started_look(job, seconds=case[1]) for case, job in jobs.items()}
        for look in looks.values():
            stack.callback(look.kill)
        yield looks


@pytest.mark.usefixtures("slow_steps")  # They begin first, and are asked last.
def test_a_healthy_job_moves_and_ends_its_training_unharmed(tmp_path: Path) -> None:
    """Looked at, and looked at by somebody who is stopped meanwhile."""
    with torchrun(tmp_path, settings={"RUNNING_JOB_STEPS": "600"}) as job:
        job.wait_until_training(0, 1)
        before = job.step(0)
        told = looked(job)
        assert told["verdict"] != "fail"
        if told["verdict"] == "warn":  # On a busy machine it may not have got on within a second; within five it has.
            told = looked(job, seconds=5)
        assert (told["verdict"], slugs(told)) == ("ok", [])
        assert told["hang"]["backend"] == "gloo"
        assert all(rank["watched"]["elsewhere"] > 2 for rank in told["hang"]["ranks"])
        stop_while_it_looks(job)
        assert job.step(0) > before
        job.wait_for("rank-0.done")
        job.wait_for("rank-1.done")
        assert job.process.wait(30) == 0
        assert [job.step(rank) for rank in (0, 1)] == [599, 599]


def stop_while_it_looks(job: RunningJob) -> None:
    """Ctrl-C, as a terminal sends it, once py-spy is at work at both ranks."""
    doctor = subprocess.Popen(
        command("jobs", "--hang", str(job.pid(0)), "--seconds", "60"),
        env=plain_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    wait_until(lambda: len(spies(doctor.pid)) == 2, "py-spy's sampling")
    started = spies(doctor.pid)
    os.killpg(doctor.pid, signal.SIGINT)
    out, err = doctor.communicate(timeout=30)
    assert doctor.returncode == 130
    assert (out, err.strip()) == ("", "Stopped. No rank was held up, and nothing is left running."), (out, err)
    # One that is dead may be for init to take away.
    assert {state(pid) for pid in started} <= {"", "Z"}, [state(pid) for pid in started]


def spies(doctor: int) -> list[int]:
    """The pids of the py-spies that it has sampling."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):
            parent = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == doctor and "record" in Path(f"/proc/{name}/cmdline").read_text(errors="replace").split(
                "\0"
            ):
                found.append(int(name))
    return found


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """Rank 1 waits for its DataLoader, whose worker is stuck."""
    with torchrun(tmp_path_factory.mktemp("stuck"), does={1: ("dataloader", 1)}) as job:
        job.wait_for("worker.stuck")
        yield job


def test_a_stuck_data_loader_is_named_by_the_line_of_its_worker(stuck: RunningJob) -> None:
    worker = stuck.wait_for("worker.stuck")
    told = looked(stuck)
    assert_blamed(told, "dataloader-stuck", 1)
    assert worker in told["findings"][0]["summary"]
    assert told["findings"][0]["severity"] == "warn", "within a second nobody can know that it isn't a slow batch"
    assert stack(told, 0)[0] == "all_reduce"
    [seen] = told["hang"]["ranks"][1]["workers"]
    assert seen["pid"] == int(worker)
    functions = [frame["function"] for frame in seen["looks"][-1]["frames"]]
    assert functions[:2] == ["sleep_for_good", "Stuck.__getitem__"]
    # py-spy as it lies beside this Python, not on anybody's PATH.
    py_spy = Path(sys.executable).with_name("py-spy")
    assert f"{py_spy} dump --native --pid {worker}" in str(told["findings"][0]["fixes"])
    assert "start_ranks" not in functions
    assert "main" not in functions, "the frames of the rank that it was forked from are not its own"


@pytest.mark.root
@pytest.mark.tool("setpriv")
def test_another_user_is_told_what_could_not_be_seen_and_who_can(stuck: RunningJob) -> None:
    told = looked(stuck, pid=stuck.process.pid, prefix=A_FOREIGN_USER)
    assert (told["verdict"], slugs(told)) == ("unknown", [])
    assert all(not look["frames"] for rank in told["hang"]["ranks"] for look in rank["watched"]["looks"])
    [sentence] = told["hang"]["hidden"]
    assert "belong to root" in sentence
    assert sentence.endswith(f"sudo {sys.executable} -I -m ddpdoctor jobs --hang {stuck.process.pid}")


@pytest.mark.root
@pytest.mark.tool("setpriv", "setsid")
def test_another_user_who_can_t_even_tell_that_it_is_a_job(tmp_path: Path) -> None:
    # Children of a process that has a process group, as this one may have by other tests, are taken for ranks.
    with by_hand(tmp_path, real=False, prefix=("setsid", "--fork")) as job:
        pid = str(job.pid(0))
        doctor = [*A_FOREIGN_USER, *command("jobs", "--hang", pid)]
        ran = subprocess.run(doctor, env=plain_environ(), capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 2
    assert ran.stderr.strip().endswith(f"sudo {sys.executable} -I -m ddpdoctor jobs --hang {pid}")


def test_a_killed_rank_a_stopped_one_and_a_launcher_that_takes_no_note(tmp_path: Path) -> None:
    """Without torch: all that /proc tells."""
    with launched(tmp_path, ranks=3) as job:
        pids = [job.pid(rank) for rank in range(3)]
        started = [start_time(pid) for pid in pids]
        os.kill(pids[1], signal.SIGKILL)
        os.kill(pids[2], signal.SIGSTOP)
        wait_until(lambda: (state(pids[1]), state(pids[2])) == ("Z", "T"), "a dead and a stopped rank")
        told = looked(job, pid=job.process.pid)
        ranks = {rank["rank"]: rank for rank in told["hang"]["ranks"]}
        assert set(ranks) == {0, 1, 2}
        assert ranks[1]["gone"]
        assert ranks[2]["watched"]["looks"][-1]["state"] == "T"
        assert ranks[2]["watched"]["looks"][-1]["frames"], "a stopped process can be read, too"
        assert slugs(told) == ["rank-stopped"]
        # Nobody was woken, and nobody was ended.
        assert [start_time(pid) for pid in pids] == started
        assert [state(pid) for pid in pids] == ["S", "Z", "T"]


def test_a_rank_in_a_debugger_s_hands_is_left_alone(tmp_path: Path) -> None:
    with by_hand(tmp_path, real=False) as job:
        traced = job.pid(1)
        code = (
            "import ctypes, sys\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "attach, pid = 0x4206, int(sys.argv[1])\n"
            "assert libc.ptrace(attach, pid, None, None) == 0, ctypes.get_errno()\n"
            "print(flush=True)\n"
            "sys.stdin.read()\n"
        )
        tracer = subprocess.Popen(
            [sys.executable, "-c", code, str(traced)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert tracer.stdout
        tracer.stdout.readline()
        told = looked(job)
        ranks = {rank["rank"]: rank for rank in told["hang"]["ranks"]}
        last = ranks[1]["watched"]["looks"][-1]
        assert last["frames"] == []
        assert f"pid {tracer.pid}" in last["source"]
        assert stack(told, 0)
        tracer.communicate(b"")
        wait_until(lambda: state(traced) == "S", "the rank to go on")


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_from_outside_of_its_container(tmp_path: Path) -> None:
    """Where the ranks have other pids, each its own 1, and another /proc."""
    inside = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    with by_hand(tmp_path, real=False, prefix=inside) as job:
        assert [job.pid(rank) for rank in range(2)] == [1, 1]
        wrappers = {process.pid for process in job.started}
        told = looked(job, pid=next(pid for pid in job.pids() if pid not in wrappers))
        for one in told["hang"]["ranks"]:
            assert one["watched"]["samples"] > 10
            assert one["watched"]["looks"][-1]["frames"][-1]["function"] == "<module>"


def test_which_job_is_meant(tmp_path: Path) -> None:
    ran = subprocess.run(
        command("jobs", "--hang", "1"), env=plain_environ(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "pid 1 " in ran.stderr
    assert "Traceback" not in ran.stderr
    ran = subprocess.run(
        command("jobs", "--seconds", "5"), env=plain_environ(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2


def test_a_hang_that_a_person_is_sure_of_is_for_scripts_to_ask_for(stuck: RunningJob) -> None:
    """A warning at first, exit code 1 with --strict, and the way to be sure stands below it."""
    for more, code in (((), 0), (("--strict",), 1)):
        doctor = command("jobs", "--hang", str(stuck.pid(0)), "--seconds", "1", *more)
        ran = subprocess.run(doctor, env=plain_environ(), capture_output=True, text=True, timeout=90, check=False)
        assert ran.returncode == code, ran.stdout
        said = " ".join(ran.stdout.split())
        assert f"ddpdoctor jobs --hang {stuck.process.pid} --seconds 30" in said
        assert "the exit code is 0, or 1 with --strict" in said


def assert_goes_on(told: Mapping[str, Any], pause: float, seconds: int) -> None:
    """What moved is told."""
    assert told["verdict"] != "fail", told
    if told["findings"] and seconds > pause:
        assert "it goes on, slowly perhaps" in str(told["findings"][0]["evidence"])


@pytest.mark.parametrize(("pause", "seconds"), SLOW_STEPS)
def test_slow_steps_are_no_failure_however_long_it_is_watched(
    slow_steps: Mapping[tuple[float, int], subprocess.Popen[str]], pause: float, seconds: int
) -> None:
    """One rank works for seconds, then comes a small all_reduce."""
    assert_goes_on(told_by(slow_steps[pause, seconds]), pause, seconds)


# --- further shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("does", "marker", "slug", "culprit", "settings"),
    [
        ({1: ("sleep", 2)}, "rank-1.there", "rank-busy-outside-collectives", 1, {}),
        ({1: ("spin", 2)}, "rank-1.there", "rank-busy-outside-collectives", 1, {}),
        ({1: ("stop", 2)}, "rank-1.there", "rank-stopped", 1, {}),
        ({1: ("alone", 2)}, "rank-1.there", "collective-desync", 1, {}),
        ({1: ("other", 2)}, "rank-1.there", "collective-desync", 1, {}),
        ({1: ("fewer", 2)}, "rank-1.finishing", "uneven-inputs", 1, {"RUNNING_JOB_DDP": "1"}),
    ],
)  # fmt: skip
def test_the_culprit_and_the_illness(
    tmp_path: Path, does: dict[int, tuple[str, int]], marker: str, slug: str, culprit: int, settings: dict[str, str]
) -> None:
    with torchrun(tmp_path, ranks=3, does=does, settings=settings) as job:
        job.wait_for(marker)
        told = looked(job)
        assert_blamed(told, slug, culprit)
        assert told["verdict"] == ("warn" if slug == "rank-busy-outside-collectives" else "fail")


@pytest.mark.thorough
def test_steps_of_20_seconds_are_no_failure(tmp_path: Path) -> None:
    with torchrun(tmp_path, settings={"RUNNING_JOB_PAUSE_1": "20"}) as job:
        job.wait_until_training(0, 1)
        assert_goes_on(looked(job, seconds=45), 20, 45)


@pytest.mark.thorough
def test_a_rank_that_slept_for_half_a_minute_is_a_failure(tmp_path: Path) -> None:
    with torchrun(tmp_path, does={1: ("sleep", 2)}) as job:
        job.wait_for("rank-1.there")
        told = looked(job, seconds=30)
        assert_blamed(told, "rank-busy-outside-collectives", 1)
        assert told["verdict"] == "fail"


@pytest.mark.thorough
def test_a_killed_rank_of_which_its_launcher_takes_no_note(tmp_path: Path) -> None:
    """Over gloo only those that talk to the dead one are told of its end: here rank 2 waits for rank 0, which sleeps."""
    does = {0: ("sleep", 2), 1: ("kill", 2)}
    with torchrun(tmp_path, ranks=3, does=does, flags=("--monitor-interval", "600")) as job:
        job.wait_for("rank-0.there")
        killed = int(job.wait_for("rank-1.there"))
        wait_until(lambda: state(killed) == "Z", "the killed rank's end")
        told = looked(job, pid=job.process.pid)
        assert_blamed(told, "peer-rank-crashed", 1)
        assert told["hang"]["ranks"][1]["gone"].startswith("Z: ")
