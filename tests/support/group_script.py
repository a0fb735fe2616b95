"""A small training of eight ranks in 2 x 2 x 2 groups over gloo, of which one fails; started by test_group_hangs.py.

Ranks count over the tensor group, then the data group, then the pipeline. FAULT: what rank FAULTY does in its fourth step. PIPELINE:
"send", or "broadcast", which is recorded. Where a file `dump` appears, each rank that can writes what its flight recorder holds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

FOLDER = Path(os.environ["RUNNING_JOB"])
RANK = int(os.environ["RANK"])
FAULT = os.environ["FAULT"] if int(os.environ["FAULTY"]) == RANK else ""
SENDS = os.environ["PIPELINE"] == "send"
SECONDS = 300


def dump_when_told() -> None:
    while not (FOLDER / "dump").exists():
        time.sleep(0.1)
    leave(f"dumps/rank_{RANK}", _dump_fr_trace())


def leave(name: str, content: bytes = b"") -> None:
    hidden = FOLDER / f".{name.replace('/', '-')}"
    hidden.write_bytes(content or str(os.getpid()).encode())
    hidden.rename(FOLDER / name)


def group_of(purpose: str, all_ranks: list[list[int]]) -> dist.ProcessGroup:
    made = [dist.new_group(ranks, group_desc=purpose) for ranks in all_ranks]
    return next(group for group, ranks in zip(made, all_ranks, strict=True) if RANK in ranks)


def fail() -> None:
    leave(f"rank-{RANK}.there")
    if FAULT == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "holds the GIL":
        ctypes.PyDLL(None).sleep(SECONDS)
    if FAULT == "sleeps":
        time.sleep(SECONDS)


def main() -> None:
    dist.init_process_group("gloo")
    tensor = group_of("tensor", [[0, 1], [2, 3], [4, 5], [6, 7]])
    data = group_of("data", [[0, 2], [1, 3], [4, 6], [5, 7]])
    pipe = group_of("pipeline", [[0, 4], [1, 5], [2, 6], [3, 7]])
    threading.Thread(target=dump_when_told, daemon=True).start()
    leave(f"rank-{RANK}.pid")
    values = torch.ones(8)
    first = RANK < 4
    for step in range(1_000_000):
        if not first:
            pass_on(values, pipe, forward=True)
        if step == 3 and FAULT:
            fail()
        if step == 3 and FAULT == "another branch":
            dist.broadcast(values, group_src=0, group=data)
        dist.all_reduce(values, group=tensor)
        if first:
            pass_on(values, pipe, forward=True)
        pass_on(values, pipe, forward=False)
        dist.all_reduce(values, group=tensor)
        dist.all_reduce(values, group=data)
        values = torch.ones(8)
        time.sleep(0.01)


def pass_on(values: torch.Tensor, pipe: dist.ProcessGroup, *, forward: bool) -> None:
    source, target = (RANK % 4, RANK % 4 + 4) if forward else (RANK % 4 + 4, RANK % 4)
    if not SENDS:
        dist.broadcast(values, source, group=pipe)
    elif source == RANK:
        dist.send(values, target, group=pipe)
    else:
        dist.recv(values, source, group=pipe)


if __name__ == "__main__":
    main()
