"""`ddpdoctor smoke` as a user runs it: its exit codes, its JSON, wrong usage, and signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ddpdoctor.api import training
from ddpdoctor.base.signals import StoppedBySignal
from ddpdoctor.cli import smoke as command_module
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.smoke import RankEnding, Smoke
from ddpdoctor.smoke_training.local import training as conducting
from tests.support.command import command, ddpdoctor, plain_environ
from tests.support.nvml import FakeNvidia
from tests.support.report_schema import check_against_schema
from tests.support.smokes import examined_smoke, rank_run, smoke_of_ranks

SHORT = ("--stages", "barrier,all_reduce")


def fault(rank: int, stage: str, kind: str) -> dict[str, str]:
    return {"DDPDOCTOR_SMOKE_FAULT": json.dumps({"rank": rank, "stage": stage, "kind": kind})}


MARK = f"DDPDOCTOR_TEST={os.getpid()}-{time.time()}"
"""In the environment of all that is started here."""
ENVIRON = dict([MARK.split("=", 1)])


def ours() -> dict[int, str]:
    """Process to command line, of all that runs with the mark."""
    found = {}
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and MARK.encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def smoke(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return ddpdoctor("smoke", *arguments, environ=ENVIRON | (environ or {}))


def test_a_healthy_run_of_two_ranks() -> None:
    done = smoke("--nproc", "2", "--json", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    check_against_schema(told)
    assert told["command"] == "smoke"
    assert told["verdict"] == "ok"
    facts = told["smoke"]
    assert [rank["ending"] for rank in facts["ranks"]] == ["finished", "finished"]
    assert facts["backend"] == "gloo"
    assert facts["chosen"].startswith("2 ranks on CPU over gloo")
    states = {(stage["name"], stage["state"]) for rank in facts["ranks"] for stage in rank["stages"]}
    assert {state for _, state in states} <= {"passed", "not tested"}
    assert {("training", "passed"), ("shutdown", "passed")} <= states
    assert [snapshot["smoke"]["world_size"] for snapshot in told["facts"].values()] == [2]


def test_a_rank_that_raises_is_named_and_the_host_is_looked_at() -> None:
    done = smoke("--nproc", "2", *SHORT, environ=fault(1, "all_reduce", "raise"))
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    headline = done.stdout.partition("\n\n")[0]
    assert headline.startswith("FAIL  ")
    assert "all_reduce" in headline
    assert "rank 1" in headline
    assert any(re.match(r"  all_reduce +… ✗ ", line) for line in lines), done.stdout
    assert "What `ddpdoctor check` finds on this host" in lines
    assert lines[-1].startswith(("FAIL  ", "More on the first: "))
    assert not ours()


def test_the_same_as_json_tells_rank_stage_and_the_host_s_findings() -> None:
    done = smoke("--nproc", "2", *SHORT, "--json", environ=fault(0, "barrier", "exit"))
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    check_against_schema(told)
    assert told["verdict"] == "fail"
    first = told["smoke"]["ranks"][0]
    assert first["ending"] == "exited"
    assert {stage["name"]: stage["state"] for stage in first["stages"]}["barrier"] == "failed"
    assert told["smoke"]["stages"] == [
        "import",
        "device",
        "rendezvous",
        "process group",
        "barrier",
        "all_reduce",
        "shutdown",
    ]
    # The whole check was run: all its slugs have passed, found something or say why not.
    slugs = {entry["slug"] for entry in (*told["findings"], *told["not_tested"])} | set(told["passed"])
    assert {"shm-too-small", "torch-missing"} <= slugs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--stages", "all_reduc"), "did you mean all_reduce?"),
        (("--stages", ","), "--stages is empty"),
        (("--backend", "mpi"), "--backend is nccl, gloo or auto, not mpi"),
        (("--timeout", "nan"), "--timeout"),
        (("--wait", "nan"), "--wait is no number of seconds"),
        (("--nproc", "0"), "--nproc"),
        (("--nproc", "121"), "--nproc 121: smoke runs 120 ranks on a host at most"),
        (("--nproc", "100000", "--nnodes", "2"), "--nproc 100000: smoke runs 120 ranks on a host at most"),
        (("--python", ""), "--python is empty"),
        (("--python", "/bin/ls"), "it is no Python"),
        (("--python", "/nowhere/python"), "/nowhere/python"),
        (("-v", "-q"), "-v and -q exclude each other"),
    ],
)
def test_wrong_usage_ends_before_anything_starts(arguments: tuple[str, ...], words: str) -> None:
    done = smoke(*arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert done.stdout == ""


TWO_AT_MOST = """
from ddpdoctor.cli.main import main
from ddpdoctor.smoke_training.multinode import coordinator as steps
steps.MAX_RANKS = 2
main()
"""


def test_more_ranks_in_all_than_can_be_run_are_no_verdict_on_any_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    given = ("--nproc", "2", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port, "-q")
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_AT_MOST, "smoke", *given, "--node-rank", node],
            env=plain_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in "01"
    ]
    said = [node.communicate(timeout=90)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2]
    assert all("4 ranks are planned on 2 hosts; 2 at most can be run" in one for one in said)


def test_a_fault_that_is_none_is_wrong_usage() -> None:
    done = smoke(environ={"DDPDOCTOR_SMOKE_FAULT": "rank 1"})
    assert done.returncode == 2
    assert "DDPDOCTOR_SMOKE_FAULT" in done.stderr


def test_more_ranks_than_gpus_is_explained_and_nothing_is_started(fake_nvidia: FakeNvidia) -> None:
    environ = fake_nvidia.environ(gpus=2, base=plain_environ() | ENVIRON)
    done = smoke("--nproc", "4", environ=environ)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("FAIL  4 ranks are planned on 2 GPUs")
    assert "[duplicate-gpu]" in done.stdout
    assert "plan     4 ranks on GPU over nccl (--nproc)" in done.stdout
    assert "Nothing was started." in done.stdout
    told = json.loads(smoke("--nproc", "4", "--json", environ=environ).stdout)
    assert [finding["slug"] for finding in told["findings"]] == ["duplicate-gpu"]
    assert told["smoke"]["ranks"] == []
    assert told["verdict"] == "fail"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks_and_says_so(number: signal.Signals) -> None:
    running = start("--nproc", "2", *SHORT, environ=fault(1, "all_reduce", "sleep"))
    until(lambda: any("trainer/start.py" in line for line in ours().values()))
    time.sleep(1)
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=90)
    assert running.returncode == 128 + number
    assert stdout == ""
    assert stderr.splitlines()[-1] == "Stopped. The ranks were ended; nothing is left running."
    assert not ours()


@pytest.mark.thorough
def test_stopped_while_the_host_is_looked_at_it_still_tells_what_the_training_came_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> Examination:
        raise StoppedBySignal(130)

    failed = smoke_of_ranks(2, {1: rank_run(1, RankEnding.KILLED, "training", exit_code=-9)})
    monkeypatch.setattr(training, "_train", lambda *_: examined_smoke(failed))
    monkeypatch.setattr(training, "_with_host", stopped)
    with pytest.raises(StoppedBySignal) as raised:
        command_module.smoke(nproc=2)
    assert raised.value.text.startswith("Stopped while this host was looked at")
    assert "rank 1 was killed by SIGKILL" in capsys.readouterr().out


@pytest.mark.thorough
def test_stopped_while_its_speed_is_measured_it_still_tells_that_the_training_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> Smoke:
        raise StoppedBySignal(130)

    monkeypatch.setattr(conducting, "train", lambda *_: smoke_of_ranks(2))
    monkeypatch.setattr(conducting, "measure_scaling", stopped)
    with pytest.raises(StoppedBySignal) as raised:
        command_module.smoke(nproc=2, backend="gloo", scaling=True)
    assert raised.value.code == 130
    assert raised.value.text.startswith("Stopped while its speed was measured; the training had ended before.")
    said = capsys.readouterr().out
    assert said.startswith("OK    2 ranks trained over gloo on CPU")
    assert "scaling  not tested: stopped before it was measured" in said


@pytest.mark.thorough
def test_scaling_has_figures_for_every_number_of_ranks() -> None:
    done = smoke("--nproc", "2", "--stages", "barrier", "--backend", "gloo", "--scaling", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    check_against_schema(told)
    scaling = told["smoke"]["scaling"]
    one, two, data_parallel = scaling["speeds"]
    assert [(speed["ranks"], speed["way"], speed["problem"]) for speed in (one, two)] == [
        (1, "DDP", ""),
        (2, "DDP", ""),
    ]
    assert one["samples_per_second"] > 0
    assert two["samples_per_second"] > 0
    assert (data_parallel["way"], data_parallel["failed"]) == ("DataParallel", False)
    assert scaling["batch"] > 0
    sizes = [bandwidth["size"] for bandwidth in scaling["bandwidths"]]
    assert sizes == sorted(set(sizes))
    assert len(sizes) > 1
    assert all(bandwidth["bus"] > 0 for bandwidth in scaling["bandwidths"])
    assert "smoke-scaling-failed" in told["passed"]
    assert not ours()


@pytest.mark.thorough
def test_a_reader_that_goes_away_changes_nothing_but_the_report() -> None:
    running = start("--nproc", "1", "--stages", "barrier")
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(60) in (0, 141)
    assert running.stderr is not None
    assert "Traceback" not in running.stderr.read()
    assert not ours()


def test_on_a_terminal_a_table_comes_and_goes() -> None:
    here, there = pty.openpty()
    with os.fdopen(there, "w") as file:
        running = subprocess.Popen(
            command("smoke", "--nproc", "2", *SHORT, "-q", "--strict"),
            env=plain_environ() | ENVIRON | {"TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    shown = ""
    with suppress(OSError):
        while text := os.read(here, 100_000):
            shown += text.decode(errors="replace")
    os.close(here)
    stdout, _ = running.communicate(timeout=60)
    assert running.returncode == 0
    assert stdout == "OK  2 ranks met over gloo on CPU. 7 stages passed.\n"
    assert "starting" in shown
    assert "2 ranks over gloo" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")


def start(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("smoke", *arguments),
        env=plain_environ() | ENVIRON | (environ or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(wanted: Callable[[], bool], seconds: float = 90) -> None:
    """Waits until that comes true."""
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end
        time.sleep(0.05)
