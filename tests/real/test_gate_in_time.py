"""`ddpdoctor gate` ends in time whatever hangs, as slurmd starts it: without PATH and HOME, and with 0 all the same."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command import ROOT, command, ddpdoctor

needs_compiler = pytest.mark.tool("gcc")
HOLDS_PYTHONS_LOCK = """
#include <unistd.h>
int sched_getaffinity(int pid, unsigned long size, void *mask) { for (;;) pause(); }
"""
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


@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.thorough)])
def test_many_at_once(count: int) -> None:
    words = command("gate", "--for", "slurm-healthcheck", "--quick", "--select", "host")
    begun = time.monotonic()
    started = [
        subprocess.Popen(words, env=BARE, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(count)
    ]
    said = [process.communicate(timeout=90)[0] for process in started]
    assert time.monotonic() - begun < 60
    assert {process.returncode for process in started} == {0}
    assert all(line.endswith("passed\n") or line.startswith(("no verdict: ", "node: ")) for line in said), said


def test_a_wrong_option_takes_no_node_out() -> None:
    for options in (["--selct", "gpu"], ["--timeout", "soon"], ["--timeout", "4000"], ["--select", "gpux"], ["--kill"]):
        ended, _ = healthcheck(*options, environ={})
        assert (ended.returncode, ended.stdout[:25]) == (0, "no verdict: wrong usage: "), ended
    nagios = ddpdoctor("gate", "--for", "nagios", "--selct", "gpu")
    assert nagios.returncode == 3
    assert nagios.stdout.startswith("UNKNOWN - ddpdoctor. no verdict: wrong usage: No such option: --selct")
    for options, words in (((), "Missing option '--for'"), (("--for", "nobody"), "there is no such caller; there are")):
        ended = ddpdoctor("gate", *options)
        assert (ended.returncode, words in " ".join(ended.stderr.split())) == (2, True), ended.stderr


def test_nvrx_and_gpud_get_the_contract_within_their_own_keys() -> None:
    for caller in ("nvrx", "gpud"):
        ended = ddpdoctor("gate", "--for", caller, "--quick", "--select", "host")
        (line,) = ended.stdout.splitlines()
        report = json.loads(line)["report"]
        assert (report["command"], report["gate"]["caller"]) == ("gate", caller)
        assert report["verdict"] in ("ok", "warn", "fail")
