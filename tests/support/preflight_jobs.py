"""Ranks on the CPU that call `preflight()`: two processes of one job, started as a launcher starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.support.command import ROOT, plain_environ
from tests.support.free_ports import free_port

EXAMPLES = ROOT / "docs" / "reference" / "preflight.md"
SECONDS = 200.0
"""For a job; a busy machine takes half a minute to import a framework."""


class EndedRank(msgspec.Struct, frozen=True):
    """Exit code and output of a rank."""

    code: int
    out: str
    err: str


def example(name: str) -> str:
    """An example of the page."""
    (found,) = re.findall(rf"<!-- example: {name} -->\n```python\n(.*?)```", EXAMPLES.read_text(), re.DOTALL)
    return str(found)


def run_ranks(
    script: str,
    folder: Path,
    environs: Mapping[int, Mapping[str, str]] | None = None,
    wait_for: int | None = None,
    count: int = 2,
) -> list[EndedRank]:
    """Run the script as two ranks, and wait for both.

    Args:
        script: its text.
        folder: to run in.
        environs: what is different in a rank's environment.
        wait_for: the one whose end is waited for; the other is killed then.
        count: 1: once, and as no rank.
    """
    path = folder / "train.py"
    path.write_text(script)
    port = str(free_port())
    ranks: list[subprocess.Popen[str]] = []
    for rank in range(count):
        environ = (job_environ(rank, port) if count > 1 else plain_environ()) | dict((environs or {}).get(rank, {}))
        ranks.append(
            subprocess.Popen(
                [sys.executable, path.name],
                cwd=folder,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    try:
        outputs: dict[int, tuple[str, str]] = {}
        for rank in range(count) if wait_for is None else (wait_for, 1 - wait_for):
            outputs[rank] = ranks[rank].communicate(timeout=SECONDS)
            if rank == wait_for:
                ranks[1 - rank].kill()
    finally:
        for process in ranks:
            process.kill()
    return [EndedRank(process.returncode, *outputs[rank]) for rank, process in enumerate(ranks)]


def job_environ(rank: int, port: str) -> dict[str, str]:
    """What a launcher sets for a rank of two."""
    settings = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    return {**plain_environ(), "PYTHONPATH": os.fspath(ROOT), **settings}
