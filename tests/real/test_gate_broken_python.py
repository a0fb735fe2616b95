"""A ddpdoctor that is itself broken is "no verdict" in each caller's own words, never a node that is ill."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import venv
from pathlib import Path
from resource import RLIMIT_NPROC, setrlimit
from typing import Any

import pytest

from ddpdoctor.gating.dialects import DIALECTS
from ddpdoctor.gating.outcome import no_verdict
from tests.support.command import ROOT, ddpdoctor
from tests.support.deployed import broken_doctor, this_doctor
from tests.support.other_users import User

ENTRY = "import sys\nfrom ddpdoctor.cli.main import main\nsys.exit(main())"
BREAKAGES = {
    "no doctor": "ddpdoctor is missing beside ddpdoctor-gate, or is not executable",
    "no interpreter": "ddpdoctor could not be started, exit code 127",
    "no packages": "ddpdoctor ended with exit code 1 and without an answer",
    "no typer": "ddpdoctor ended with exit code 2 and without an answer",
    "no library": "ddpdoctor ended with exit code 1 and without an answer",
    "a crash": "ddpdoctor was ended by signal 11",
    "killed": "ddpdoctor was ended by signal 9",
}
"""To what each caller is told."""


@pytest.fixture(scope="module", params=BREAKAGES)
def broken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The launcher of a broken installation, and what is said of it."""
    folder = tmp_path_factory.mktemp("broken")
    python = shlex.quote(sys.executable)
    run = f'exec {python} -c {shlex.quote(ENTRY)} "$@"'
    match request.param:
        case "no doctor":
            launcher = broken_doctor(folder / "bin", "")
            launcher.with_name("ddpdoctor").unlink()
        case "no interpreter":
            launcher = broken_doctor(folder / "bin", ENTRY, str(folder / "bin" / "python"))
        case "no packages":
            # A virtual environment of which the system's administrator has removed lib/.
            venv.create(folder, with_pip=False)
            launcher = broken_doctor(folder / "bin", ENTRY, str(folder / "bin" / "python"))
        case "no typer":
            (folder / "lib").mkdir()
            (folder / "lib" / "typer.py").write_text(
                "raise ImportError('libffi.so.8: cannot open shared object file')\n"
            )
            launcher = broken_doctor(folder / "bin", f"export PYTHONPATH={folder}/lib:{ROOT}\n{run}")
        case "no library":
            launcher = broken_doctor(folder / "bin", f"export PYTHONHOME={folder}\n{run}")
        case "a crash":
            launcher = broken_doctor(folder / "bin", "kill -SEGV $$")
        case _:
            # As the kernel does where memory runs out; it is no end for want of time.
            launcher = broken_doctor(folder / "bin", "kill -KILL $$")
    return launcher, BREAKAGES[request.param]


def parsed(answer: str) -> Any:
    return json.loads(answer) if answer.startswith("{") else answer


@pytest.mark.parametrize("caller", DIALECTS)
def test_a_broken_installation_is_no_verdict(caller: str, broken: tuple[Path, str]) -> None:
    launcher, why = broken
    wanted = DIALECTS[caller].answer(no_verdict(why), {})
    # Slurm hands down neither PATH nor HOME.
    ended = subprocess.run([launcher, "--for", caller, "--quick"], env={}, capture_output=True, text=True, check=False)
    assert ended.returncode == wanted.code, ended.stderr
    assert parsed(ended.stdout) == parsed(wanted.stdout)
    assert ended.stderr.endswith(wanted.stderr)
    assert len(ended.stdout.encode()) <= 81 or caller != "npd"


CLOSED = ("sh", "-c", 'exec "$@" >&-', "sh")
FULL = ("sh", "-c", 'exec "$@" >/dev/full', "sh")


@pytest.mark.parametrize("stdout", ["closed", "full", "without a reader"])
@pytest.mark.parametrize("caller", DIALECTS)
def test_what_nobody_could_read_is_not_ok(caller: str, stdout: str, tmp_path: Path) -> None:
    """The launcher's own part; of ddpdoctor's, tests/unit/gating/test_unread_answers.py."""
    ok, _, failure, unknown = DIALECTS[caller].codes
    shell = {"closed": CLOSED, "full": FULL}.get(stdout, ())
    for verdict, wanted in ((ok, unknown), (failure, failure or unknown), (unknown, unknown)):
        launcher = broken_doctor(tmp_path, f"echo the answer; exit {40 + verdict}")
        reading, writing = os.pipe()
        os.close(reading)
        words = [*shell, launcher, "--for", caller]
        ended = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writing)
        assert ended.returncode == wanted
        assert ended.stderr == "ddpdoctor: the answer could not be written to standard output\n"


@pytest.mark.root
@pytest.mark.parametrize("caller", ["slurm-prolog", "nagios"])
def test_a_shell_that_can_start_nothing_is_no_verdict(caller: str, ada: User, shared: Path) -> None:
    launcher = broken_doctor(shared / "bin", "exit 1")
    why = "the shell of ddpdoctor-gate could not go on"
    wanted = DIALECTS[caller].answer(no_verdict(why), {})
    ended = subprocess.run(
        [launcher, "--for", caller],
        user=ada.uid,
        preexec_fn=lambda: setrlimit(RLIMIT_NPROC, (1, 1)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (wanted.code, wanted.stdout), ended.stderr
    assert ended.stderr.endswith(wanted.stderr)


def test_help_is_no_verdict(tmp_path: Path) -> None:
    launcher = broken_doctor(tmp_path, "echo usage")
    for word in ("--help", "-h"):
        ended = subprocess.run([launcher, "--for", "nagios", word], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "usage\n", "")


@pytest.mark.parametrize(
    "options",
    [(), ("--timeout", "7.5"), ("--timeout=7",), ("--timeout", "soon"), ("--timeout", "08"), ("--timeout", 30 * "9")],
)
@pytest.mark.parametrize("caller", DIALECTS)
def test_what_hangs_before_it_can_watch_itself_is_ended_later_than_that(
    caller: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    launcher = broken_doctor(tmp_path / "bin", "exit 1")
    (tmp_path / "timeout").write_text(f'#!/bin/sh\nprintf %s "$*" >{tmp_path}/words\nexit 124\n')
    (tmp_path / "timeout").chmod(0o755)
    words = [launcher, f"--for={caller}", *options]
    begun = time.monotonic()
    ended = subprocess.run(
        words, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    seconds = 7 if options and "7" in options[-1] else DIALECTS[caller].seconds
    given = (tmp_path / "words").read_text()
    limit = re.fullmatch(rf"--foreground -k 0\.5 (\d+) {launcher.with_name('ddpdoctor')} gate .*", given)
    assert limit, given
    # What it has taken to come so far is taken from it.
    assert seconds + 3 - (time.monotonic() - begun) - 1 <= int(limit[1]) <= seconds + 3
    assert f"no verdict: ddpdoctor did not end within {seconds:g} s" in ended.stderr


def test_an_import_that_hangs_is_ended(tmp_path: Path) -> None:
    """Where Python itself hangs, before any code of ours runs."""
    launcher = broken_doctor(tmp_path, "exec sleep 60")
    ended = subprocess.run(
        [launcher, "--for", "nagios", "--timeout", "1"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout) == (
        3,
        "UNKNOWN - ddpdoctor. no verdict: ddpdoctor did not end within 1 s\n",
    )


WRONG_OPTIONS = [
    ("--selct", "gpu"),
    ("--serve", "/x.sock", "--timeout", "9"),
    ("--timeout", "0"),
    ("--select", "gpux"),
]


@pytest.mark.parametrize("options", WRONG_OPTIONS, ids=" ".join)
@pytest.mark.parametrize("caller", DIALECTS)
def test_wrong_usage_is_no_verdict(caller: str, options: tuple[str, ...], tmp_path: Path) -> None:
    this_doctor(tmp_path)
    words = [tmp_path / "ddpdoctor-gate", "--for", caller, "--quick", *options]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    said = re.fullmatch("ddpdoctor: no verdict: (wrong usage: .*)\n", ended.stderr)
    assert said, ended.stderr
    wanted = DIALECTS[caller].answer(no_verdict(said[1]), {})
    assert (ended.returncode, ended.stdout) == (wanted.code, wanted.stdout)


@pytest.mark.parametrize("shell", [CLOSED, FULL], ids=["closed", "full"])
def test_a_verdict_that_could_not_be_written_is_none(shell: tuple[str, ...], tmp_path: Path) -> None:
    """By this ddpdoctor itself, whose Python opens what is closed anew."""
    words = [*shell, this_doctor(tmp_path), "gate", "--for", "nagios", "--quick"]
    unread = subprocess.run([*words, "--select", "host"], capture_output=True, text=True, timeout=60, check=False)
    read = ddpdoctor("gate", "--for", "nagios", "--quick", "--select", "host")
    assert read.stdout
    assert unread.returncode == (read.returncode or 3)
    assert "ddpdoctor: the answer could not be written to standard output: " in unread.stderr


def test_wrong_usage_without_a_caller_is_told_as_always(tmp_path: Path) -> None:
    launcher = broken_doctor(tmp_path, "echo usage >&2; exit 2")
    ended = subprocess.run([launcher, "--quick"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "usage\n")


ALL_TURNS_TAKEN = """
import fcntl, os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "turns", "/run"], check=True)
os.mkdir("/run/ddpdoctor")
turns = [open(f"/run/ddpdoctor/gate.{number}", "w") for number in range(8)]
# Without a name for any of them: it would hold that turn for ever.
assert all(fcntl.flock(turn, fcntl.LOCK_EX) is None for turn in turns)
sys.exit(subprocess.run(sys.argv[1:], env={}).returncode)
"""


@pytest.mark.root
@pytest.mark.tool("flock", "unshare")
def test_who_gets_no_turn_says_so(tmp_path: Path) -> None:
    launcher = broken_doctor(tmp_path, "exit 41")
    line = ["unshare", "--mount", sys.executable, "-c", ALL_TURNS_TAKEN, launcher, "--for", "npd", "--timeout", "4"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "no verdict: 8 others were looking at this host for 4 s\n")


TURNS_TAKEN_AT_FIRST = ALL_TURNS_TAKEN.replace(
    "sys.exit", "import threading\nthreading.Timer(3, turns.clear).start()\nsys.exit"
)


@pytest.mark.root
@pytest.mark.tool("flock", "unshare")
@pytest.mark.parametrize(("asked", "handed_on"), [("0", "--timeout 0"), ("40", "--timeout 40 --timeout 3[5-8]")])
def test_the_time_that_is_left_replaces_no_wrong_usage(asked: str, handed_on: str, tmp_path: Path) -> None:
    """On a busy machine less is left than was asked for; what was asked for wrongly is still to be told as wrong."""
    launcher = broken_doctor(tmp_path, 'echo "$@"; exit 40')
    line = [
        "unshare",
        "--mount",
        sys.executable,
        "-c",
        TURNS_TAKEN_AT_FIRST,
        launcher,
        "--for",
        "gpud",
        "--timeout",
        asked,
    ]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=90, check=False)
    assert re.fullmatch(f"gate --for gpud {handed_on}\n", ended.stdout), (ended.stdout, ended.stderr)


NEVER_READ = """
import fcntl, os, subprocess, sys, time
subprocess.run(["mount", "-t", "tmpfs", "turns", "/run"], check=True)
gate = subprocess.Popen(sys.argv[1:], env={}, stdout=subprocess.PIPE)
gate.stdout.peek(1)
turns = [open(f"/run/ddpdoctor/{name}", "w") for name in os.listdir("/run/ddpdoctor")]
assert turns
until = time.monotonic() + 60
while turns:
    assert time.monotonic() < until, "the turn is held"
    try:
        fcntl.flock(turns[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        turns.pop()
    except BlockingIOError:
        time.sleep(0.02)
assert gate.poll() is None
gate.kill()
"""


@pytest.mark.root
@pytest.mark.tool("flock", "unshare")
def test_who_is_not_read_holds_up_nobody(tmp_path: Path) -> None:
    """A full pipe stops the shell in the middle of the answer."""
    launcher = broken_doctor(tmp_path, "head -c 300000 /dev/zero | tr '\\0' x; exit 40")
    line = ["unshare", "--mount", sys.executable, "-c", NEVER_READ, launcher, "--for", "npd", "--timeout", "20"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stderr
