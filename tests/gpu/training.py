"""A rank of a small DDP training on the GPU, or in a rehearsal on the CPU: `torchrun tests/gpu/training.py cuda|cpu`.

GPU_KIT_FAULT="KIND@STEP" makes the last rank misbehave at that step; the kinds are the functions of faults.py, and "apart". A rank writes what it
is and does as files into GPU_KIT_FOLDER.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from tests.gpu import faults

FOLDER = Path(os.environ["GPU_KIT_FOLDER"])
KIND, _, STEP = os.environ.get("GPU_KIT_FAULT", "").partition("@")
SECONDS = 300.0
"""A training that nobody ends, ends itself."""


def mark(word: str, text: str = "") -> None:
    name = f"rank-{os.environ['RANK']}.{word}"
    (FOLDER / f".{name}").write_text(text or str(os.getpid()))
    (FOLDER / f".{name}").rename(FOLDER / name)


def loading(device: torch.device) -> object:
    """A DataLoader with a worker that has touched the GPU, which a worker should not."""
    loader = torch.utils.data.DataLoader(
        list(range(100)), num_workers=1, multiprocessing_context="spawn", worker_init_fn=partial(touch, device)
    )
    batches = iter(loader)
    next(batches)
    return batches


def touch(device: torch.device, _: int) -> None:
    torch.ones(1, device=device).sum().item()
    mark("worker")


def main() -> None:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    on_gpu = sys.argv[1] == "cuda"
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    mark("pid")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(os.environ.get("GPU_KIT_BACKEND") or ("nccl" if on_gpu else "gloo"))
    side = dist.new_group()
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(64, 64).to(device), device_ids=[device.index] if on_gpu else None
    )
    _batches = loading(device) if os.environ.get("GPU_KIT_WORKER") else None  # they live as long as it does
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    faulty = KIND and rank == dist.get_world_size() - 1
    until, step = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        step += 1
        if faulty and step == int(STEP):
            mark("fault")
            if KIND == "apart":
                # The others wait for this rank in one group, and it for them in another.
                number = torch.ones(1, device=device)
                dist.all_reduce(number, group=side)
                number.item()
            else:
                getattr(faults, KIND)(device)
        loss = model(torch.ones(8, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        number = torch.ones(1, device=device)
        dist.all_reduce(number)
        assert number.item() == dist.get_world_size()
        if step <= 3:
            mark(f"step-{step}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
