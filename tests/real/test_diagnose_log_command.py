"""`ddpdoctor diagnose-log`, as it is typed: outcomes, exit codes, pipes, folders, and what can't be read."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.real.test_check_fix import at_a_terminal
from tests.support.command import command, ddpdoctor, plain_environ
from tests.support.fixture_hosts import host_case
from tests.support.free_ports import free_port
from tests.support.report_schema import check_against_schema

SHM = """\
[rank0]: step 100 loss 2.31
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/ada/train.py", line 41, in <module>
[rank1]:     for batch in loader:
[rank1]: RuntimeError: unable to open shared memory object </torch_17> in read-write mode: No space left on device (28)
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:2200
"""
ORDINARY = SHM.replace("RuntimeError: unable to open shared memory object", "KeyError: 'lr', asked for by")
UNKNOWN = SHM.replace(
    "RuntimeError: unable to open shared memory object", "torch.AcceleratorError: CUDA error: new trouble"
)
EFFECTS = SHM.splitlines()[-1] + "\n"
HEALTHY = "[rank0]: step 100 loss 2.31\n[rank0]: saved checkpoint-100\n"
UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
"""Root that may not read everything, like anybody else."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(SHM)
    return path


def told(*arguments: str | Path) -> dict[str, Any]:
    """The JSON, which holds to its schema and agrees with the exit code."""
    ended = ddpdoctor("diagnose-log", *arguments, "--json")
    report = json.loads(ended.stdout)
    check_against_schema(report)
    assert ended.returncode == {"ok": 0, "warn": 1, "fail": 1, "unknown": 2}[report["verdict"]]
    assert isinstance(report, dict)
    return report


@pytest.mark.parametrize(
    ("text", "outcome", "code"),
    [
        (SHM, "illness", 1),
        pytest.param(ORDINARY, "user-error", 1, marks=pytest.mark.thorough),
        (UNKNOWN, "unrecognised", 2),
        (EFFECTS, "effects-only", 2),
        (HEALTHY, "nothing", 0),
    ],
)
def test_each_outcome_has_its_exit_code(text: str, outcome: str, code: int, log: Path) -> None:
    log.write_text(text)
    report = told(log)
    assert report["log"]["outcome"] == outcome
    assert {"ok": 0, "fail": 1, "unknown": 2}[report["verdict"]] == code


def test_the_report_names_rank_cause_line_and_command(log: Path) -> None:
    ended = ddpdoctor("diagnose-log", log, environ={"COLUMNS": "400"})
    assert ended.returncode == 1
    assert ended.stderr == ""
    assert ended.stdout.startswith("FAIL  Rank 1 failed first: shared memory has too little room")
    for words in (f"{log}:5, rank 1", "[shm-too-small]", "ddpdoctor check --select shm-too-small"):
        assert words in ended.stdout
    assert "\x1b" not in ended.stdout, "no colours without a terminal"


def test_compressed_and_through_a_pipe_it_is_the_same(tmp_path: Path) -> None:
    packed = tmp_path / "run.log.gz"
    packed.write_bytes(gzip.compress(SHM.encode()))
    with packed.open("rb") as file:
        ended = subprocess.run(
            command("diagnose-log", "-", "-q"), env=plain_environ(), stdin=file, capture_output=True, text=True
        )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.startswith("FAIL  shm-too-small: Rank 1 failed first")


def test_the_folder_that_a_real_torchrun_wrote(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    {}['lr']\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ran = subprocess.run(
        [*torchrun, "--redirects=3", f"--log-dir={tmp_path / 'logs'}", script],
        env=plain_environ(),
        capture_output=True,
        timeout=120,
    )
    assert ran.returncode == 1
    (tmp_path / "logs" / "console.log").write_bytes(ran.stderr)
    (tmp_path / "logs" / "model.pt").write_bytes(bytes(range(256)) * 64)
    report = told(tmp_path / "logs")
    assert report["log"]["outcome"] == "user-error"
    assert report["log"]["rank"] == 1
    assert report["log"]["exception"]["own"]["path"] == str(script)
    assert not [file for file in report["log"]["files"] if file["name"].endswith("model.pt")]


def test_the_suspicion_is_held_against_a_snapshot_and_against_this_host(log: Path, tmp_path: Path) -> None:
    import msgspec

    saved = tmp_path / "host.json"
    sick = host_case("shm-too-small/sick-docker-default").snapshot()
    saved.write_bytes(msgspec.json.encode(sick))
    assert told(log, "--snapshot", saved)["log"]["suspects"][0]["held"] == "confirmed"
    here = told(log, "--here")
    assert here["host"] == os.uname().nodename
    assert here["log"]["suspects"][0]["held"] in ("confirmed", "not-confirmed", "not-tested")


@pytest.mark.parametrize(("named_is_taken", "held"), [(True, "confirmed"), (False, "not-confirmed")])
def test_this_host_is_asked_for_the_port_that_the_log_names_and_not_for_the_shells(
    named_is_taken: bool, held: str, tmp_path: Path
) -> None:
    listen = "import socket; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", listen], stdin=PIPE, stdout=PIPE, text=True) as holder:
        assert holder.stdout
        port, free = int(holder.stdout.readline()), free_port()
        named, shells = (port, free) if named_is_taken else (free, port)
        said = tmp_path / "run.log"
        said.write_text(
            "RuntimeError: The server socket has failed to listen on any local network address."
            f" port: {named}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
        )
        environ = {**plain_environ(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(shells)}
        (suspect,) = json.loads(ddpdoctor("diagnose-log", "--json", "--here", str(said), environ=environ).stdout)[
            "log"
        ]["suspects"]
    assert suspect["held"] == held, suspect["held_words"]
    assert str(named) in suspect["held_words"]
    assert str(shells) not in suspect["held_words"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.mkdir(), "there is no log in this folder"),
        (lambda path: path.touch(), "there is nothing in it"),
        (lambda path: shutil.copy(sys.executable, path), "this is no text, and so no log"),
    ],
    ids=["missing", "empty folder", "empty", "binary"],
)
def test_what_can_not_be_read_is_said_in_a_sentence(make: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "what"
    make(path)
    ended = ddpdoctor("diagnose-log", path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"{path}: {words}\n"


@pytest.mark.tool("setpriv")
def test_one_file_that_may_not_be_read_makes_all_well_uncertain(log: Path, tmp_path: Path) -> None:
    log.write_text(HEALTHY)
    closed = tmp_path / "closed.log"
    closed.write_text(SHM)
    closed.chmod(0)
    ended = subprocess.run(
        [*UNPRIVILEGED, *command("diagnose-log", log, closed)],
        env=plain_environ() | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stdout.startswith("UNKNOWN  What could be read speaks of no failure\n")
    assert f"{closed}: Permission denied" in ended.stdout


def test_a_snapshot_that_can_not_be_read_is_told_before_the_log_is(tmp_path: Path) -> None:
    ended = ddpdoctor("diagnose-log", tmp_path / "none.log", "--snapshot", tmp_path / "none.json")
    assert ended.returncode == 2
    assert ended.stderr == f"{tmp_path / 'none.json'}: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-v", "-q", "run.log"], "exclude each other"),
        (["--here", "--snapshot", "a.json", "run.log"], "--here looks at this host"),
        (["-", "-"], "can be read once only"),
        ([""], "is the variable in it set?"),
        pytest.param(["--python", "python3", "run.log"], "--python is for --here", marks=pytest.mark.thorough),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], words: str) -> None:
    ended = ddpdoctor("diagnose-log", *arguments, environ={"COLUMNS": "160"})
    assert ended.returncode == 2
    assert words in ended.stderr


def test_a_closed_pipe_ends_it_quietly(log: Path) -> None:
    started = subprocess.Popen(
        command("diagnose-log", log), env=plain_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    assert started.stderr.read() == b""
    assert started.wait(60) == 141


def test_at_a_terminal_it_says_what_it_waits_for_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    with at_a_terminal("diagnose-log", "-", folder=tmp_path) as user:
        user.until("Waiting for a log on standard input")
        user.process.send_signal(signal.SIGINT)
        assert user.end() == 130
    assert "Stopped while the log was read; no verdict." in user.shown


def test_a_log_that_is_pasted(tmp_path: Path) -> None:
    with at_a_terminal("diagnose-log", "-", "-q", folder=tmp_path) as user:
        user.until("Waiting for a log on standard input")
        user.type(SHM)
        user.type("\x04")
        assert user.end() == 1
    assert "shm-too-small" in user.shown
