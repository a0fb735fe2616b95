"""Runs the real command line in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def ddpdoctor(
    *arguments: str | Path, environ: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    """`ddpdoctor ARGUMENTS` with the settings of a plain shell (no launcher's, no colours) plus `environ`."""
    return subprocess.run(
        command(*arguments),
        env=plain_environ() | (environ or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "ddpdoctor", *map(str, arguments)]


def plain_environ() -> dict[str, str]:
    kept = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX")
    # No folder for state: what one test runs is not to be compared with what another one ran.
    ours = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": "none"}
    return {name: os.environ[name] for name in kept if name in os.environ} | ours
