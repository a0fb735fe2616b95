"""Segments in /dev/shm, named as their makers name them."""

from __future__ import annotations

import string
from pathlib import Path
from random import Random

A_MINUTE_LATER = (
    "import os; from ddpdoctor.probes import context; context.INITIAL_PID_NAMESPACE = os.readlink('/proc/self/ns/pid');"
    "from ddpdoctor.probes import shared_memory; shared_memory.SETTLED_SECONDS = -1.0;"
    "from ddpdoctor.cli.main import main; main()"
)
"""A program: ddpdoctor, to which no segment is too young, and which in a pid namespace of its own sees all processes that there are."""
_DRAWN = string.ascii_letters + string.digits


def nccl_name(random: Random | None = None) -> str:
    """As mkstemp draws it, and none that a person might have thought of."""
    return "nccl-3" + "".join((random or Random()).choices(_DRAWN, k=4)) + "z"


def make(path: Path, size: int = 4096, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    path.chmod(mode)
    return path
