"""A gloo job whose ranks write what their flight recorders hold, also those that hang: `python flight_recordings.py CASE FOLDER`.

CASE: healthy, lagging (rank 2 stays away from the fourth all_reduce), other-collective (rank 1 broadcasts where the others call
all_reduce), other-shape (rank 1 hands in five elements instead of four). It imports nothing of ddpdoctor, so it runs anywhere.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

WORLD_SIZE = 3
ENTRIES = {"healthy": (5, 5, 4), "lagging": (5, 5, 3), "other-collective": (3, 3, 3), "other-shape": (3, 3, 3)}
"""How many calls each rank has recorded when it is stuck, or done."""
SECONDS = 60.0


def train(case: str, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    some = dist.new_group([0, 1])
    gradient = torch.ones(4)
    for _ in range(2):
        average(gradient)
    if case == "other-collective" and rank == 1:
        save_checkpoint(gradient)
    if case == "other-shape" and rank == 1:
        # gloo doesn't hang here but breaks off: the others have to be heard before.
        while len(list(folder.glob("done-*-"))) < 2:
            time.sleep(0.02)
        gradient = torch.ones(5)
    average(gradient)
    if rank != 2:
        dist.broadcast(gradient, 0, group=some)
    else:
        prepare(case)
    average(gradient)


def average(gradient: object) -> None:
    import torch.distributed as dist

    dist.all_reduce(gradient)


def save_checkpoint(gradient: object) -> None:
    import torch.distributed as dist

    dist.broadcast(gradient, 0)


def prepare(case: str) -> None:
    while case == "lagging":
        time.sleep(1)


def write(case: str, rank: int, folder: Path) -> None:
    """As soon as all is recorded; ends when all ranks have written."""
    import pickle

    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        dumped = _dump_fr_trace()
        if len(pickle.loads(dumped)["entries"]) == ENTRIES[case][rank]:
            (folder / f"rank_{rank}").write_bytes(dumped)
            said = _dump_fr_trace_json()
            (folder / f"rank_{rank}.json").write_bytes(said.encode() if isinstance(said, str) else said)
            (folder / f"done-{rank}-").touch()
            break
        time.sleep(0.02)
    while len(list(folder.glob("done-*-"))) < WORLD_SIZE and time.monotonic() < until:
        time.sleep(0.02)
    os._exit(0)


def main(case: str, folder: Path) -> None:
    import torch.distributed as dist

    children = []
    for rank in range(WORLD_SIZE):
        child = os.fork()
        if not child:
            dist.init_process_group(
                "gloo", store=dist.FileStore(str(folder / "store"), WORLD_SIZE), rank=rank, world_size=WORLD_SIZE
            )
            threading.Thread(target=write, args=(case, rank, folder), daemon=True).start()
            try:
                train(case, rank, folder)
            finally:
                time.sleep(SECONDS)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    main(sys.argv[1], Path(sys.argv[2]))
