"""`ddpdoctor zombies` on real leftovers: a job whose torchrun was killed, a DataLoader's worker whose rank was; beside living ones."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.closed_loop import USER
from tests.support.command import command, ddpdoctor
from tests.support.own_pids import SUBREAPER, OwnPids, kill_launcher, own_pids
from tests.support.running_jobs import RunningJob, by_hand, launched, started_by_itself, torchrun, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.tool("unshare", "nsenter", "setsid", "setpriv", "ip", "ps"),
]

RANK_0_KEEPS_THE_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
C10D = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29433", "--local-addr=127.0.0.1")


class Left:
    """What was left behind on a host of its own. worker: its pid; healthy: pids of a job that lives."""

    def __init__(self, host: OwnPids, job: RunningJob, worker: int, healthy: RunningJob) -> None:
        self.host = host
        self.job = job
        self.ranks = [job.pid(0), job.pid(1)]
        self.worker = worker
        self.healthy = [healthy.pid(0), healthy.pid(1)]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    folder = tmp_path_factory.mktemp("left")
    with (
        own_pids() as host,
        torchrun(
            folder, does={0: ("alone", 1)}, prefix=host.prefix, settings=RANK_0_KEEPS_THE_STORE, flags=C10D
        ) as job,
        by_hand(folder, 1, does={0: ("dataloader", 1)}, prefix=host.prefix) as alone,
        launched(folder, 2, prefix=host.prefix) as healthy,
    ):
        job.wait_for("rank-0.there")
        job.wait_for("rank-1.finishing")
        worker = int(alone.wait_for("worker.stuck"))
        kill_launcher(job)
        host.run("kill", "-9", str(alone.pid(0)))
        yield Left(host, job, worker, healthy)


def kept(left: Left) -> None:
    assert all(left.host.alive(pid) for pid in [*left.healthy, *left.ranks])


def test_nothing_is_ended_unless_asked_for(left: Left) -> None:
    found = left.host.proven(*left.ranks, left.worker)
    assert {leftover["pid"]: leftover["kind"] for leftover in found} == {
        **dict.fromkeys(left.ranks, "orphaned rank"),
        left.worker: "DataLoader worker without its rank",
    }
    assert all(one["owner"] and one["age"] >= 10 and one["memory"] for one in found)
    assert not [leftover for leftover in left.host.leftovers() if leftover["pid"] in left.healthy]
    dry = left.host.ddpdoctor("zombies", "--kill", "--yes", "--dry-run")
    assert dry.returncode == 1
    assert "dry run" in dry.stdout
    unasked = left.host.ddpdoctor("zombies", "--kill")
    assert unasked.returncode == 1
    assert "no terminal to ask on" in unasked.stderr
    kept(left)


def test_what_belongs_to_another_user_is_left_alone(left: Left) -> None:
    left.host.proven(*left.ranks)
    ended = left.host.run(*USER, *command("zombies", "--kill", "--yes", "--json"))
    assert ended.stdout, ended.stderr
    mine = [leftover for leftover in json.loads(ended.stdout)["leftovers"] if leftover["certainty"] == "proven"]
    assert not mine
    kept(left)


def test_the_worker_is_ended_and_all_others_live(left: Left) -> None:
    (worker,) = left.host.proven(left.worker)
    ended = left.host.ddpdoctor("zombies", "--kill", "--yes", str(left.worker))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "ENDED" in ended.stdout or "KILLED" in ended.stdout
    assert "FREED" in ended.stdout
    assert not left.host.alive(left.worker)
    assert not [leftover for leftover in left.host.leftovers() if leftover["pid"] == worker["pid"]]
    kept(left)


def test_check_fix_ends_the_job_that_keeps_the_port(left: Left) -> None:
    first, _ = left.host.proven(*left.ranks)
    port = master_port(left)
    assert port in first["ports"]
    shell = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    again = ("--select", "orphaned-rank,port-in-use", "--nproc", "2", "--json")
    before = left.host.ddpdoctor("check", *again, environ=shell)
    assert {finding["slug"] for finding in json.loads(before.stdout)["findings"]} == {"orphaned-rank", "port-in-use"}
    fixed = left.host.ddpdoctor("check", "--fix", "--yes", *again, environ=shell)
    report = json.loads(fixed.stdout)
    states = {treatment["slug"]: (treatment["state"], treatment["reason"]) for treatment in report["treatments"]}
    assert {slug: state for slug, (state, _) in states.items()} == dict.fromkeys(
        ("orphaned-rank", "port-in-use"), "confirmed"
    ), states
    assert not report["findings"]
    assert not any(left.host.alive(pid) for pid in left.ranks)
    assert all(left.host.alive(pid) for pid in left.healthy)


def master_port(left: Left) -> int:
    environ = Path(f"/proc/{_outer(left)}/environ").read_bytes().split(b"\0")
    return int(next(one for one in environ if one.startswith(b"MASTER_PORT=")).partition(b"=")[2])


def _outer(left: Left) -> int:
    """The pid of rank 0 as it is seen from here."""
    return next(pid for pid in left.job.pids() if b"\0RANK=0\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes())


def test_a_quiet_orphan_that_waits_for_no_collective_is_in_doubt(tmp_path: Path) -> None:
    """As one that sends a checkpoint, or polls a server: only its stack tells it from one that waits for ever."""
    with own_pids() as host, launched(tmp_path, 2, prefix=host.prefix) as job:
        ranks = [job.pid(0), job.pid(1)]
        mark = os.fsencode(sys.executable) + b"\0torchrun\0"
        (launcher,) = [pid for pid in job.pids() if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(mark)]
        os.kill(launcher, signal.SIGKILL)
        found: list[dict[str, Any]] = []

        def both_orphaned() -> bool:
            found[:] = [leftover for leftover in host.leftovers() if leftover["pid"] in ranks]
            return len(found) == 2

        wait_until(both_orphaned, "two orphans")
        stands = "is in its script (train.py:8), and not in a collective"
        for leftover, other in zip(found, reversed(found), strict=True):
            assert leftover["certainty"] == "doubt"
            assert f"it {stands}" in leftover["doubts"]
            assert any(text.endswith(f"of its job (pid {other['pid']}) {stands}") for text in leftover["doubts"])
            assert leftover["command"] == f"ps -o pid,user,lstart,stat,args -p {leftover['pid']}"


@pytest.mark.thorough
def test_an_orphaned_job_of_which_one_rank_sleeps_goes_on(tmp_path: Path) -> None:
    with own_pids() as host, torchrun(tmp_path, does={1: ("sleep", 1)}, prefix=host.prefix) as job:
        ranks = [job.pid(0), job.pid(1)]
        job.wait_for("rank-1.there")
        kill_launcher(job)
        wait_until(lambda: all(one["age"] > 11 for one in host.leftovers() or [{"age": 0}]), "their age")
        ended = host.ddpdoctor("zombies", "--kill", "--yes")
        assert "sleep_for_good (train.py:" in ended.stdout.replace("\n           ", " ")
        assert "If that shows" not in ended.stdout
        assert all(host.alive(pid) for pid in ranks)
        host.ddpdoctor("check", "--select", "orphaned-rank", "--fix", "--yes")
        assert all(host.alive(pid) for pid in ranks)


@pytest.mark.thorough
def test_a_rank_in_a_shell_that_torchrun_started_is_an_orphan(tmp_path: Path) -> None:
    with own_pids() as host, torchrun(tmp_path, does={0: ("alone", 1)}, prefix=host.prefix, wrapped=True) as job:
        job.wait_for("rank-0.there")
        job.wait_for("rank-1.finishing")
        ranks = [job.pid(0), job.pid(1)]
        kill_launcher(job)
        wait_until(lambda: {leftover["pid"] for leftover in host.leftovers()} == set(ranks), "two orphans")
        for one in host.leftovers():
            assert one["certainty"] == "doubt"
            assert "train.sh (pid" in one["doubts"][0]
            assert "still there" in one["doubts"][0]


def test_ranks_of_several_process_groups_are_as_dead_as_others(tmp_path: Path) -> None:
    """Each group has a loop that wakes up a hundred times a second. Those that no launcher is known of are named."""
    groups = {**RANK_0_KEEPS_THE_STORE, "RUNNING_JOB_GROUPS": "12"}
    with (
        own_pids() as host,
        torchrun(tmp_path, does={0: ("alone", 1)}, prefix=host.prefix, settings=groups, flags=C10D) as job,
        by_hand(tmp_path, does={0: ("alone", 1)}, prefix=[*host.prefix, "setsid", "--fork"], settings=groups) as alone,
    ):
        for one in (job, alone):
            one.wait_for("rank-0.there")
            one.wait_for("rank-1.finishing")
        ranks = [job.pid(0), job.pid(1)]
        kill_launcher(job)
        host.proven(*ranks)
        named = {leftover["pid"]: leftover for leftover in host.leftovers()}
        for pid in (alone.pid(0), alone.pid(1)):
            assert named[pid]["certainty"] == "doubt"
            assert (
                "nothing tells that a launcher had started it: it may have been started by hand" in named[pid]["doubts"]
            )
            assert not any("woke up" in text or "cores" in text for text in named[pid]["doubts"])
        ended = host.ddpdoctor("zombies", "--kill", "--yes", *map(str, ranks))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert not any(host.alive(pid) for pid in ranks)
        assert all(host.alive(pid) for pid in (alone.pid(0), alone.pid(1)))


def test_ranks_that_a_subreaper_adopted_are_named_and_never_ended(tmp_path: Path) -> None:
    """Nothing tells it from a launcher but that it is no torchrun."""
    with own_pids() as host:
        prefix = [*host.prefix, sys.executable, "-c", SUBREAPER]
        with torchrun(
            tmp_path, does={0: ("alone", 1)}, prefix=prefix, settings=RANK_0_KEEPS_THE_STORE, flags=C10D
        ) as job:
            job.wait_for("rank-0.there")
            job.wait_for("rank-1.finishing")
            ranks = [job.pid(0), job.pid(1)]
            before = [host.ddpdoctor(command) for command in ("zombies", "jobs")]
            assert [process.returncode for process in before] == [0, 0], [process.stdout for process in before]
            kill_launcher(job)
            after = host.ddpdoctor("zombies", "--kill", "--yes", "--json")
            assert after.returncode == 1, after.stdout
            told = {leftover["pid"]: leftover for leftover in json.loads(after.stdout)["leftovers"]}
            parent = host.run("ps", "-o", "ppid=", "-p", str(ranks[0])).stdout.strip()
            assert parent != "1"
            for pid in ranks:
                assert told[pid]["certainty"] == "doubt"
                assert f"(pid {parent}), is not known to be an init" in told[pid]["doubts"][0]
            assert all(host.alive(pid) for pid in ranks)
            said = host.ddpdoctor("jobs", "--json")
            overview = json.loads(said.stdout)
            assert (overview["verdict"], said.returncode) == ("fail", 1)
            assert [rank["remarks"] for rank in overview["jobs"][0]["ranks"]] == [["orphaned"]] * 2
            (finding,) = [finding for finding in overview["findings"] if finding["slug"] == "orphaned-rank"]
            assert f"(pid {parent}), is not known to be an init" in finding["evidence"][0]["text"]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_of_a_script_whose_orphans_a_subreaper_adopted(tmp_path: Path, method: str) -> None:
    with own_pids() as host:
        prefix = [*host.prefix, sys.executable, "-c", SUBREAPER]
        with started_by_itself(tmp_path, method=method, does={0: ("alone", 1)}, prefix=prefix) as job:
            job.wait_for("rank-0.there")
            job.wait_for("rank-1.finishing")
            ranks = [job.pid(0), job.pid(1)]
            assert host.ddpdoctor("zombies").returncode == 0
            host.run("kill", "-9", job.wait_for("parent.pid"))
            told = {leftover["pid"]: leftover for leftover in host.leftovers()}
            for pid in ranks:
                assert told[pid]["certainty"] == "doubt"
                assert "is not known to be an init" in told[pid]["doubts"][0]
            assert host.ddpdoctor("jobs").returncode == 1


def test_a_zombie_names_the_parent_that_does_not_collect_it(tmp_path: Path) -> None:
    """The launcher waits for rank 0 alone."""
    with launched(tmp_path, 2) as job:
        rank = job.pid(1)
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: _told(rank) != [], "the zombie in the report")
        (one,) = _told(rank)
        assert one["kind"] == "ended process that nobody collects"
        assert one["certainty"] == "doubt"
        assert f"pid {job.process.pid}" in one["why"]
        refused = ddpdoctor("zombies", "--kill", "--yes", str(rank))
        assert refused.returncode == 1
        assert "Nothing was ended" in refused.stdout
        assert job.process.poll() is None


def _told(pid: int) -> list[dict[str, Any]]:
    found = json.loads(ddpdoctor("zombies", "--json", str(pid)).stdout)["leftovers"]
    return [leftover for leftover in found if leftover["pid"] == pid]


def test_wrong_usage() -> None:
    for words in (["--yes"], ["--dry-run"], ["--kill", "--json"], ["python"], ["--kill", "/etc/passwd"]):
        ended = ddpdoctor("zombies", *words)
        assert ended.returncode == 2, words
        assert ended.stderr
