"""`ddpdoctor zombies --kill` on what lies in /dev/shm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.command import ddpdoctor
from tests.support.segments import A_MINUTE_LATER, make, nccl_name


@pytest.mark.root
@pytest.mark.tool("unshare")
def test_a_stale_segment_is_removed_and_no_other() -> None:
    stale, young = (make(Path("/dev/shm", nccl_name())) for _ in range(2))
    cache = make(Path(f"/dev/shm/torch_cache_{os.getpid()}.pt"))
    try:
        os.utime(young, (time.time() - 3600, time.time() - 3600))
        asked = ddpdoctor("zombies", "--kill", "--yes", str(young))
        assert asked.returncode == 2, asked.stdout + asked.stderr
        ended = _a_minute_later("zombies", "--kill", "--yes", str(stale))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "REMOVED" in ended.stdout
        assert not stale.exists()
        assert _a_minute_later("zombies", "--kill", "--yes", str(cache)).returncode == 2
        assert young.exists()
        assert cache.exists()
    finally:
        for path in (stale, young, cache):
            with suppress(FileNotFoundError):
                path.unlink()


def _a_minute_later(*words: str) -> subprocess.CompletedProcess[str]:
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", A_MINUTE_LATER, *words]
    return subprocess.run(alone, capture_output=True, text=True, timeout=60, check=False)
