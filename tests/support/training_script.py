"""The train.py of the tests' running jobs: a small gloo training in which a rank can be told to do something else.

Run by its path, never imported. How it is started and told: see running_jobs.py.
"""

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

gc.disable()  # A tenth of the time that importing torch takes, in each rank of each job.

FOLDER = Path(os.environ["RUNNING_JOB"])
ORDERS = json.loads(os.environ.get("RUNNING_JOB_DOES", "{}"))
"""{"1": ["sleep", 3]}: what rank 1 does at step 3."""
STEPS = int(os.environ.get("RUNNING_JOB_STEPS", "1000000000"))
PAUSE = 0.02
"""Of every step, so that a healthy job takes little of the machine."""


def mark(name, text=None):
    """Tells the test, in one piece."""
    unfinished = FOLDER / f".{name}.{os.getpid()}"
    unfinished.write_text(str(os.getpid() if text is None else text))
    unfinished.rename(FOLDER / name)


def sleep_for_good():
    while True:
        time.sleep(1000)


class Stuck:
    """A dataset whose file server doesn't answer."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        mark("worker.stuck")
        sleep_for_good()


def read_batch():
    from torch.utils.data import DataLoader

    for _ in DataLoader(Stuck(), num_workers=1):
        pass


def prepare_batch(rank):
    mark(f"rank-{rank}.there")
    sleep_for_good()


def spin(rank):
    mark(f"rank-{rank}.there")
    while True:
        pass


def save_checkpoint(rank):
    """An hour's writing, at a slow file server's pace."""
    with (FOLDER / "checkpoint.pt").open("wb", buffering=0) as file:
        for count in range(36_000):
            file.write(bytes(1 << 20))
            if count % 64 == 63:
                file.seek(0)
            if count == 1:
                mark(f"rank-{rank}.there")
            time.sleep(0.1)


class Training:
    def __init__(self, rank):
        import torch
        import torch.distributed as dist

        self.rank = rank
        self.dist = dist
        dist.init_process_group("gloo")
        self.groups = [dist.new_group(backend="gloo") for _ in range(int(os.environ.get("RUNNING_JOB_GROUPS", "0")))]
        for group in self.groups:
            dist.all_reduce(torch.ones(1), group=group)
        self.model = torch.nn.Linear(4, 4)
        if os.environ.get("RUNNING_JOB_DDP"):
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.batch = torch.ones(2, 4)
        self.order, self.order_step = ORDERS.get(str(rank), ("train", -1))
        self.alone = next((step for does, step in ORDERS.values() if does == "alone"), -1)

    def reduce(self, tensor):
        self.dist.all_reduce(tensor)

    def train_step(self):
        self.model.zero_grad()
        self.model(self.batch).sum().backward()
        if not hasattr(self.model, "module"):
            for parameter in self.model.parameters():
                self.reduce(parameter.grad)

    def evaluate(self):
        mark(f"rank-{self.rank}.there")
        self.reduce(self.batch.mean())

    def broadcast_metrics(self):
        mark(f"rank-{self.rank}.there")
        self.dist.broadcast(self.batch.mean(), src=self.rank)

    def finish(self):
        mark(f"rank-{self.rank}.finishing")
        self.dist.barrier()

    def pause(self):
        time.sleep(float(os.environ.get(f"RUNNING_JOB_PAUSE_{self.rank}", PAUSE)))

    def act(self):
        """What this rank was told to do now."""
        does, rank = self.order, self.rank
        if does == "sleep":
            prepare_batch(rank)
        elif does == "spin":
            spin(rank)
        elif does == "dataloader":
            read_batch()
        elif does == "other":
            self.broadcast_metrics()
        elif does == "alone":
            self.evaluate()
        elif does == "checkpoint":
            save_checkpoint(rank)
        elif does in ("stop", "kill", "exit"):
            mark(f"rank-{rank}.there")
            if does == "exit":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGSTOP if does == "stop" else signal.SIGKILL)
        elif does == "raise":
            mark(f"rank-{rank}.there")
            raise RuntimeError("told to")

    def run(self):
        for step in range(STEPS):
            if step == self.order_step:
                if self.order == "fewer":
                    break
                self.act()
            elif step == self.alone:
                break
            self.train_step()
            if step == 0:
                mark(f"rank-{self.rank}.training")
            mark(f"rank-{self.rank}.step", step)
            self.pause()
        self.finish()


def main(rank=None, world_size=None):
    """Ranks that are forked or spawned are told who they are; the others read it in their environment."""
    if rank is None:
        rank = int(os.environ["RANK"])
    else:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    mark(f"rank-{rank}.pid")
    Training(rank).run()
    mark(f"rank-{rank}.done")
    # torch's tear-down with gloo deadlocks at times.
    os._exit(0)


def start_ranks(method, count):
    import torch.multiprocessing as multiprocessing

    mark("parent.pid")
    if method == "spawn":
        multiprocessing.spawn(main, args=(count,), nprocs=count)
        return
    context = multiprocessing.get_context(method)
    ranks = [context.Process(target=main, args=(rank, count)) for rank in range(count)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("spawn", "fork", "forkserver"):
        start_ranks(sys.argv[1], int(sys.argv[2]))
    else:
        main()
