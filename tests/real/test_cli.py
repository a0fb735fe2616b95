"""The real command line, in a process of its own, on this host: verdicts, exit codes, pipes, terminals, bad input."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.snapshots import encode_snapshot, read_snapshot
from ddpdoctor.facts.snapshot import GROUPS
from tests.support.command import ROOT, command, ddpdoctor, plain_environ
from tests.support.fixture_hosts import JSON_NAMES, healthy_facts, host_case, to_snapshot
from tests.support.libnccl import beside_torch
from tests.support.report_schema import check_against_schema
from tests.support.waiting import wait_for

SICK = "shm-too-small/sick-docker-default"


@pytest.fixture(scope="module")
def this_host() -> subprocess.CompletedProcess[str]:
    return ddpdoctor("check", "--python", sys.executable, "--json", "-v")


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    path = tmp_path / "sick.json"
    path.write_bytes(encode_snapshot(host_case(SICK).snapshot()))
    return path


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    path = tmp_path / "healthy.json"
    path.write_bytes(encode_snapshot(to_snapshot(healthy_facts("h100x8-container"))))
    return path


def test_every_check_says_something_of_this_host(this_host: subprocess.CompletedProcess[str]) -> None:
    report = json.loads(this_host.stdout)
    check_against_schema(report)
    told = {finding["slug"] for finding in report["findings"] + report["not_tested"]} | set(report["passed"])
    assert told == {check.slug for check in all_checks()}
    assert not [skipped for skipped in report["not_tested"] if skipped["why"] == "crashed"]
    assert this_host.stderr == ""


def test_probes_of_this_host_all_ran(this_host: subprocess.CompletedProcess[str]) -> None:
    facts = next(iter(json.loads(this_host.stdout)["facts"].values()))
    for group in GROUPS:
        reason = facts[JSON_NAMES[group]].get("reason", "")
        assert not reason.startswith(("the probe of", "not looked at")), f"{group}: {reason}"


def test_without_nvidia_hardware_it_says_so_and_is_healthy() -> None:
    if Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists():
        pytest.skip("this host has an NVIDIA GPU")
    ended = ddpdoctor("check", "--python", sys.executable)
    # A person's machine may have an illness of its own; CI's has none, so whatever is found there is a false alarm.
    assert ended.returncode == 0 or (ended.returncode == 1 and not os.environ.get("CI")), ended.stdout
    assert "none found" in ended.stdout
    assert ("not tested: no libnccl was found" in ended.stdout) is not bool(beside_torch())


def test_exit_codes_of_snapshots(sick: Path, healthy: Path) -> None:
    assert ddpdoctor("check", "--snapshot", healthy).returncode == 0
    assert ddpdoctor("check", "--snapshot", sick).returncode == 1
    assert ddpdoctor("check", "--snapshot", sick, "--ignore", "shm-too-small").returncode == 0
    assert ddpdoctor("check", "--snapshot", healthy, "--snapshot", sick).returncode == 1
    assert ddpdoctor("check", "--snapshot", healthy, "--select", "xid-error").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "--select", "shm-to-small"], "shm-too-small"),
        (["check", "--json", "--markdown"], "exclude"),
        (["check", "-v", "-q"], "exclude"),
        (["check", "--python", ""], "--python is empty"),
        (["snapshot", "--python", ""], "--python is empty"),
        (["check", "--select", ""], "is empty"),
        (["check", "--ignore", ","], "is empty"),
        (["check", "--nproc", "0"], "--nproc"),
        (["check", "--snapshot", "x.json", "--python", "python3"], "--snapshot"),
        (["check", "--select", "host", "--ignore", "host"], "leave no check"),
        (["explain", "shm-to-small"], "shm-too-small"),
        (["explain"], "slug"),
        (["explain", "apex", "--python", "/nope/python"], "--python PATH"),
        (["chekc"], "chekc"),
        (["check", "--snapshot", "missing.json"], "No such file"),
        (["snapshot", "-o", "/no/such/folder/host.json"], "there is no folder /no/such/folder"),
    ],
)
def test_wrong_usage_exits_2_with_a_sentence(arguments: list[str], words: str) -> None:
    ended = ddpdoctor(*arguments)
    assert ended.returncode == 2
    assert words.lower() in (ended.stdout + ended.stderr).lower()
    assert "Traceback" not in ended.stderr


def test_one_unreadable_snapshot_does_not_keep_the_others_from_being_judged(sick: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"ddpdoctor_snapshot": 1, "ho')
    ended = ddpdoctor("check", "--json", "--snapshot", sick, "--snapshot", broken)
    report = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert [finding["slug"] for finding in report["findings"]] == ["shm-too-small"]
    assert "broken.json" in report["problems"][0]


def test_snapshot_file_is_judged_like_the_host(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    assert ddpdoctor("snapshot", "-o", path, "--python", sys.executable, "--quick").returncode == 0
    snapshot = read_snapshot(path)
    assert snapshot.host == os.uname().nodename
    assert not isinstance(snapshot.machine, Unknown)
    ended = ddpdoctor("check", "--snapshot", path, "--json")
    assert json.loads(ended.stdout)["host"] == snapshot.host


@pytest.mark.parametrize("how", [[], ["--json"], ["--markdown"], ["-v"]])
def test_a_closed_pipe_ends_it_quietly_and_not_as_a_verdict(how: list[str], healthy: Path) -> None:
    started = subprocess.Popen(
        command("check", "--snapshot", healthy, *how),
        env=plain_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    stderr = started.stderr.read()
    assert started.wait(60) == 141
    assert stderr == b""


def test_a_full_disk_is_told(sick: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command("check", "--snapshot", sick), env=plain_environ(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2
    assert ended.stderr == "the report could not be written: No space left on device\n"
    assert "Traceback" not in ended.stderr


def check_of_a_torch_that_hangs(folder: Path) -> subprocess.Popen[str]:
    """A check that waits for the import."""
    hanging = folder / "torch"
    hanging.mkdir()
    begun = folder / "begun"
    (hanging / "__init__.py").write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(60)\n"
    )
    started = subprocess.Popen(
        command("check", "--python", sys.executable),
        env=plain_environ() | {"PYTHONPATH": f"{folder}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(begun.exists, 20)
    return started


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    started = check_of_a_torch_that_hangs(tmp_path)
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=10)
    assert started.returncode == 130
    assert stderr.strip() == "Stopped. Nothing was changed."


def test_an_impatient_second_ctrl_c_ends_it_no_worse(tmp_path: Path) -> None:
    started = check_of_a_torch_that_hangs(tmp_path)
    for _ in range(20):
        started.send_signal(signal.SIGINT)
        time.sleep(0.003)
    _, stderr = started.communicate(timeout=10)
    assert started.returncode == 130
    assert stderr.strip() == "Stopped. Nothing was changed."


def test_a_snapshot_through_a_pipe(sick: Path) -> None:
    with sick.open() as file:
        ended = subprocess.run(
            command("check", "--snapshot", "-", "-q"), env=plain_environ(), stdin=file, capture_output=True, text=True
        )
    assert ended.returncode == 1
    assert "shm-too-small" in ended.stdout


def on_pty(*arguments: str | Path, columns: int, environ: dict[str, str]) -> str:
    """What a terminal that wide shows."""
    controller, terminal = pty.openpty()
    try:
        started = subprocess.Popen(
            command(*arguments),
            env=plain_environ() | {"TERM": "xterm-256color", "COLUMNS": str(columns)} | environ,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        shown = b""
        while select.select([controller], [], [], 60)[0]:
            try:
                chunk = os.read(controller, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
        started.wait(10)
    finally:
        os.close(controller)
    return shown.decode()


def test_colours_on_a_terminal_and_none_with_no_color(sick: Path) -> None:
    assert "\x1b[" in on_pty("check", "--snapshot", sick, columns=80, environ={})
    assert "\x1b[3" not in on_pty("check", "--snapshot", sick, columns=80, environ={"NO_COLOR": "1"})
    assert "\x1b[" not in ddpdoctor("check", "--snapshot", sick).stdout


@pytest.mark.parametrize("columns", [30, 80])
def test_narrow_terminals(sick: Path, columns: int) -> None:
    shown = on_pty("check", "--snapshot", sick, columns=columns, environ={"NO_COLOR": "1"})
    assert "shm-too-small" in shown
    assert "--shm-size=" in shown


def test_progress_shows_on_a_terminal_alone() -> None:
    shown = on_pty("check", "--python", sys.executable, columns=100, environ={})
    assert "Looking at this host" in shown
    assert "Looking at this host" not in ddpdoctor("check", "--quick", "--python", sys.executable).stderr


def test_a_terminal_without_unicode(sick: Path) -> None:
    ended = subprocess.run(
        command("check", "--snapshot", sick, "-v"),
        env=plain_environ() | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        capture_output=True,
    )
    assert ended.returncode == 1
    assert ended.stdout.isascii()


def test_list_and_explain_show_every_check() -> None:
    listed = ddpdoctor("list").stdout
    for check in all_checks():
        assert check.slug in listed
    assert f"{len(all_checks())} checks" in listed
    assert "ddpdoctor explain apex" in listed
    explained = ddpdoctor("explain", "Shm_Too_Small").stdout
    for heading in ("What breaks", "Why", "Fix", "How it shows itself"):
        assert heading in explained


def test_help_names_every_command_and_option() -> None:
    shown = ddpdoctor("--help", environ={"COLUMNS": "120"}).stdout
    for name in ("check", "snapshot", "list", "explain"):
        assert name in shown
    options = ddpdoctor("check", "--help", environ={"COLUMNS": "160"}).stdout
    for option in [
        "--python",
        "--select",
        "--ignore",
        "--json",
        "--markdown",
        "--snapshot",
        "--nproc",
        "--strict",
        "--quick",
        "--verbose",
        "--quiet",
    ]:
        assert option in options
    assert ddpdoctor("--version").stdout.startswith("ddpdoctor ")
