"""`ddpdoctor run` where the command has ended and what it started goes on: it is named, and writes into no report."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.command import command, plain_environ
from tests.support.running_jobs import RunningJob, launched, torchrun, wait_until
from tests.support.watched_runs import ended, run, written

RANK = """
import os, sys, time
from pathlib import Path
if "daemon" in sys.argv:
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
Path(".pid").write_text(str(os.getpid()))
Path(".pid").rename("pid")
step = 0
while not os.path.exists("stop"):
    with open("step", "w") as file:
        file.write(str(step))
    if "silent" not in sys.argv:
        os.write(1, b"step %d\\n" % step)
    step += 1
    time.sleep(0.01)
"""
WAIT = "until [ -e pid ]; do sleep 0.05; done; "
"""Until the rank is there, whatever it is started by."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With a train.py; what was left running is ended with the test."""
    (tmp_path / "train.py").write_text(RANK)
    yield tmp_path
    (tmp_path / "stop").touch()
    with suppress(FileNotFoundError):
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: ended(pid), "the rank's end")


def rank(*arguments: str) -> str:
    """For a shell."""
    return shlex.join([sys.executable, "train.py", *arguments])


def step_done(folder: Path) -> int:
    return int(written(folder / "step"))


def goes_on(folder: Path) -> None:
    """The rank does a step more."""
    before = step_done(folder)
    wait_until(lambda: int((folder / "step").read_text() or 0) > before, "its next step")


def with_its_end(line: list[str], folder: Path, where: str) -> tuple[int, Path]:
    """Our exit code, and the file that holds all that was said: that was given to us itself, or through a pipe."""
    said = folder / "said"
    with said.open("wb") as file:
        if where == "file":
            code = subprocess.run(
                line, env=plain_environ(), cwd=folder, stdout=file, stderr=file, check=False
            ).returncode
            return code, said
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as reader:
            assert reader.stdin
            code = subprocess.run(
                line, env=plain_environ(), cwd=folder, stdout=reader.stdin, stderr=reader.stdin, check=False
            ).returncode
            goes_on(folder)
            (folder / "stop").touch()
            reader.stdin.close()
        return code, said


@pytest.mark.parametrize("where", ["file", "pipe"])
def test_a_rank_that_goes_on_is_named_and_writes_into_no_report(folder: Path, where: str) -> None:
    """It prints all the time, so that there is never a silence in which to end."""
    line = run("bash", "-c", f"{rank()} & {WAIT} echo 'ValueError: no such split'; exit 3")
    code, file = with_its_end(line, folder, where)
    pid = written(folder / "pid")
    said = file.read_text()
    report = re.search(r"^ddpdoctor: bash ended .*^  ddpdoctor zombies\n", said, re.MULTILINE | re.DOTALL)
    assert report, said
    assert code == 3
    assert "step" not in report[0]
    assert "ddpdoctor: bash has ended, and 1 process that it started goes on:\n" in report[0]
    assert f"  pid {pid}: {rank()}\n      holds this output" in report[0]
    assert f"\n  kill {pid}\n" in report[0]
    before, behind = said[: report.start()], said[report.end() :]
    assert "ValueError: no such split" in before
    assert "step" in before
    if where == "pipe":
        assert "step" in behind
    # No line of the rank's is lost by that.
    steps = [int(one) for one in re.findall(r"^step (\d+)$", before + behind, re.MULTILINE)]
    assert steps[:-1] == list(range(len(steps) - 1))


@pytest.mark.parametrize(
    "start", ["nohup {} silent > out 2>&1 &", "{} daemon silent > out 2>&1; ", "setsid {} silent > out 2>&1 &"]
)
def test_however_it_has_cut_itself_off(folder: Path, start: str) -> None:
    code, said = run_here(run("bash", "-c", f"{start.format(rank())} {WAIT} exit 1"), folder)
    pid = int(written(folder / "pid"))
    assert code == 1
    assert f"\n  pid {pid}: " in said
    assert "holds" not in said
    goes_on(folder)
    # The command as it is printed.
    (kill,) = [line for line in said.splitlines() if line.startswith("  kill ")]
    subprocess.run(["sh", "-c", kill], check=True)
    wait_until(lambda: ended(pid), "its end")


def run_here(line: list[str], folder: Path, **settings: str) -> tuple[int, str]:
    """Exit code, and what was said to standard error by then: who goes on may keep it open."""
    with (folder / "stderr").open("wb") as file:
        environ = plain_environ() | settings
        done = subprocess.run(line, env=environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=file, check=False)
    return done.returncode, (folder / "stderr").read_text()


def launcher_of(job: RunningJob) -> int:
    """Whose child rank 0 is."""
    return int(Path(f"/proc/{job.pid(0)}/stat").read_text().rpartition(")")[2].split()[1])


def test_ranks_whose_launcher_was_killed(tmp_path: Path) -> None:
    with launched(tmp_path, 2, prefix=command("run", "--")) as job:
        pids = [job.pid(0), job.pid(1)]
        os.kill(launcher_of(job), signal.SIGKILL)
        assert job.process.wait(90) == -signal.SIGKILL
        said = job.output()
    assert "2 processes that it started go on:" in said
    for number, pid in enumerate(pids):
        assert f"  pid {pid}, rank {number}: " in said
    assert f"\n  kill {min(pids)} {max(pids)}\n" in said


@pytest.mark.slow
def test_what_real_ranks_hold_is_told(tmp_path: Path) -> None:
    with torchrun(tmp_path, does={1: ("sleep", 2)}, prefix=command("run", "--")) as job:
        job.wait_for("rank-1.there")
        pids = [job.pid(0), job.pid(1)]
        os.kill(launcher_of(job), signal.SIGKILL)
        assert job.process.wait(90) == -signal.SIGKILL
        said = job.output()
    for number, pid in enumerate(pids):
        assert re.search(rf"  pid {pid}, rank {number}: .*\n      holds ports? \d+.* and this output", said), said


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("sleep 600 & echo $! > pid", {}),
        (f"{rank('silent')} & {WAIT}", {}),
        (f"{rank('silent')} & {WAIT}", {"RANK": "0", "WORLD_SIZE": "1"}),
    ],
    ids=["no Python", "a service", "a service in a job's shell"],
)
def test_what_a_command_that_went_well_leaves_on_purpose_is_not_named(
    folder: Path, text: str, settings: dict[str, str]
) -> None:
    found = run_here(run("bash", "-c", text), folder, **settings)
    os.kill(int(written(folder / "pid")), signal.SIGKILL)
    assert found == (0, "")


def test_a_rank_that_a_command_leaves_is_named_though_it_went_well(folder: Path) -> None:
    line = run("bash", "-c", f"RANK=5 WORLD_SIZE=8 {rank('silent')} & {WAIT}")
    code, said = run_here(line, folder)
    assert code == 0
    assert f"  pid {written(folder / 'pid')}, rank 5: " in said
    assert said.startswith("ddpdoctor: bash has ended, and 1 process that it started goes on:\n")


def test_one_that_ends_by_itself_is_waited_for_and_not_named(folder: Path) -> None:
    text = (
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nparent = os.getppid()\nopen('there', 'x').close()\n"
    )
    (folder / "late.py").write_text(f"{text}while os.getppid() == parent: time.sleep(0.01)\nprint('late')\n")
    script = f"{shlex.join([sys.executable, '-u', 'late.py'])} & until [ -e there ]; do sleep 0.05; done; exit 1"
    done = subprocess.run(
        run("bash", "-c", script), env=plain_environ(), cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout == "late\n"
    assert "goes on" not in done.stderr


@pytest.mark.parametrize("leftover", ["yes", "yes | head -c 100000000 | cat"])
def test_one_that_never_stops_talking_does_not_hold_us(tmp_path: Path, leftover: str) -> None:
    """All that the command itself has said is there, though."""
    line = run("bash", "-c", f"{leftover} & for i in $(seq 2000); do echo line $i; done; echo $! > pid; exit 1")
    with subprocess.Popen(
        line, env=plain_environ(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as one:
        assert one.stdout
        assert one.stderr
        with reads(one.stdout.fileno()) as heard:
            assert one.wait(60) == 1
            with suppress(ProcessLookupError):
                os.kill(int(written(tmp_path / "pid")), signal.SIGKILL)
            report = one.stderr.read()
    assert b"line 2000\n" in heard
    assert b"ended with exit code 1" in report


@contextmanager
def reads(descriptor: int) -> Iterator[bytearray]:
    """All that comes there, until its end."""
    heard = bytearray()

    def read() -> None:
        while data := os.read(descriptor, 1 << 20):
            heard.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    yield heard
    reader.join()


def test_one_of_many_says_it_in_a_line(folder: Path) -> None:
    environ = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "3", "SLURM_NTASKS": "8"}
    _, shown = run_here(run("bash", "-c", f"{rank('silent')} & {WAIT} exit 1"), folder, **environ)
    pid = written(folder / "pid")
    said = rf"ddpdoctor, task 3 on \S+: bash has ended, and 1 process that it started goes on \(pid {pid}\); to end it: kill {pid}"
    assert re.fullmatch(said, shown.splitlines()[-1])
