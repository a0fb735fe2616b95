"""Four NCCL ranks in tensor and pipeline groups, of which rank 3 stays behind: `python nccl_recordings.py FOLDER` writes what the
flight recorder of each holds. It imports nothing of ddpdoctor, so it runs with any CUDA build of torch; without GPUs in front of
nccl_stand_in.c. Which pairs and groups there are: tensor (0, 1) and (2, 3), pipeline (0, 2) and (1, 3)."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

RANKS = 4
SECONDS = 60.0


def train(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    tensor = group_of(rank, "tensor", [[0, 1], [2, 3]])
    pipe = group_of(rank, "pipeline", [[0, 2], [1, 3]])
    values, received = (torch.empty(4, device=f"cuda:{rank}") for _ in range(2))
    peer = (rank + 2) % RANKS
    for step in range(3):
        if rank == 3 and step == 2:
            return  # The others never hear of it again.
        dist.all_reduce(values, group=tensor)
        pair = [dist.P2POp(dist.isend, values, peer, pipe), dist.P2POp(dist.irecv, received, peer, pipe)]
        dist.batch_isend_irecv(pair)
        if rank < 2:
            dist.send(values, peer, group=pipe)
        else:
            dist.recv(values, peer, group=pipe)
        if step < 2:
            wait_for_all(folder, f"step{step}", rank)


def group_of(rank: int, purpose: str, all_ranks: list[list[int]]) -> object:
    import torch.distributed as dist

    made = [dist.new_group(ranks, group_desc=purpose) for ranks in all_ranks]
    return next(group for group, ranks in zip(made, all_ranks, strict=True) if rank in ranks)


def wait_for_all(folder: Path, what: str, rank: int) -> None:
    (folder / f"{what}-{rank}-").touch()
    until = time.monotonic() + SECONDS
    while len(list(folder.glob(f"{what}-*-"))) < RANKS and time.monotonic() < until:
        time.sleep(0.02)


def main(folder: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_nccl_trace

    rank = next((number for number in range(1, RANKS) if os.fork() == 0), 0)
    torch.cuda.set_device(rank)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=RANKS)
    train(rank, folder)
    wait_for_all(folder, "called", rank)
    time.sleep(3)  # The watchdog looks what is done, once in a while.
    (folder / f"rank_{rank}").write_bytes(_dump_nccl_trace())
    wait_for_all(folder, "written", rank)
    if not rank:
        print(torch.__version__)
    os._exit(0)


if __name__ == "__main__":
    os.environ["TORCH_FR_BUFFER_SIZE"] = os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = "100"
    main(Path(sys.argv[1]))
