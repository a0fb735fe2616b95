"""What `import ddpdoctor` gives a program: the commands' own results, nothing printed, nothing of the program's changed."""

from __future__ import annotations

import json
import logging
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import ddpdoctor
from ddpdoctor.base.error_lines import remark
from tests.support.checkpoints import on, save
from tests.support.command import command, plain_environ
from tests.support.command import ddpdoctor as run_command
from tests.support.free_ports import free_port
from tests.support.running_jobs import wait_until


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "host.json"
    assert run_command("snapshot", "--quick", "-o", path).returncode == 0
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n'
        "    import torch\n"
        "ModuleNotFoundError: No module named 'torch'\n"
    )
    return path


def told(*arguments: str | Path) -> tuple[object, int]:
    """The command's JSON and its exit code."""
    ended = run_command(*arguments, "--json")
    return json.loads(ended.stdout), ended.returncode


def test_a_snapshot_is_judged_as_the_command_judges_it(snapshot: Path) -> None:
    result = ddpdoctor.check(snapshots=[str(snapshot)], nproc=2)
    assert (json.loads(result.to_json()), result.exit_code()) == told("check", "--snapshot", snapshot, "--nproc", "2")
    assert result.findings == result.report().findings
    assert result.to_markdown() == run_command("check", "--snapshot", snapshot, "--nproc", "2", "--markdown").stdout


def test_a_log_is_judged_as_the_command_judges_it(log: Path) -> None:
    result = ddpdoctor.diagnose_log([log])
    assert (json.loads(result.to_json()), result.exit_code()) == told("diagnose-log", log)
    assert result.to_markdown() == run_command("diagnose-log", log, "--markdown").stdout
    assert "ModuleNotFoundError" in result.to_text()


def test_a_checkpoint_is_fixed_as_the_command_fixes_it(pinned_checkpoint: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt"
    shutil.copy(pinned_checkpoint, other)
    would = ddpdoctor.fix_checkpoint([pinned_checkpoint], dry_run=True)
    assert (would.exit_code(), would.outcomes[0].action.value) == (1, "would-fix")
    result = ddpdoctor.fix_checkpoint([pinned_checkpoint])
    assert run_command("fix-checkpoint", other).returncode == result.exit_code() == 0
    assert pinned_checkpoint.read_bytes() == other.read_bytes()
    assert ddpdoctor.fix_checkpoint([pinned_checkpoint], undo=True).outcomes[0].action.value == "undone"
    assert pinned_checkpoint.read_bytes() != other.read_bytes()


def test_a_snapshot_is_taken_and_judged_as_the_commands_do(tmp_path: Path) -> None:
    taken = ddpdoctor.snapshot(quick=True)
    taken.write(tmp_path / "host.json")
    assert json.loads(taken.to_json()) == json.loads((tmp_path / "host.json").read_text())
    assert ddpdoctor.check(snapshots=[str(tmp_path / "host.json")]).report().host == taken.facts.host


def test_a_look_at_leftovers_is_that_of_the_command_and_nothing_is_ended() -> None:
    asleep = subprocess.Popen(["sleep", "60"])
    try:
        result = ddpdoctor.zombies([asleep.pid])
        assert (result.exit_code(), result.endings) == (told("zombies", str(asleep.pid))[1], None)
        killed = ddpdoctor.zombies([asleep.pid], kill=True, confirm=lambda result: pytest.fail("nothing is proven"))
        assert killed.endings is None
        assert asleep.poll() is None
    finally:
        asleep.kill()
        asleep.wait()
    assert f"{asleep.pid}: " in result.to_text()
    with pytest.raises(ddpdoctor.UsageError, match=r"'train\.py' is neither a pid nor a path in /dev/shm"):
        ddpdoctor.zombies(["train.py"])


@pytest.fixture
def pinned_checkpoint(tmp_path: Path) -> Path:
    """A real one, as rank 3 would have saved it."""
    return save({"weight": torch.ones(4)}, tmp_path / "pinned.pt", on("cuda:3"))


def adopted_sleep() -> int:
    """Start a process that is no descendant of these tests': what a rank has started is of its job, and a Python in
    which a test made a process group keeps that group's threads to its end, and counts as a rank."""
    started = subprocess.run(["sh", "-c", "sleep 60 >&- 2>&- & echo $!"], stdout=subprocess.PIPE, check=True)
    return int(started.stdout)


def test_what_can_not_be_meant_is_refused_and_what_is_not_there_is_named() -> None:
    with pytest.raises(ddpdoctor.UsageError, match="no check and no family called 'nix'"):
        ddpdoctor.check(select=["nix"])
    with pytest.raises(ddpdoctor.UsageError, match="--python is empty"):
        ddpdoctor.check(" ")
    with pytest.raises(ddpdoctor.UsageError, match="--seconds is for --hang"):
        ddpdoctor.jobs(seconds=3)
    with pytest.raises(ddpdoctor.UsageError, match="no log is named"):
        ddpdoctor.diagnose_log([])
    with pytest.raises(ddpdoctor.UsageError, match=r"so it needs a new file$"):
        ddpdoctor.fix_checkpoint(["a.pt"], params_only=True)
    asleep = adopted_sleep()
    try:
        with pytest.raises(ddpdoctor.NoVerdictError, match=r"(to|part of) no training job") as refused:
            ddpdoctor.jobs(asleep)
    finally:
        os.kill(asleep, signal.SIGKILL)
    assert refused.value.report().verdict.value == "unknown"
    with pytest.raises(ddpdoctor.UsageError, match="--wait is from 1 to 86400 seconds, not 0"):
        ddpdoctor.netcheck("127.0.0.1", wait=0)
    with pytest.raises(ddpdoctor.UsageError, match="--backend is nccl, gloo or auto, not mpi"):
        ddpdoctor.smoke(backend="mpi")
    with pytest.raises(ddpdoctor.NoVerdictError, match="No such file"):
        ddpdoctor.diagnose_log(["/no/such/file"])


PROGRAM = """
import signal, sys, time, ddpdoctor
assert not {"torch", "typer", "rich", "msgspec"} & set(sys.modules), "loaded too early"
signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
for result in (ddpdoctor.check(quick=True), ddpdoctor.jobs(), ddpdoctor.diagnose_log([sys.argv[1]])):
    result.to_json(), result.to_text(), result.to_markdown(), result.exit_code()
from ddpdoctor.base.status_line import StatusLine
line = StatusLine(lambda seconds: "busy", delay=0.01)
time.sleep(0.3)
line.close()
assert signals == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
assert not {"torch", "typer"} & set(sys.modules), "loaded"
"""


def test_a_program_at_a_terminal_keeps_it_and_its_signals(log: Path) -> None:
    ours, theirs = pty.openpty()
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log)],
        env=plain_environ() | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        timeout=60,
        check=False,
    )
    os.write(theirs, b"end")
    assert (os.read(ours, 65536).decode(), ended.returncode) == ("end", 0)


TRAINING = """
import signal, sys, ddpdoctor
signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
trained = ddpdoctor.smoke(nproc=2, backend="gloo", stages=["barrier"])
met = ddpdoctor.netcheck("127.0.0.1", master_port=int(sys.argv[1]), nnodes=2, node_rank=0, token="not-for-others", wait=1, quick=True)
assert signals == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
assert not {"torch", "typer"} & set(sys.modules), "loaded"
assert trained.verdict.value == "ok" and trained.exit_code() == 0, trained.to_text()
assert met.verdict.value == "fail" and [node.rank for node in met.report().absent] == [1], met.to_text()
assert "not-for-others" in met.to_text() and "not-for-others" not in met.to_markdown() + met.to_json()
assert "barrier" in trained.to_markdown()
"""


def test_a_program_trains_and_meets_others_and_says_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TRAINING, str(free_port())],
        env=plain_environ() | {"VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)


INTERRUPTED = """
import ddpdoctor
try:
    ddpdoctor.smoke(nproc=2, backend="gloo")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_in_a_program_that_trains_is_its_own_and_ends_the_ranks() -> None:
    mark = f"DDPDOCTOR_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    fault = json.dumps({"rank": 1, "stage": "barrier", "kind": "sleep"})
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        env=plain_environ() | {"VIRTUAL_ENV": sys.prefix, "DDPDOCTOR_SMOKE_FAULT": fault, name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The program, the keeper of the ranks, their launcher, and the ranks.
    wait_until(lambda: len(marked(mark)) >= 5, "the ranks")
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=30) == ("interrupted\n", "")
    wait_until(lambda: not marked(mark), "the end of the ranks")


def marked(mark: str) -> list[int]:
    """The processes with that setting."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def test_remarks_go_to_the_logger(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.WARNING, "ddpdoctor"):
        remark("somebody should know")
    assert [record.message for record in caplog.records] == ["somebody should know"]
    assert capfd.readouterr() == ("", "")


def test_names_that_are_not_there_are_no_attributes() -> None:
    assert {"check", "netcheck", "smoke", "jobs", "diagnose_log", "fix_checkpoint", "CommandResult"} <= set(
        dir(ddpdoctor)
    )
    with pytest.raises(AttributeError, match="has no attribute 'chekc'"):
        ddpdoctor.chekc  # noqa: B018


@pytest.mark.parametrize("line", [["jobs"], ["check", "--quick"]])
def test_one_form_at_a_time(line: list[str]) -> None:
    ended = subprocess.run(
        command(*line, "--json", "--markdown"), env=plain_environ(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "--json and --markdown exclude each other" in ended.stderr
