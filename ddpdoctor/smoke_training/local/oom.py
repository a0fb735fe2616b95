"""How many processes the kernel has killed for want of memory so far."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int | None:
    """In this process's cgroup; where that can't be read, on the whole host since it booted. None: nobody says."""
    for path in _sources(root):
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _sources(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            yield root / f"sys/fs/cgroup{group}" / "memory.events"
        elif "memory" in controllers.split(","):
            yield root / f"sys/fs/cgroup/memory{group}" / "memory.oom_control"
            yield root / "sys/fs/cgroup/memory/memory.oom_control"
    yield root / "proc/vmstat"
