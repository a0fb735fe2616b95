"""What a user would write to see whether DDP works here: the training and the collectives of `ddpdoctor smoke`, for torchrun.

torchrun --standalone --nproc-per-node N plain_training.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 10


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    for elements in 1, 1024, 1024 * 1024:
        tensor = torch.full((elements,), float(rank + 1))
        dist.all_reduce(tensor)
        assert tensor[0] == size * (size + 1) / 2
    for source in range(size):
        tensor = torch.full((1024,), float(rank))
        dist.broadcast(tensor, source)
        assert tensor[0] == source
    gathered = [torch.empty(1024) for _ in range(size)]
    dist.all_gather(gathered, torch.full((1024,), float(rank)))
    assert [int(one[0]) for one in gathered] == list(range(size))
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    )
    train(model, size)
    save_and_load(model, rank)
    del model
    dist.barrier()
    dist.destroy_process_group()


def train(model: DistributedDataParallel, size: int) -> None:
    data = TensorDataset(torch.randn(16 * STEPS * size, 32), torch.randint(0, 10, (16 * STEPS * size,)))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in DataLoader(data, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def save_and_load(model: DistributedDataParallel, rank: int) -> None:
    path = Path(tempfile.gettempdir()) / f"plain-training-{os.environ['MASTER_PORT']}.pt"
    if rank == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    model.module.load_state_dict(torch.load(path, map_location="cpu"))
    dist.barrier()
    if rank == 0:
        path.unlink()


if __name__ == "__main__":
    main()
