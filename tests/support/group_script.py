"""A small training of eight ranks in 2 x 2 x 2 groups over gloo, of which one fails when told; started by test_group_hangs.py.

Ranks count over the tensor group, then the data group, then the pipeline, along which 20 steps broadcast, which is recorded, and the
next 20 send. Where a file `fault` appears ("RANK PIPELINE FAULT"), that rank takes it away and fails so in the next step whose pipeline
is that one, until it gets SIGUSR1 (and SIGCONT). Where a rank ends, those that wait for it get errors, and stay. Where a folder `dumps-*` appears, each rank that can writes what its flight recorder
holds.
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

# Who dumps a recorder's stacks asks it for generated code, and would import it first: seconds, in each rank.
torch._inductor = None  # type: ignore[assignment]

FOLDER = Path(os.environ["RUNNING_JOB"])
RANK = int(os.environ["RANK"])
STEPS_OF_ONE_KIND = 20
SECONDS = 300


class Healed(Exception):
    """The fault is over."""


def heal(*_: object) -> None:
    raise Healed


def dump_when_told() -> None:
    while True:
        for folder in FOLDER.glob("dumps-*"):
            if not (folder / f"rank_{RANK}").exists():
                leave(f"{folder.name}/rank_{RANK}", _dump_fr_trace())
        time.sleep(0.1)


def leave(name: str, content: bytes = b"") -> None:
    hidden = FOLDER / f".{name.replace('/', '-')}"
    hidden.write_bytes(content or str(os.getpid()).encode())
    hidden.rename(FOLDER / name)


def group_of(purpose: str, all_ranks: list[list[int]]) -> dist.ProcessGroup:
    made = [dist.new_group(ranks, group_desc=purpose) for ranks in all_ranks]
    return next(group for group, ranks in zip(made, all_ranks, strict=True) if RANK in ranks)


def own_fault(pipeline: str) -> str:
    """What this rank is to do wrong now; "" where nothing."""
    try:
        rank, wanted, fault = (FOLDER / "fault").read_text().split(" ", 2)
    except FileNotFoundError:
        return ""
    if (int(rank), wanted) != (RANK, pipeline):
        return ""
    (FOLDER / "fault").unlink()
    return fault


def fail(fault: str) -> None:
    try:
        leave(f"rank-{RANK}.there")
        if fault == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(SECONDS)  # Where it is told to go on before it is told that the fault is over.
        if fault == "holds the GIL":
            ctypes.PyDLL(None).sleep(SECONDS)
        if fault == "sleeps":
            time.sleep(SECONDS)
    except Healed:
        pass


def main() -> None:
    signal.signal(signal.SIGUSR1, heal)
    dist.init_process_group("gloo")
    tensor = group_of("tensor", [[0, 1], [2, 3], [4, 5], [6, 7]])
    data = group_of("data", [[0, 2], [1, 3], [4, 6], [5, 7]])
    pipe = group_of("pipeline", [[0, 4], [1, 5], [2, 6], [3, 7]])
    threading.Thread(target=dump_when_told, daemon=True).start()
    leave(f"rank-{RANK}.pid")
    try:
        train(tensor, data, pipe)
    except RuntimeError:
        time.sleep(SECONDS)


def train(tensor: dist.ProcessGroup, data: dist.ProcessGroup, pipe: dist.ProcessGroup) -> None:
    values = torch.ones(8)
    first = RANK < 4
    for step in range(1_000_000):
        pipeline = "send" if step // STEPS_OF_ONE_KIND % 2 else "broadcast"
        if not first:
            pass_on(values, pipe, pipeline, forward=True)
        fault = own_fault(pipeline) if step >= 3 else ""
        if fault:
            fail(fault)
        if fault == "another branch":
            dist.broadcast(values, group_src=0, group=data)
        dist.all_reduce(values, group=tensor)
        if first:
            pass_on(values, pipe, pipeline, forward=True)
        pass_on(values, pipe, pipeline, forward=False)
        dist.all_reduce(values, group=tensor)
        dist.all_reduce(values, group=data)
        values = torch.ones(8)
        time.sleep(0.01)


def pass_on(values: torch.Tensor, pipe: dist.ProcessGroup, pipeline: str, *, forward: bool) -> None:
    source, target = (RANK % 4, RANK % 4 + 4) if forward else (RANK % 4 + 4, RANK % 4)
    if pipeline == "broadcast":
        dist.broadcast(values, source, group=pipe)
    elif source == RANK:
        dist.send(values, target, group=pipe)
    else:
        dist.recv(values, source, group=pipe)


if __name__ == "__main__":
    main()
