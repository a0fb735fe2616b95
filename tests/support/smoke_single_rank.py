"""A rank of a smoke training for unit tests: alone in its world, in this process, and heard by nobody but the test."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from ddpdoctor_smoke.orders import TrainerOrder
from ddpdoctor_smoke.rank import Worker

CPU = torch.device("cpu")


class Listener:
    """Stands for the channel to ddpdoctor."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def say(self, **message: Any) -> None:
        self.heard.append(message)

    def told(self, name: str) -> list[Any]:
        return [message[name] for message in self.heard if message.get(name)]


class PosesAsGpu(Worker):  # type: ignore[misc]
    """A rank on the CPU whose stages think that they are on a GPU."""

    on_gpu = True


def rank(tmp_path: Path, kind: type[Worker] = Worker, fault: dict[str, object] | None = None) -> Worker:
    order = TrainerOrder(
        backend="gloo",
        folder=os.fspath(tmp_path),
        world_size=1,
        launched={"rank": 0, "local_rank": 0},
        fault=fault,
        seconds=30.0,
    )
    one = kind(order, Listener())
    one.torch, one.dist, one.device = torch, torch.distributed, CPU
    return one


def of_world(size: int) -> Any:
    """As much of a rank as the judging functions need."""
    return SimpleNamespace(world_size=size, on_gpu=False, torch=torch)


def doubles(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)
