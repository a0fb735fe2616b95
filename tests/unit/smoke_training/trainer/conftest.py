"""A rank that is alone in its world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch  # noqa: F401
import torch.distributed
from ddpdoctor_smoke.rank import Worker

from tests.support.smoke_single_rank import rank


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A process group of one rank. What is left of DDP must be gone before it."""
    import gc

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    torch.distributed.destroy_process_group()


@pytest.fixture
def one(tmp_path: Path, group: None) -> Worker:
    return rank(tmp_path)
