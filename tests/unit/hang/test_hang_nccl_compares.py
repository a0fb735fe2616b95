"""`jobs --hang` offers NCCL's own comparison of the ranks, where the job's NCCL has one."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.hang import Hang, WatchedRank
from ddpdoctor.hang.fixes import test_the_way as ways_of_testing


def commands(nccl: str, *, running: bool = True) -> list[str]:
    ranks = (WatchedRank(rank=0), WatchedRank(rank=1)) if running else ()
    hang = Hang(job="4100", world_size=2, backend="nccl", nccl=nccl, ranks=ranks)
    return [command for fix in ways_of_testing(hang) for command in fix.commands]


@pytest.mark.parametrize("version", ["2.31.1", "2.32.0", "3.0.0"])
def test_since_its_release(version: str) -> None:
    assert "ncclras -D" in commands(version)
    assert any("NCCL_RUN_RAS_DIAGNOSTICS=1" in command for command in commands(version))


@pytest.mark.parametrize("version", ["", "2.27.5", "2.30.7"])
def test_not_before_and_not_where_the_release_is_not_known(version: str) -> None:
    assert not any("ncclras" in command for command in commands(version))


def test_not_for_a_job_that_has_left_dumps_alone() -> None:
    assert not any("ncclras" in command for command in commands("2.31.1", running=False))
