"""Two ranks over gloo for unit tests: stages that can't be told from their neighbours by one rank alone, each on its own torch
that is changed as the test wants it. Prints a JSON object: the case's name to what each rank's stage said.

python -m tests.support.smoke_two_ranks
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed
from ddpdoctor_smoke.rank import Worker, WrongOutcome
from ddpdoctor_smoke.stages import checkpointing, precision, training

from tests.support.smoke_single_rank import PosesAsGpu, rank

RANKS = 2
DDP = torch.nn.parallel.DistributedDataParallel


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, mine: torch.Tensor) -> torch.Tensor:
        total = mine.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return SumOverRanks.forward(context, gradient)


def on_the_cpu(self: Any, x: torch.Tensor) -> torch.Tensor:
    """SyncBatchNorm.forward, whose own kernels are for GPUs: statistics are those of all ranks' batches of the same size."""
    count = RANKS * len(x)
    sums = SumOverRanks.apply(torch.stack([x.sum(0), x.square().sum(0)]))
    mean = sums[0] / count
    variance = sums[1] / count - mean.square()
    self.running_mean.lerp_(mean.detach(), self.momentum)
    self.running_var.lerp_(variance.detach() * count / (count - 1), self.momentum)
    normalised: torch.Tensor = (x - mean) / (variance + self.eps).sqrt()
    return normalised * self.weight + self.bias


def with_another_variance(self: Any, x: torch.Tensor) -> torch.Tensor:
    """On rank 1: it keeps something else than the others."""
    found = on_the_cpu(self, x)
    if torch.distributed.get_rank() == 1:
        self.running_var.mul_(1.01)
    return found


def sync_batchnorm(one: Worker, forward: Callable[..., torch.Tensor] = on_the_cpu) -> str:
    """The stage, with what refuses CPUs taken out of torch."""
    with (
        mock.patch.object(torch.nn.SyncBatchNorm, "forward", forward),
        mock.patch.object(DDP, "_passing_sync_batchnorm_handle"),
        mock.patch.object(precision, "parallel", lambda one, model: DDP(model)),
    ):
        return str(precision.sync_batchnorm(one))


def without_convert(one: Worker) -> str:
    with mock.patch.object(torch.nn.SyncBatchNorm, "convert_sync_batchnorm", lambda model: model):
        return sync_batchnorm(one)


def without_no_sync(one: Worker) -> str:
    with mock.patch.object(DDP, "no_sync", contextlib.nullcontext):
        return str(training.accumulation(one))


def in_own_folder(one: Worker) -> Path:
    """As on a host of its own."""
    shared = Path(one.folder)
    one.folder = os.fspath(shared / f"host{one.rank}")
    Path(one.folder).mkdir(exist_ok=True)
    return shared


def checkpoint_of_another_host(one: Worker) -> str:
    """Worker 1's own tensors are not those that it must load."""
    in_own_folder(one)
    model = training.train_once(one).model
    if one.rank == 1:
        with torch.no_grad():
            next(model.parameters()).add_(1)
    return str(checkpointing.checkpoint(one))


class Runs:
    """A pickle of it runs a command where it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


def checkpoint_of_a_stranger(one: Worker) -> str:
    """Worker 0 saves code instead of tensors, and doesn't load it itself; all have torch 1.13, which can't load tensors alone."""
    ran = in_own_folder(one) / "ran"
    content: list[object] = []

    def save(found: object, path: str) -> None:
        content.append(found)
        Path(path).write_bytes(pickle.dumps(Runs(f"id -un > {ran}")))

    def load(path: str, map_location: object) -> object:
        return content[0]

    with contextlib.ExitStack() as changed:
        changed.enter_context(mock.patch.object(checkpointing, "knows_weights_only", return_value=False))
        if one.rank == 0:
            changed.enter_context(mock.patch.object(torch, "save", save))
            changed.enter_context(mock.patch.object(torch, "load", load))
        else:
            with_code = functools.partial(torch.load, weights_only=False)
            changed.enter_context(mock.patch.object(torch, "load", with_code))
        words = str(checkpointing.checkpoint(one))
    return "the stranger's code ran" if ran.exists() else words


CASES: dict[str, tuple[type[Worker], Callable[[Worker], str]]] = {
    "sync_batchnorm": (PosesAsGpu, sync_batchnorm),
    "sync_batchnorm with another variance": (PosesAsGpu, lambda one: sync_batchnorm(one, with_another_variance)),
    "sync_batchnorm without convert_sync_batchnorm": (PosesAsGpu, without_convert),
    "accumulation": (Worker, training.accumulation),
    "accumulation without no_sync": (Worker, without_no_sync),
    "checkpoint of another host": (Worker, checkpoint_of_another_host),
    "checkpoint of a stranger": (Worker, checkpoint_of_a_stranger),
}


def told_by(number: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Case by case: words, and culprits where it is wrong."""
    os.environ.update(RANK=str(number), WORLD_SIZE=str(RANKS))
    store = torch.distributed.FileStore(os.fspath(folder / "store"), RANKS)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=number, world_size=RANKS, timeout=datetime.timedelta(seconds=60)
    )
    told: dict[str, dict[str, Any]] = {}
    for name, (kind, stage) in CASES.items():
        one = rank(folder, kind)
        one.rank, one.world_size = number, RANKS
        try:
            told[name] = {"words": stage(one), "culprits": None}
        except WrongOutcome as wrong:
            told[name] = {"words": str(wrong), "culprits": wrong.culprits}
    torch.distributed.barrier()
    return told


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Before any thread: only one import of torch for both.
        other = os.fork()
        number = 0 if other else 1
        status = 1
        try:
            (folder / f"rank{number}.json").write_text(json.dumps(told_by(number, folder)))
            status = 0
        finally:
            if not other:
                # Not the interpreter's end: what the folder's owner has to remove is here, too.
                sys.stderr.flush()
                os._exit(status)
        if os.waitpid(other, 0)[1]:
            sys.exit("rank 1 failed")
        both = [json.loads((folder / f"rank{number}.json").read_text()) for number in range(RANKS)]
        print(json.dumps({name: [one[name] for one in both] for name in CASES}))


if __name__ == "__main__":
    main()
