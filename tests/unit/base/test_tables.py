"""Tables that lie beside modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

THREADS_AT_ONCE = """
import sys, threading
import msgspec
from ddpdoctor.base.tables import read_table

sys.setswitchinterval(1e-6)

def read(kind, together):
    together.wait()
    read_table("beside.module", "table.json", kind)

for _ in range(300):
    inner = msgspec.defstruct("Inner", [(f"field_{number}", int) for number in range(30)])
    kind = msgspec.defstruct("Kind", [(f"field_{number}", inner) for number in range(30)])
    together = threading.Barrier(4)
    threads = [threading.Thread(target=read, args=(kind, together)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_read_a_table_for_the_first_time_at_once(tmp_path: Path) -> None:
    """Each round has classes that msgspec has never seen."""
    inner = {f"field_{number}": number for number in range(30)}
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "module.py").touch()
    (tmp_path / "beside" / "table.json").write_bytes(msgspec.json.encode(dict.fromkeys(inner, inner)))
    ended = subprocess.run(
        [sys.executable, "-c", THREADS_AT_ONCE], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
