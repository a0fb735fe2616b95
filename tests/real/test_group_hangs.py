"""A real gloo job of eight ranks in tensor, data and pipeline groups, in which one rank after the other fails: by its dumps, and by its
stacks. Where one exits, gloo breaks its connections: those that wait for it get errors, and wait in their `except`; the others
wait for these."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJob]:
    """Eight imports of torch: one job for all faults, which are healed; but the last two, from which gloo doesn't recover."""
    with scripted(tmp_path_factory.mktemp("groups"), SCRIPT, RANKS, {"TORCH_FR_BUFFER_SIZE": "2000"}) as job:
        yield job


def record_by_dumps(job: RunningJob, name: str, writing: int) -> RecordedHang | None:
    """Of as many ranks as are able to write one."""
    folder = job.folder / f"dumps-{name}"
    folder.mkdir()
    wait_until(lambda: len(list(folder.iterdir())) == writing, "the dumps")
    return record_of(Hang(recorded=read_dumps([str(folder)]).recorded))


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
def test_one_rank_of_eight_fails(job: RunningJob, fault: str, faulty: int, pipeline: str, slug: str) -> None:
    (job.folder / ".fault").write_text(f"{faulty} {pipeline} {fault}")
    (job.folder / ".fault").rename(job.folder / "fault")
    job.wait_for(f"rank-{faulty}.there")
    time.sleep(SETTLED)
    told = looked(job, pid=job.pid(0))
    assert slugs(told) == [slug], told["findings"]
    # Stacks don't tell which call belongs to which group: where all wait, nobody is named.
    assert told["findings"][0].get("rank") == (None if fault == "another branch" else faulty)
    found = record_by_dumps(job, str(faulty), RANKS if fault in ("sleeps", "another branch") else RANKS - 1)
    assert found
    assert (faulty in found.ranks and found.unsure) if pipeline == "send" else found.ranks == (faulty,)
    for number in (signal.SIGUSR1, signal.SIGCONT):
        os.kill(job.pid(faulty), number)


def test_one_rank_of_eight_exits(job: RunningJob) -> None:
    os.kill(job.pid(3), signal.SIGKILL)
    time.sleep(SETTLED)
    told = looked(job, pid=job.pid(0))
    assert slugs(told) == ["peer-rank-crashed"], told["findings"]
    assert told["findings"][0].get("rank") == 3
    found = record_by_dumps(job, "3-gone", RANKS - 1)
    assert found
    assert found.ranks == (3,)
