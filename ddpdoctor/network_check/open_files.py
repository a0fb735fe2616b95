"""How many files this process may have open: each connection is one."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

PLENTY: Final = 65536


def allow_files(count: int) -> None:
    """Raises this process's own limit of open files where it is lower than that and may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
