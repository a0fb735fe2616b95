"""`watch` on real gloo jobs: it says once that one has stopped, who lags, that it goes on, and that it has ended; and nothing of healthy ones."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.real.test_hang_command import A_FOREIGN_USER
from tests.support.command import command, ddpdoctor, plain_environ
from tests.support.free_ports import free_port
from tests.support.other_users import User, python_for_all, shared_folder
from tests.support.ras_server import write_library
from tests.support.running_jobs import by_hand, wait_until
from tests.support.watched_jobs import ALARM, FAULTS, play, training, wait_for, watch

CONFIRM = 6


def lines_with(text: str, output: Path) -> list[str]:
    return [line for line in output.read_text().splitlines() if text in line]


@pytest.mark.timeout(600)
def test_a_job_that_stops_and_goes_on(tmp_path: Path) -> None:
    job_folder, evidence, output = tmp_path / "job", tmp_path / "evidence", tmp_path / "watched"
    metrics = tmp_path / "watch.prom"
    # Of steps enough behind it, since a look comes once a second, and on a busy machine more seldom.
    wish = {"fault": "polls for a file", "step": 0.05, "fault_at": 40, "steps": 400}
    with training(job_folder, wish) as job:
        told = tmp_path / "told"
        watching = watch(
            job.pid, "--confirm", str(CONFIRM), "--every", "1", "--evidence", str(evidence), "--prometheus", str(metrics),
            "--on-hang", f'env | grep ^DDPDOCTOR_ > {told}.new; mv {told}.new {told}; exit 3', output=output,
        )  # fmt: skip
        try:
            wait_for(job_folder / "fault", job)
            assert lines_with(ALARM, output) == []
            wait_until(lambda: lines_with(ALARM, output), lambda: f"the alarm: {output.read_text()}", 300.0)
            wait_until(lambda: 'hangs{job="' in metrics.read_text() and "} 1.0" in metrics.read_text(), "metrics")
            (job_folder / "go").touch()
            wait_until(lambda: lines_with("moves again", output), "moves again")
            assert watching.wait(200) == 1
        finally:
            watching.kill()
            watching.wait()
    [alarm] = lines_with(ALARM, output)
    assert "rank 1 sleeps in until_told (watched_training.py" in alarm
    assert len(lines_with("moves again", output)) == len(lines_with("has ended", output)) == 1
    assert lines_with("the command of --on-hang ended with exit code 3", output)
    [folder] = evidence.iterdir()
    settings = dict(line.split("=", 1) for line in told.read_text().splitlines())
    assert settings["DDPDOCTOR_JOB"] == str(job.pid)
    assert settings["DDPDOCTOR_RANKS"] == "1"
    assert settings["DDPDOCTOR_EVIDENCE"] == str(folder)
    assert len(settings["DDPDOCTOR_PIDS"].split()) == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    report = json.loads((folder / "report.json").read_text())
    assert [finding["rank"] for finding in report["findings"]] == [1]
    assert report["hang"]["between"] >= CONFIRM / 2
    assert "rank 1 sleeps in until\\_told" in (folder / "report.md").read_text()
    assert "until_told" in (folder / "stacks.txt").read_text()
    assert json.loads((folder / "seen.json").read_text())["looks"]
    families = {family.name: family.samples for family in text_string_to_metric_families(metrics.read_text())}
    assert [sample.value for sample in families["ddpdoctor_watch_alarms"]] == [1.0]


def check_fault(name: str, folder: Path, confirm: float) -> None:
    played = play(name, folder, confirm, 1.0)
    assert played.is_named, (played, FAULTS[name])
    assert played.is_in_time, played


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_two_faults(tmp_path: Path) -> None:
    names = ("stopped", "worker reads a pipe")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: check_fault(name, tmp_path, CONFIRM), names))


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault(name: str, tmp_path: Path) -> None:
    check_fault(name, tmp_path, 12.0)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_long_evaluation_is_no_hang(tmp_path: Path) -> None:
    wish = {"step": 0.05, "pause": "evaluation", "pause_every": 5, "pause_seconds": 40}
    with training(tmp_path / "job", wish) as job:
        output = tmp_path / "watched"
        options = ("--confirm", "10", "--every", "1", "-v", "--evidence", str(tmp_path / "evidence"))
        watching = watch(job.pid, *options, output=output)
        wait_until(lambda: lines_with("rank 0 holds the others up", output), "the pause")
        time.sleep(60)
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(30) == 143
    assert lines_with(ALARM, output) == []


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_of_all_jobs_the_one_that_stops_is_named(tmp_path: Path) -> None:
    output = tmp_path / "watched"
    fault = {"fault": "sleep", "step": 0.05, "fault_at": 40}
    with training(tmp_path / "healthy", {"step": 0.05}) as healthy, training(tmp_path / "ill", fault) as ill:
        wait_for(tmp_path / "ill" / "fault", ill)
        watching = watch(
            "--all", "--confirm", "10", "--every", "1", "--evidence", str(tmp_path / "evidence"), output=output
        )
        wait_until(lambda: lines_with(f"Job {ill.pid}{ALARM}", output), "the alarm", 300.0)
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(60) == 143
        assert healthy.poll() is None
    [alarm] = lines_with(f"Job {ill.pid}{ALARM}", output)
    assert "rank 1 stands in fault_of_one" in alarm
    assert lines_with(f"Watching job {healthy.pid} ", output)
    assert lines_with(f"Job {healthy.pid}{ALARM}", output) == []


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_nccls_ras_is_asked_and_keeps_no_alarm_away(tmp_path: Path) -> None:
    """Four watches over one job, one after the other. Each asks twice: the first gets counts both times, the others an answer in neither
    way, as JSON nor as text."""
    library = write_library(tmp_path, "2.29.3")
    cases = ["behind"] * 2 + ["garbage"] * 2 + ["refuses"] * 2 + ["silent"]
    wish = {"fault": "sleep", "step": 0.05, "fault_at": 40, "ras": [str(library), *cases]}
    told = []
    with training(tmp_path / "job", wish, NCCL_RAS_ADDR=f"localhost:{free_port()}") as job:
        wait_for(tmp_path / "job" / "fault", job)
        for number in range(4):
            output, evidence = tmp_path / f"watched-{number}", tmp_path / f"evidence-{number}"
            options = ("--confirm", str(CONFIRM), "--every", "1", "--evidence", str(evidence), "--ras")
            watching = watch(job.pid, *options, output=output)
            wait_until(partial(lines_with, ALARM, output), "the alarm", 300.0)
            watching.terminate()
            watching.wait()
            [alarm] = lines_with(ALARM, output)
            assert "rank 1 stands in fault_of_one" in alarm
            [folder] = evidence.iterdir()
            told.append(((folder / "report.md").read_text(), json.loads((folder / "report.json").read_text())["hang"]))
    (report, behind), *failed = told
    assert [count["second"] for count in behind["counts"]] == [[["AllReduce", n], ["Broadcast", 2]] for n in (100, 99)]
    assert "2 counts of operations, asked twice" in report
    assert "rank 0 called AllReduce, rank 1 did not (NCCL's RAS)" in report
    for (report, seen), why in zip(
        failed, ("isn't the JSON that RAS writes", "ERROR: Unknown command", "says nothing"), strict=True
    ):
        assert seen["counts"] == []
        assert why in seen["ras"]
        assert why in report


def test_another_users_job_is_refused(tmp_path: Path) -> None:
    with by_hand(tmp_path, real=False) as job:
        evidence = tmp_path / "evidence"
        evidence.mkdir(mode=0o777)
        evidence.chmod(0o777)
        line = [*A_FOREIGN_USER, *command("watch", str(job.pid(0)), "--evidence", str(evidence))]
        ran = subprocess.run(line, env=plain_environ(), capture_output=True, text=True, timeout=90, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"pid {job.pid(0)} belongs to ")
    assert ran.stderr.strip().endswith(f"sudo {sys.executable} -I -m ddpdoctor watch {job.pid(0)}")


@pytest.mark.root
def test_root_watches_another_users_job(ada: User, tmp_path: Path) -> None:
    """Nothing of hers is run with root's rights: not what her environment names, nor what lies where she works."""
    python, _ = python_for_all()
    with shared_folder() as folder:
        trap, work = folder / "trap", folder / "work"
        work.mkdir()
        os.chown(work, ada.uid, ada.gid)
        for name in ("py-spy", "sh", "python3"):
            program = work / name
            program.write_text(f"#!/bin/sh\nid -u >> {trap}\n")
            program.chmod(0o755)
        (work / "sitecustomize.py").write_text(f"import os; open({str(trap)!r}, 'a').write(str(os.getuid()))")
        script = work / "train.py"
        script.write_text("import time\ntime.sleep(100_000)\n")
        environ = {
            "PATH": f"{work}:/usr/bin:/bin", "HOME": str(ada.home), "LD_PRELOAD": str(work / "evil.so"),
            "TORCH_FR_DUMP_TEMP_FILE": "/etc/shadow", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29503", "WORLD_SIZE": "2",
        }  # fmt: skip
        ranks = [
            subprocess.Popen(
                [python, "-I", str(script)], cwd=work, user=ada.uid, group=ada.gid, extra_groups=[], stderr=subprocess.DEVNULL,
                env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            evidence = tmp_path / "evidence"
            output = tmp_path / "watched"
            watching = watch(ranks[0].pid, "--confirm", "5", "--every", "1", "--evidence", str(evidence), output=output)
            try:
                wait_until(lambda: lines_with(ALARM, output), lambda: f"the alarm: {output.read_text()}", 300.0)
            finally:
                watching.terminate()
                watching.wait()
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        assert not trap.exists()
    [written] = evidence.iterdir()
    assert written.stat().st_uid == 0
    assert not any(re.search(r"root:[^:]*:\d+:", file.read_text()) for file in written.iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "which job? Name one by a pid, or --all"),
        (("4711", "--all"), "--all watches every job"),
        (("4711", "--confirm", "20", "--every", "10"), "5 looks must fit in it"),
        (("4711", "--prometheus", "metrics.txt"), "names end in .prom"),
        (("4711", "--on-hang", " "), "--on-hang is empty"),
        (("999999999",), "pid 999999999 is part of no training job"),
        (("abc",), "'abc' is no pid"),
    ],
)
def test_what_it_refuses(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    ended = ddpdoctor("watch", *arguments, environ={"XDG_STATE_HOME": str(tmp_path / "state")})
    assert ended.returncode == 2
    assert says in " ".join(ended.stderr.replace("│", " ").split())
    assert "Traceback" not in ended.stderr


def test_evidence_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = ddpdoctor("watch", "--all", "--evidence", tmp_path / "file")
    assert ended.returncode == 2
    assert "no evidence can be written" in " ".join(ended.stderr.replace("│", " ").split())
