"""What `netcheck` refuses before it starts anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def refused(python: str) -> str:
    words = ("netcheck", "--master-addr", "127.0.0.1", "--master-port", "1", "--nnodes", "1", "--python", python)
    environ = {**os.environ, "COLUMNS": "400"}
    ran = subprocess.run(
        (sys.executable, "-m", "ddpdoctor", *words),
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    return " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/bin/ls", "--python /bin/ls: it is no Python"),
        ("/etc/passwd", "it is a file that this user may not execute"),
        ("/nowhere/python", "there is no such file"),
        ("no-such-python", "there is no such command on PATH"),
    ],
)
def test_what_is_no_python_is_wrong_usage(python: str, words: str) -> None:
    assert words in refused(python)


def test_a_folder_is_said_to_be_one(tmp_path: Path) -> None:
    assert "it is a folder, without a bin/python in it" in refused(str(tmp_path))
