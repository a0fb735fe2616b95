"""`ddpdoctor check --fix` from end to end: applied, proved by the checks and by a real training, and what it leaves alone."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.checks.catalogue import select as select_checks
from ddpdoctor.fixes import proof
from ddpdoctor.fixes.proof import Unproved, look_again
from tests.support.checkpoints import on, pins, save
from tests.support.command import command, ddpdoctor, plain_environ
from tests.support.report_schema import check_against_schema
from tests.support.smoke_runs import Estate
from tests.support.waiting import wait_for

OURS = ("check", "--fix", "--python", sys.executable)
ILL = {"GLOO_SOCKET_IFNAME": "eth99", "CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "1000"}
CHOSEN = ("--select", "gloo-ifname-not-found,setting-dangerous,omp-threads,ckpt-device-pin", "--nproc", "2")


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    import torch

    return save(torch.nn.Linear(4, 4).state_dict(), tmp_path / "ckpt.pt", on("cuda:3"))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def by_slug(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {treatment["slug"]: (treatment["state"], treatment["reason"]) for treatment in report["treatments"]}


def test_settings_and_a_checkpoint_are_fixed_and_confirmed(pinned: Path) -> None:
    folder = pinned.parent
    ended = ddpdoctor(
        *OURS, *CHOSEN, "--checkpoint", "ckpt.pt", "--yes", "--json", environ=ILL, cwd=folder, timeout=110
    )
    report = json.loads(ended.stdout)
    check_against_schema(report)
    confirmed = ("confirmed", "its check passes now, and smoke passed")
    assert by_slug(report) == dict.fromkeys(
        ("gloo-ifname-not-found", "setting-dangerous", "omp-threads", "ckpt-device-pin"), confirmed
    )
    assert report["findings"] == []
    assert ended.returncode == 0
    assert set(pins(pinned)) == {"cpu"}
    script = '. ./ddpdoctor-settings.sh; echo "$GLOO_SOCKET_IFNAME ${CUDA_LAUNCH_BLOCKING-unset} $OMP_NUM_THREADS"'
    sourced = subprocess.run(["bash", "-c", script], env=ILL, cwd=folder, capture_output=True, text=True, check=True)
    interface, blocking, threads = sourced.stdout.rstrip("\n").split(" ")
    assert interface != "eth99"
    assert blocking == "unset"
    assert int(threads) < 1000
    # And back again.
    ddpdoctor("fix-checkpoint", "--undo", pinned)
    assert set(pins(pinned)) == {"cuda:3"}


def test_a_dry_run_shows_it_all_and_changes_nothing(pinned: Path) -> None:
    before = files(pinned.parent)
    arguments = (*OURS, *CHOSEN, "--checkpoint", "ckpt.pt", "--dry-run")
    ended = ddpdoctor(*arguments, environ=ILL, cwd=pinned.parent)
    assert ended.returncode == 1
    assert ended.stdout.count("WOULD APPLY") == 4
    report = json.loads(ddpdoctor(*arguments, "--json", environ=ILL, cwd=pinned.parent).stdout)
    check_against_schema(report)
    assert {state for state, _ in by_slug(report).values()} == {"would-apply"}
    assert files(pinned.parent) == before


def test_without_a_terminal_and_a_yes_nothing_is_applied(tmp_path: Path) -> None:
    ended = ddpdoctor(*OURS, *CHOSEN, environ=ILL, cwd=tmp_path)
    assert ended.returncode == 2
    assert "Nothing was applied: there is no terminal to ask on." in ended.stderr
    assert "ddpdoctor check --fix --yes" in ended.stderr
    assert files(tmp_path) == {}


def test_what_is_left_to_you_is_said_with_its_command(tmp_path: Path) -> None:
    """A rendezvous file: whether a job still uses it, only the user knows."""
    (tmp_path / "meeting").write_text("left over")
    environ = {"DIST_URL": f"file://{tmp_path}/meeting"}
    ended = ddpdoctor(*OURS, "--select", "stale-file-init", "--yes", environ=environ, cwd=tmp_path)
    assert "LEFT TO YOU" in ended.stdout
    assert f"rm -- {tmp_path}/meeting" in ended.stdout
    assert set(files(tmp_path)) == {"meeting"}


def test_a_checkpoint_that_may_not_be_changed_is_left_with_the_reason(pinned: Path) -> None:
    (pinned.parent / "link.pt").symlink_to(pinned.name)
    arguments = (*OURS, "--select", "ckpt-device-pin", "--checkpoint", "link.pt", "--yes", "--json")
    ended = ddpdoctor(*arguments, cwd=pinned.parent)
    (state, reason) = by_slug(json.loads(ended.stdout))["ckpt-device-pin"]
    assert state == "left-to-you"
    assert "symbolic link" in reason
    assert ended.returncode == 1
    assert set(pins(pinned)) == {"cuda:3"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--yes"], "--yes goes with --fix"),
        (["--dry-run"], "--dry-run goes with --fix"),
        (["--fix", "--json"], "add --yes"),
        (["--fix", "--markdown"], "exclude each other"),
        (["--fix", "--snapshot", "x.json"], "--snapshot"),
    ],
)
def test_options_that_contradict_each_other(arguments: list[str], words: str) -> None:
    ended = ddpdoctor("check", *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr


def test_the_proof_takes_no_module_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And has the settings that the file gives to a shell."""
    for name in ("json", "random", "msgspec", "typer"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')\n")
    settings = "export CUDA_LAUNCH_BLOCKING=1\n"
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    checks = select_checks(["setting-dangerous"])
    arguments = (f"--python={sys.executable}", "--select=setting-dangerous", "--quick")
    assert [check.slug for check, _, _ in look_again(arguments, settings, None, checks).findings] == [
        "setting-dangerous"
    ]
    assert look_again(arguments, "", None, checks).findings == []
    settings = "echo refused >&2; return 1\n"
    with pytest.raises(Unproved, match='the settings file could not be sourced; it last said "refused"'):
        look_again(arguments, settings, None, checks)


def test_a_proof_that_takes_too_long_is_ended_even_where_it_does_not_want_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    settings = f"trap '' TERM; echo $$ > {pid}; while :; do sleep 0.1; done\n"
    monkeypatch.setattr(proof, "CHECK_SECONDS", 2)
    monkeypatch.setattr(proof, "ENDING_SECONDS", 0.3)
    with pytest.raises(Unproved, match="no answer within 2 s"):
        look_again((), settings, None, ())
    assert not Path("/proc", pid.read_text().strip()).exists()


ASKED = {"GLOO_SOCKET_IFNAM": "lo", "CUDA_LAUNCH_BLOCKING": "1"}
ASKED_OF = ("--select", "setting-misspelt,setting-dangerous")
"""Whatever interfaces the host has, there are two fixes for the first and one for the second."""


class Terminal:
    """A user at a terminal: reads what is shown, and answers."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, environ: dict[str, str]) -> None:
        self._controller, terminal = pty.openpty()
        self.process = subprocess.Popen(
            command(*arguments),
            env=plain_environ() | {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "200"} | ASKED | environ,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=folder,
            start_new_session=True,
            # Ctrl-C is the terminal's to send, to all that run at it.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.shown = ""

    def until(self, words: str, seconds: float = 60) -> None:
        """Reads on until these are shown."""
        start, ends = len(self.shown), time.monotonic() + seconds
        while words not in self.shown[start:]:
            assert select.select([self._controller], [], [], max(0, ends - time.monotonic()))[0], self.shown
            try:
                chunk = os.read(self._controller, 65536)
            except OSError:
                chunk = b""
            assert chunk, f"it ended without {words!r}: {self.shown}"
            self.shown += chunk.decode()

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def end(self, seconds: float = 90) -> int:
        with suppress(OSError):
            while select.select([self._controller], [], [], seconds)[0]:
                chunk = os.read(self._controller, 65536)
                if not chunk:
                    break
                self.shown += chunk.decode()
        return self.process.wait(10)

    def close(self) -> None:
        os.close(self._controller)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def at_a_terminal(*arguments: str, folder: Path, environ: dict[str, str] | None = None) -> Iterator[Terminal]:
    one = Terminal(arguments, folder, environ or {})
    try:
        yield one
    finally:
        one.close()


def test_each_fix_is_asked_for(tmp_path: Path) -> None:
    with at_a_terminal(*OURS, "-q", *ASKED_OF, folder=tmp_path) as user:
        user.until("[1/2/N]")
        user.type("2\n")
        user.until("Apply it? [y/N]")
        user.type("what?\n")
        user.until("Apply it? [y/N]")
        user.type("n\n")
        code = user.end()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", user.shown)
    assert "source ./ddpdoctor-settings.sh" in shown
    assert "setting-dangerous: you said no" in shown
    lines = (tmp_path / "ddpdoctor-settings.sh").read_text().splitlines()[2:]
    assert [line.partition("  #")[0] for line in lines] == ["unset GLOO_SOCKET_IFNAM"]
    assert "\nCONFIRMED      setting-misspelt: its check passes now, and smoke passed" in shown
    # What was left alone is a warning.
    assert code == 0


def test_ctrl_c_in_a_question_changes_nothing(tmp_path: Path) -> None:
    with at_a_terminal(*OURS, "-q", *ASKED_OF, folder=tmp_path) as user:
        user.until("[1/2/N]")
        user.type("1\n")
        user.until("Apply it? [y/N]")
        user.process.send_signal(signal.SIGINT)
        assert user.end() == 130
    assert "Stopped. Nothing was changed." in user.shown
    assert files(tmp_path) == {}


def test_no_more_input_is_a_no(tmp_path: Path) -> None:
    with at_a_terminal(*OURS, "-q", *ASKED_OF, folder=tmp_path) as user:
        for question in ("[1/2/N]", "Apply it? [y/N]"):
            user.until(question)
            user.type("\x04")
        assert user.end() == 0
    assert user.shown.count("you said no") == 2
    assert files(tmp_path) == {}


def test_ctrl_c_during_the_proof_says_what_was_written(tmp_path: Path) -> None:
    with at_a_terminal(*OURS, "-q", "--yes", *ASKED_OF, folder=tmp_path) as user:
        path = tmp_path / "ddpdoctor-settings.sh"
        until = time.monotonic() + 60
        while not path.exists() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)
        user.process.send_signal(signal.SIGINT)
        assert user.end() == 130
    assert "./ddpdoctor-settings.sh was written, and counts only where it is sourced" in user.shown
    assert "Nothing was proved yet" in user.shown


def ctrl_c(user: Terminal) -> None:
    """To ddpdoctor, and to the smoke that it runs."""
    user.type("\x03")


def a_signal_of_its_own(user: Terminal) -> None:
    """To ddpdoctor alone."""
    user.process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("stop", [ctrl_c, pytest.param(a_signal_of_its_own, marks=pytest.mark.thorough)])
def test_ctrl_c_while_smoke_trains_ends_it_cleanly(stop: Callable[[Terminal], None], short_path: Path) -> None:
    estate = Estate(short_path / "files")
    waits = {"DDPDOCTOR_SMOKE_FAULT": '{"rank": 1, "stage": "all_reduce", "kind": "sleep"}'}
    folder = short_path / "job"
    folder.mkdir()
    arguments = (*OURS, "-q", "--yes", "--nproc", "2", *ASKED_OF)
    with at_a_terminal(*arguments, folder=folder, environ=estate.environ | waits) as user:
        user.until("rank 0: all_reduce")
        assert estate.look()
        stop(user)
        assert user.end(20) == 130
    assert estate.left_after(1.0) == {}
    # The cursor is back before the last words come.
    shown, stopped, last_words = user.shown.partition("Stopped. The ranks were ended; nothing is left running.")
    assert 0 < shown.rfind("\x1b[?25l") < shown.rfind("\x1b[?25h")
    assert stopped
    assert "./ddpdoctor-settings.sh was written, and counts only where it is sourced" in last_words
    assert "Nothing was proved yet" in last_words


def test_smoke_that_is_stopped_before_it_trains_does_not_say_that_nothing_was_changed(tmp_path: Path) -> None:
    """It wouldn't know, as the proof of what was."""
    slow, begun = tmp_path / "python", tmp_path / "begun"
    slow.write_text(f"#!/bin/sh\n: > {begun}\nexec sleep 60\n")
    slow.chmod(0o755)
    process = subprocess.Popen(
        command("smoke", "--python", slow), env=plain_environ(), stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(begun.exists, 30)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, stderr) == (130, "Stopped before the training had begun.\n")
