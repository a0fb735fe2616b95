"""A training of four ranks over gloo for the tests of torch's debug server. Run by its path, never imported.

Each step is an all_reduce. Once SERVED_FOLDER has a file "go", all ranks do at one step what is written in it: "shape" (rank 1 brings
another size), "chain" (rank 3 sleeps, rank 2 waits for it, rank 1 for rank 2 and rank 0 for rank 1, each in a group of two). With
SERVED_BY_SCRIPT=PORT the script itself starts the server, as torch's page shows it.
"""

import gc
import os
import time
from pathlib import Path

gc.disable()  # A tenth of the time that importing torch takes.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

FOLDER = Path(os.environ["SERVED_FOLDER"])


def mark(name):
    unfinished = FOLDER / f".{name}.{os.getpid()}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(FOLDER / name)


def sleep_for_good():
    while True:
        time.sleep(1000)


def act(does, rank, pairs):
    mark(f"rank-{rank}.there")
    if does == "shape":
        dist.all_reduce(torch.ones(7 if rank == 1 else 4))
    elif does == "chain" and rank == 3:
        sleep_for_good()
    elif does == "chain":
        dist.all_reduce(torch.ones(2), group=pairs[rank])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([first, first + 1]) for first in range(dist.get_world_size() - 1)]
    for first, pair in enumerate(pairs):
        if rank in (first, first + 1):
            dist.all_reduce(torch.ones(2), group=pair)
    while True:
        asked = torch.tensor([float((FOLDER / "go").exists()), 0, 0, 0])
        dist.all_reduce(asked)
        if asked[0] == dist.get_world_size():
            act((FOLDER / "go").read_text(), rank, pairs)
        mark(f"rank-{rank}.training")
        time.sleep(0.02)


if __name__ == "__main__":
    if os.environ.get("SERVED_BY_SCRIPT"):
        from torch.distributed.debug import start_debug_server

        start_debug_server(port=int(os.environ["SERVED_BY_SCRIPT"]), start_method="spawn", fetch_timeout=5)
    main()
