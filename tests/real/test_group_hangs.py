"""Real gloo jobs of eight ranks in tensor, data and pipeline groups, in which one rank fails: by their dumps, and by their stacks.

None exits: over gloo that breaks the connections, and all others end with errors at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpdoctor.facts.hang import Hang
from ddpdoctor.hang.flight_recorder.collect_dumps import read_dumps
from ddpdoctor.hang.flight_recorder.wait_graph import RecordedHang
from ddpdoctor.hang.recorded_hang import record_of
from tests.real.test_hang_command import looked, slugs
from tests.support.command import ROOT
from tests.support.running_jobs import RunningJob, scripted, wait_until

SCRIPT = ROOT / "tests" / "support" / "group_script.py"
RANKS = 8
SETTLED = 2.0
"""Seconds after which all ranks wait: their steps take some hundredths."""

pytestmark = pytest.mark.slow


def record_by_dumps(job: RunningJob, writing: int) -> RecordedHang | None:
    """Of as many ranks as are able to write one."""
    (job.folder / "dumps").mkdir()
    (job.folder / "dump").touch()
    wait_until(lambda: len(list((job.folder / "dumps").iterdir())) == writing, "the dumps")
    return record_of(Hang(recorded=read_dumps([str(job.folder / "dumps")]).recorded))


@pytest.mark.parametrize(
    ("fault", "faulty", "pipeline", "slug"),
    [
        ("stops", 6, "broadcast", "rank-stopped"),
        ("holds the GIL", 5, "broadcast", "rank-busy-outside-collectives"),
        ("sleeps", 2, "broadcast", "rank-busy-outside-collectives"),
        ("sleeps", 7, "send", "rank-busy-outside-collectives"),
        ("another branch", 3, "broadcast", "collective-stalled"),
    ],
)
def test_one_rank_of_eight_fails(tmp_path: Path, fault: str, faulty: int, pipeline: str, slug: str) -> None:
    settings = {"FAULT": fault, "FAULTY": str(faulty), "PIPELINE": pipeline, "TORCH_FR_BUFFER_SIZE": "2000"}
    with scripted(tmp_path, SCRIPT, RANKS, settings) as job:
        job.wait_for(f"rank-{faulty}.there")
        time.sleep(SETTLED)
        told = looked(job, pid=job.pid(0))
        assert slugs(told) == [slug], told["findings"]
        # Stacks don't tell which call belongs to which group: where all wait, nobody is named.
        assert told["findings"][0].get("rank") == (None if fault == "another branch" else faulty)
        found = record_by_dumps(job, RANKS if fault in ("sleeps", "another branch") else RANKS - 1)
        assert found
        assert (faulty in found.ranks and found.unsure) if pipeline == "send" else found.ranks == (faulty,)
