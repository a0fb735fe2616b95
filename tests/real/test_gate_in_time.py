"""`ddpdoctor gate` ends in time whatever hangs, as slurmd starts it: without PATH and HOME, and with 0 all the same."""

from __future__ import annotations

import json
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from resource import RLIMIT_NPROC, setrlimit
from typing import NamedTuple

import pytest

from tests.support.command import ROOT, command, ddpdoctor
from tests.support.deployed import this_doctor
from tests.support.namespaces import network
from tests.support.other_users import python_for_all
from tests.support.running_jobs import wait_until

needs_compiler = pytest.mark.tool("gcc")
HOLDS_PYTHONS_LOCK = """
#include <unistd.h>
int sched_getaffinity(int pid, unsigned long size, void *mask) { for (;;) pause(); }
"""
LOOPBACK = "hostname-resolves-loopback"
"""Of the node, and made true by /etc/hosts."""
OUT_OF_TIME = re.compile(
    r"no verdict: (it could not be reached within|ddpdoctor did not end within|8 others were looking at this host for) \d+ s\n"
)
NOBODYS_UID = 4_210_042
"""Of no account, and of no other test: a limit of processes counts all of a user's."""
SECONDS = 6
MORE_SECONDS = 6
"""For the end of what hangs, and of the process."""
BARE = {"SLURMD_NODENAME": "n1", "PYTHONPATH": str(ROOT)}


def healthcheck(*options: str, environ: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], float]:
    begun = time.monotonic()
    words = command("gate", "--for", "slurm-healthcheck", "--quick", *options)
    ended = subprocess.run(words, env=BARE | environ, cwd="/", capture_output=True, text=True, timeout=70)
    return ended, time.monotonic() - begun


def preloaded(folder: Path, source: str) -> str:
    """A library that takes the place of some of libc's calls."""
    (folder / "hang.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "hang.so", folder / "hang.c", "-ldl"], check=True)
    return str(folder / "hang.so")


@needs_compiler
@pytest.mark.parametrize(
    "below", [f"{ROOT}/ddpdoctor/probes", f"{ROOT}/checks:{ROOT}/ddpdoctor/checks", "/proc/mounts:/proc/self/mountinfo"]
)
def test_an_import_or_a_file_system_that_hangs(tmp_path: Path, below: str) -> None:
    library = preloaded(tmp_path, (ROOT / "tests" / "support" / "hanging_paths.c").read_text())
    ended, seconds = healthcheck(
        "--drain", "--timeout", str(SECONDS), environ={"LD_PRELOAD": library, "HANG_BELOW": below}
    )
    assert ended.returncode == 0, ended.stderr
    assert seconds < SECONDS + MORE_SECONDS
    if below.startswith(str(ROOT)):
        assert ended.stdout == f"no verdict: it could not be reached within {SECONDS} s\n"
        assert ended.stderr == f"ddpdoctor: {ended.stdout}"


@needs_compiler
def test_what_hangs_with_pythons_own_lock(tmp_path: Path) -> None:
    """The child can't even take the signal that asks it to end."""
    ended, seconds = healthcheck(
        "--timeout", str(SECONDS), environ={"LD_PRELOAD": preloaded(tmp_path, HOLDS_PYTHONS_LOCK)}
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"no verdict: it could not be reached within {SECONDS} s\n"
    assert seconds < SECONDS + MORE_SECONDS


class Answered(NamedTuple):
    """One gate of many: its exit code, its line, and the seconds that it took."""

    code: int
    line: str
    seconds: float


TIMED = """
echo ready >&2
read go
begun=$(date +%s.%N)
"$@" 2>/dev/null
echo $? $begun $(date +%s.%N) >&2
"""
"""Begins when it is told to."""


@pytest.mark.root
@pytest.mark.tool("ip", "unshare", "nsenter")
@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.thorough)])
def test_many_at_once(count: int, tmp_path: Path) -> None:
    """On a host that is sick; of every other one the kill switch has that check switched off."""
    killswitch, temporary = tmp_path / "killswitch", tmp_path / "tmp"
    killswitch.write_text(f"{LOOPBACK}  # ticket 4711\n")
    temporary.mkdir()
    this_doctor(tmp_path)
    environ = BARE | {"PET_NNODES": "2", "TMPDIR": str(temporary)}
    words = (tmp_path / "ddpdoctor-gate", "--for", "slurm-healthcheck", "--quick", "--select", "network,host")

    def options(number: int) -> tuple[str, ...]:
        return ("--killswitch", str(killswitch)) if number % 2 else ()

    with network("n1") as (host,):
        host.hosts("127.0.0.1 localhost\n127.0.1.1 n1\n")
        lines = [host.command("sh", "-c", TIMED, "sh", *map(str, words), *options(number)) for number in range(count)]
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        gates = [subprocess.Popen(line, env=environ, cwd="/", text=True, **pipe) for line in lines]
        for gate in gates:
            assert gate.stderr is not None
            assert gate.stderr.readline() == "ready\n"
        for gate in gates:
            assert gate.stdin is not None
            gate.stdin.write("\n")
            gate.stdin.flush()
        answers = [answer_of(gate) for gate in gates]
    undecided = [answer.line for answer in answers if answer.line.startswith("no verdict: ")]
    seconds = sorted(answer.seconds for answer in answers)
    print(f"{count} gates: {len(undecided)} out of time; all had ended after {seconds[0]:.1f} to {seconds[-1]:.1f} s")
    assert {answer.code for answer in answers} == {0}
    # After that slurmd kills it.
    assert seconds[-1] < 60
    assert all(OUT_OF_TIME.fullmatch(line) for line in undecided), set(undecided)
    for switched_off, asked in enumerate((answers[::2], answers[1::2])):
        verdicts = [answer.line for answer in asked if answer.line not in undecided]
        assert verdicts, "not one came to a verdict"
        wanted = r"\d+ checks passed\n" if switched_off else rf"node: {LOOPBACK}: n1 resolves to 127\.0\.1\.1.*\n"
        assert all(re.fullmatch(wanted, line) for line in verdicts), set(verdicts)
    assert list(temporary.iterdir()) == []
    wait_until(lambda: not processes_with(f"TMPDIR={temporary}"), "the end of all that was started")


def answer_of(gate: subprocess.Popen[str]) -> Answered:
    """What a gate that is under way ends with."""
    line, figures = gate.communicate(timeout=150)
    code, begun, ended = figures.split()
    return Answered(int(code), line, float(ended) - float(begun))


def processes_with(setting: str) -> list[str]:
    """The pids of those that were started with a setting."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if setting.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


def test_a_wrong_option_takes_no_node_out() -> None:
    for options in (["--selct", "gpu"], ["--timeout", "soon"], ["--timeout", "4000"], ["--select", "gpux"], ["--kill"]):
        ended, _ = healthcheck(*options, environ={})
        assert (ended.returncode, ended.stdout[:25]) == (0, "no verdict: wrong usage: "), ended
    nagios = ddpdoctor("gate", "--for", "nagios", "--selct", "gpu")
    assert nagios.returncode == 3
    assert nagios.stdout.startswith("UNKNOWN - ddpdoctor. no verdict: wrong usage: No such option: --selct")
    # Of two the last counts, as for all options.
    last = ddpdoctor("gate", "--for", "nagios", "--for=npd", "--selct", "gpu")
    assert (last.returncode, last.stdout[:25]) == (2, "no verdict: wrong usage: "), last
    for options, words in (((), "Missing option '--for'"), (("--for", "nobody"), "there is no such caller; there are")):
        ended = ddpdoctor("gate", *options)
        assert (ended.returncode, words in " ".join(ended.stderr.split())) == (2, True), ended.stderr


@pytest.mark.root
def test_a_limit_of_threads_is_named() -> None:
    """Not as a fault of ddpdoctor's: training would not start here, either."""
    python, settings = python_for_all()
    ended = subprocess.run(
        [python, "-m", "ddpdoctor", "gate", "--for", "nagios", "--quick"],
        user=NOBODYS_UID,
        # For the gate and its child, and for no thread of theirs.
        preexec_fn=lambda: setrlimit(RLIMIT_NPROC, (2, 2)),
        env=settings,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3
    assert ended.stdout.startswith("UNKNOWN - ddpdoctor. no verdict: it may start no more threads. The limit of "), (
        ended
    )


def test_nvrx_and_gpud_get_the_contract_within_their_own_keys() -> None:
    for caller in ("nvrx", "gpud"):
        ended = ddpdoctor("gate", "--for", caller, "--quick", "--select", "host")
        (line,) = ended.stdout.splitlines()
        report = json.loads(line)["report"]
        assert (report["command"], report["gate"]["caller"]) == ("gate", caller)
        assert report["verdict"] in ("ok", "warn", "fail")
