"""`check` ends in time whatever hangs, and says what it gave up on: Slurm kills a health check after 60 seconds."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from ddpdoctor.base.time_limit import KILL_SECONDS
from tests.support.command import ROOT, command, plain_environ

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

LIMIT_SECONDS = 55.0
STOPPED_PROGRAMS = [
    "nvidia-smi",
    "modinfo",
    "journalctl",
    "systemctl",
    "nft",
    "iptables",
    "iptables-save",
    "nvcc",
    "gcc",
    "cc",
    "ninja",
    "ibstat",
]
IMPORT_HANGS = f"""#!/bin/sh
trap '' TERM INT
case "$*" in *" torch "*) exec sleep 1000 ;; esac
exec {sys.executable} "$@"
"""
HOLDS_PYTHONS_LOCK = """
#include <unistd.h>
int sched_getaffinity(int pid, unsigned long size, void *mask) { for (;;) pause(); }
"""


class Ended(NamedTuple):
    code: int
    seconds: float
    text: str


def shared_object(source: Path, target: Path) -> Path:
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, source, "-ldl"], check=True)
    return target


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All at once, since they do little but wait."""
    folder = tmp_path_factory.mktemp("hangs")
    below = shared_object(ROOT / "tests" / "support" / "hanging_paths.c", folder / "paths.so")
    (folder / "lock.c").write_text(HOLDS_PYTHONS_LOCK)
    lock = shared_object(folder / "lock.c", folder / "lock.so")
    dead = folder / "dead"
    for name in ("home", "tmp", "env/bin"):
        (dead / name).mkdir(parents=True)
    (dead / "env/bin/python").symlink_to(sys.executable)
    for name in ("model.pt", "train.py"):
        (dead / name).touch()
    (folder / "programs").mkdir()
    for name in STOPPED_PROGRAMS:
        (folder / "programs" / name).write_text("#!/bin/sh\nexec sleep 1000\n")
        (folder / "programs" / name).chmod(0o755)
    (folder / "slow.sh").write_text("#!/bin/sh\ntrap '' TERM INT\nexec sleep 1000\n")
    (folder / "import.sh").write_text(IMPORT_HANGS)
    for name in ("slow.sh", "import.sh"):
        (folder / name).chmod(0o755)
    hanging = {"LD_PRELOAD": str(below)}
    cases: dict[str, tuple[list[str], dict[str, str]]] = {
        "home": ([], hanging | {"HANG_BELOW": str(dead), "HOME": f"{dead}/home", "TMPDIR": f"{dead}/tmp"}),
        "environment": ([], hanging | {"HANG_BELOW": str(dead), "VIRTUAL_ENV": f"{dead}/env"}),
        "proc": ([], hanging | {"HANG_BELOW": "/proc/meminfo:/proc/self/mountinfo:/proc/1:/sys/bus/pci"}),
        "programs": ([], {"PATH": f"{folder}/programs:{plain_environ()['PATH']}"}),
        "python": (["--python", str(folder / "slow.sh")], {}),
        "torch": (["--python", str(folder / "import.sh")], {}),
        "checkpoint": (["--checkpoint", f"{dead}/model.pt"], hanging | {"HANG_BELOW": str(dead)}),
        "script": (["--script", f"{dead}/train.py"], hanging | {"HANG_BELOW": str(dead)}),
        "own lock": ([], {"LD_PRELOAD": str(lock)}),
    }
    outputs = {name: (folder / f"{name}.out").open("w") for name in cases}
    begun = time.monotonic()
    running = {
        name: subprocess.Popen(
            command("check", *options),
            env=plain_environ() | environ,
            cwd="/",
            stdout=outputs[name],
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for name, (options, environ) in cases.items()
    }
    seconds: dict[str, float] = {}
    while len(seconds) < len(running) and time.monotonic() - begun < 80:
        seconds |= {
            name: time.monotonic() - begun
            for name, process in running.items()
            if name not in seconds and process.poll() is not None
        }
        time.sleep(0.1)
    for process in running.values():
        process.kill()
    return {
        name: Ended(process.wait(), seconds.get(name, 80.0), (folder / f"{name}.out").read_text())
        for name, process in running.items()
    }


@pytest.mark.parametrize(
    ("name", "gave_up_on"),
    [
        ("home", "disk-unanswered"),
        ("environment", "/dead/env/bin doesn't answer"),
        ("proc", "no answer within"),
        ("programs", "could not be tested"),
        ("python", "no answer within 10 s"),
        ("torch", "no answer within 45 s"),
    ],
)
def test_check_ends_in_time_and_says_what_it_gave_up_on(ended: dict[str, Ended], name: str, gave_up_on: str) -> None:
    one = ended[name]
    assert one.seconds < LIMIT_SECONDS, one
    # Where a third of the checks had no answer, that is no verdict.
    assert one.code in (0, 1) or (one.code == 2 and "No verdict" in one.text), one
    assert gave_up_on in " ".join(one.text.split()), one.text


@pytest.mark.parametrize(
    ("name", "unjudged"),
    [
        ("checkpoint", r"/dead/model\.pt: not looked into: no answer within (?:50|4\d) s"),
        ("script", r"/dead/train\.py: not read within 20 s\. Without a limit: ddpdoctor lint "),
    ],
)
def test_a_named_file_that_does_not_answer_is_no_verdict(ended: dict[str, Ended], name: str, unjudged: str) -> None:
    one = ended[name]
    assert one.seconds < LIMIT_SECONDS, one
    assert one.code in (1, 2), one
    # As a path is cut where lines wrap, without any blanks.
    assert re.search(unjudged.replace(" ", ""), "".join(one.text.split())), one.text
    assert "no training script was named" not in one.text or name == "checkpoint"
    assert "1 file could not be judged" in " ".join(one.text.split())


def test_what_hangs_with_pythons_own_lock_is_ended_by_the_kernel(ended: dict[str, Ended]) -> None:
    """Nothing of ours can run any more, to say anything."""
    one = ended["own lock"]
    assert one.code == -signal.SIGALRM, one
    assert one.seconds < KILL_SECONDS + 3, one
