"""Errors of the command line at terminals of any width, and in files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpdoctor.base.error_lines import wrapped
from tests.support.command import plain_environ

ERROR = (
    "Error: Invalid value: --drop leaves something out, and what is left out can't be brought back, so it needs a new file:"
    " ddpdoctor fix-checkpoint /data/runs/ckpt.pt --drop optimizer -o /data/runs/ckpt-small.pt"
)


@pytest.mark.parametrize("width", [1, 20, 40, 80, 120, 400])
@pytest.mark.parametrize(
    "text",
    [
        ERROR,
        "'/data/my runs/a.log': No such file or directory",
        "No check is called so. `ddpdoctor list --all of them` shows them all, as you can't know.",
        "x" * 200,
        "",
    ],
)
def test_nothing_is_lost_and_only_what_is_too_long_for_itself_stands_out(text: str, width: int) -> None:
    rows = wrapped(text, width).split("\n")
    assert " ".join(rows) == text
    for whole in (
        "ddpdoctor fix-checkpoint /data/runs/ckpt.pt --drop optimizer -o /data/runs/ckpt-small.pt",
        "'/data/my runs/a.log':",
        "`ddpdoctor list --all of them`",
    ):
        assert whole not in text or any(whole in row for row in rows), rows
    assert all(len(row) <= width or " " not in row or "ddpdoctor" in row or row.startswith("'") for row in rows), rows


def test_the_rows_are_filled() -> None:
    assert wrapped("one two three four", 9) == "one two\nthree\nfour"


def test_at_a_terminal_it_is_wrapped_at_its_width_and_in_a_file_it_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "a-long-folder-name" / "run.log"
    command = f"{sys.executable} -m ddpdoctor fix-checkpoint {missing} --drop optimizer"
    shell = f"stty cols 50; {command}"
    environ = {**plain_environ(), "COLUMNS": "200"}
    said = subprocess.run(
        ["script", "-qec", shell, "/dev/null"], capture_output=True, text=True, env=environ, timeout=60
    )
    rows = [row.rstrip("\r") for row in said.stdout.split("\n")]
    begin = next(number for number, row in enumerate(rows) if row.startswith("Error: "))
    assert all(len(row) <= 50 for row in rows[begin:-2]), rows
    assert any(row.startswith("ddpdoctor fix-checkpoint ") and "--drop optimizer -o " in row for row in rows), rows
    piped = subprocess.run(command.split(), capture_output=True, text=True, env=environ, timeout=60)
    (line,) = [row for row in piped.stderr.splitlines() if row.startswith("Error: ")]
    assert " ".join(rows[begin:]).strip() == line
