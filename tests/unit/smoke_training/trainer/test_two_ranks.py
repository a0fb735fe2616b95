"""The stages sync_batchnorm, accumulation and checkpoint of a smoke training, with two ranks: with one they can't go wrong."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ddpdoctor_smoke.rank import NotHere, Worker
from ddpdoctor_smoke.stages import precision, training

from ddpdoctor.smoke_training.local.rank_runner import TRAINER
from tests.support.command import ROOT
from tests.support.smoke_single_rank import PosesAsGpu, rank


@pytest.fixture(scope="module")
def pair() -> dict[str, list[dict[str, Any]]]:
    """What both ranks said, by case."""
    path = os.pathsep.join([os.fspath(ROOT), os.fspath(TRAINER.parent)])
    told = subprocess.run(
        [sys.executable, "-m", "tests.support.smoke_two_ranks"],
        env=dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert told.returncode == 0, told.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(told.stdout)
    return found


def wrong(pair: dict[str, list[dict[str, Any]]], case: str) -> tuple[str, list[int] | None]:
    """What both say."""
    first, second = pair[case]
    assert first == second
    return first["words"], first["culprits"]


def test_sync_batchnorm_equals_batchnorm_over_all_batches(pair: dict[str, list[dict[str, Any]]]) -> None:
    assert wrong(pair, "sync_batchnorm") == ("equals BatchNorm over all ranks' batches within 0.001", None)


def test_a_sync_batchnorm_that_deviates_on_one_rank(pair: dict[str, list[dict[str, Any]]]) -> None:
    words, culprits = wrong(pair, "sync_batchnorm with another variance")
    assert words.startswith("SyncBatchNorm on rank 1 differs from BatchNorm over all batches by 0.01 of the largest")
    assert culprits == [1]


def test_batchnorm_that_was_not_converted_is_noticed(pair: dict[str, list[dict[str, Any]]]) -> None:
    words, culprits = wrong(pair, "sync_batchnorm without convert_sync_batchnorm")
    assert words.startswith("SyncBatchNorm on all ranks differs from BatchNorm over all batches")
    assert culprits == []


def test_sync_batchnorm_of_one_rank_is_not_tested(tmp_path: Path) -> None:
    with pytest.raises(NotHere, match="needs two ranks"):
        precision.sync_batchnorm(rank(tmp_path, PosesAsGpu))


def test_a_first_half_in_no_sync_is_each_ranks_own(pair: dict[str, list[dict[str, Any]]]) -> None:
    words = "no_sync equals the whole batch within 1e-09 (float64), and each rank's first half is its own"
    assert wrong(pair, "accumulation") == (words, None)


def test_a_no_sync_that_exchanges_is_noticed_though_the_end_is_the_same(
    pair: dict[str, list[dict[str, Any]]],
) -> None:
    words, culprits = wrong(pair, "accumulation without no_sync")
    assert words.startswith(
        "gradients of a first half in no_sync are not the rank's own: they differ from those without DDP"
    )
    assert "on all ranks" in words
    assert culprits == []


def test_with_one_rank_nothing_is_said_of_whose_gradients_they_are(
    one: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the same, exchanged or not."""
    ddp = torch.nn.parallel.DistributedDataParallel
    monkeypatch.setattr(ddp, "no_sync", lambda self: contextlib.nullcontext())
    assert training.accumulation(one) == "no_sync equals the whole batch within 1e-09 (float64)"


def test_another_host_loads_a_copy_of_rank_0_s_tensors(pair: dict[str, list[dict[str, Any]]]) -> None:
    words, culprits = wrong(pair, "checkpoint of another host")
    assert words == "9 tensors on 2 ranks, weights_only; rank 1 loaded a copy, since rank 0's folder is not theirs"
    assert culprits is None


def test_a_stranger_among_the_ranks_has_no_code_run(pair: dict[str, list[dict[str, Any]]]) -> None:
    """Also with a torch that can't load tensors alone."""
    words, _ = wrong(pair, "checkpoint of a stranger")
    assert words == "9 tensors on 2 ranks; rank 1 loaded a copy, since rank 0's folder is not theirs"
