"""A small training for `watch`: healthy, with steps and pauses of all kinds, or with a fault. A rank of it, started by a launcher.

    torchrun --nproc-per-node 2 watched_training.py FOLDER '{"step": 0.05, "pause": "evaluation", "pause_seconds": 20, ...}'

Keys: step (seconds of a step), work (the part of it that computes), pause (its kind), pause_every and pause_seconds, seconds or steps (of the
whole), loader (DataLoader workers), fault, fault_at (the step) and fault_rank; ras ([a libnccl.so, the cases of ras_server.py...]): rank 0 has
NCCL's RAS, at NCCL_RAS_ADDR. The file FOLDER/fault says that the fault is there, FOLDER/go ends those faults that can end. FOLDER/steps holds the steps that rank 0 has done.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ras_server  # type: ignore[import-not-found]  # It lies beside this script.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])
WISH: dict[str, Any] = json.loads(sys.argv[2])
STEP = float(WISH.get("step", 0.05))
PAUSE_SECONDS = float(WISH.get("pause_seconds", 10))
FAULT = WISH.get("fault", "")
FAULT_RANK = int(WISH.get("fault_rank", 1))


STEP_BYTES = 8


def log(text: str) -> None:
    with (FOLDER / "log").open("a") as file:
        file.write(f"{time.strftime('%H:%M:%S')} rank {os.environ['RANK']}: {text}\n")


# --- healthy ----------------------------------------------------------------------------------------------------------------


def compute(seconds: float) -> None:
    """Keep a processor busy, as a forward does."""
    weights = torch.ones(64, 64)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        weights = torch.tanh(weights @ weights)


def wait_for_device(seconds: float) -> None:
    """As a rank waits for its GPU: it sleeps."""
    time.sleep(seconds)


def evaluate(model: torch.nn.Module) -> None:
    until = time.monotonic() + PAUSE_SECONDS
    with torch.no_grad():
        while time.monotonic() < until:
            compute(0.01)
            model(torch.randn(4, 16))
            wait_for_device(0.08)


def evaluate_lightly(model: torch.nn.Module) -> None:
    """As one whose model is on a GPU: it prepares a little, asks, and mostly waits, with some per cent of a core."""
    until = time.monotonic() + PAUSE_SECONDS
    with torch.no_grad():
        while time.monotonic() < until:
            prepare()
            ask(model)
            time.sleep(0.01)


def prepare() -> None:
    sum(range(5000))


def ask(model: torch.nn.Module) -> None:
    model(torch.ones(4, 16))


def save_checkpoint() -> None:
    until = time.monotonic() + PAUSE_SECONDS
    number = 0
    while time.monotonic() < until:
        path = FOLDER / f"part-{number % 3}.pt"
        torch.save({"weights": torch.randn(100_000)}, path)
        number += 1
        time.sleep(1.5)


def compile_model() -> None:
    """torch.compile of models of other shapes until the time is up."""
    until = time.monotonic() + PAUSE_SECONDS
    width = 3
    while time.monotonic() < until:
        layers = [layer for _ in range(6) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        torch.compile(torch.nn.Sequential(*layers))(torch.randn(2, width))
        torch._dynamo.reset()
        width += 1
        time.sleep(1.0)


def upload() -> None:
    """Another process copies what was saved, and the rank waits for it."""
    (FOLDER / "whole.pt").write_bytes(bytes(1 << 20))
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "until = time.monotonic() + float(sys.argv[2])\n"
            "while time.monotonic() < until:\n"
            "    open(sys.argv[1] + '.copy', 'wb').write(open(sys.argv[1], 'rb').read())\n"
            "    time.sleep(0.5)\n",
            str(FOLDER / "whole.pt"),
            str(PAUSE_SECONDS),
        ],
        check=True,
    )


class Samples(Dataset[torch.Tensor]):
    def __init__(self, count: int, slow: bool) -> None:
        self.count = count
        self.slow = slow

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.slow and index % 50 == 49:
            time.sleep(PAUSE_SECONDS)  # As a file system that doesn't answer for a while.
        if FAULT == "worker stuck" and index > 40 and os.environ["RANK"] == str(FAULT_RANK):
            stand_still()
            threading.Event().wait()
        if FAULT == "worker reads a pipe" and index > 40 and os.environ["RANK"] == str(FAULT_RANK):
            stand_still()
            (FOLDER / "pipe").read_bytes()
        return torch.randn(16)


def pause(kind: str, model: torch.nn.Module) -> None:
    if kind == "compilation":
        compile_model()
    elif dist.get_rank() == 0:
        log(f"pause: {kind}")
        if kind == "evaluation":
            evaluate(model)
        elif kind == "light evaluation":
            evaluate_lightly(model)
        elif kind == "checkpoint":
            save_checkpoint()
        elif kind == "upload":
            upload()
        elif kind == "quiet":
            time.sleep(PAUSE_SECONDS)
    dist.barrier()


# --- faults -----------------------------------------------------------------------------------------------------------------


def stand_still() -> None:
    """Say that the fault is there."""
    (FOLDER / "fault").touch()


def until_told() -> None:
    while not (FOLDER / "go").exists():
        time.sleep(0.5)


def fault_of_one(group: Any) -> None:
    """What the faulty rank alone does."""
    if FAULT == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAULT == "sleep":
        time.sleep(100_000)
    elif FAULT in ("polls for a file", "everybody polls"):
        until_told()
    elif FAULT == "lock held":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif FAULT == "lock of a thread":
        lock = threading.Lock()
        threading.Thread(target=lambda: (lock.acquire(), time.sleep(100_000)), daemon=True).start()
        time.sleep(0.2)
        lock.acquire()
    elif FAULT == "GIL held":
        import ctypes

        ctypes.PyDLL(None).sleep(100_000)
    elif FAULT == "endless loop":
        while True:
            pass
    elif FAULT == "debugger":
        sys.stdin = Path(FOLDER / "terminal").open()  # noqa: SIM115 (a pipe into which nobody writes)
        import pdb

        pdb.set_trace()
    elif FAULT == "reads a pipe":
        (FOLDER / "pipe").read_bytes()
    elif FAULT == "waits for a process":
        subprocess.run(["sleep", "100000"], check=True)
    elif FAULT == "waits for a server":
        import socket

        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        client.recv(1)
    elif FAULT == "empty queue":
        import queue

        queue.Queue().get()
    elif FAULT == "exits":
        os._exit(0)
    elif FAULT == "waits at its end":
        threading.Thread(target=time.sleep, args=(100_000,)).start()
        sys.exit(0)
    elif FAULT == "receives what nobody sends":
        dist.recv(torch.zeros(4), src=0)
    elif FAULT == "barrier on one branch":
        dist.barrier()
    elif FAULT == "another collective":
        dist.broadcast(torch.zeros(4), src=0)
    elif FAULT == "another group first":
        dist.all_reduce(torch.zeros(4), group=group[1])
        dist.all_reduce(torch.zeros(4), group=group[0])
    elif FAULT == "fewer steps":
        dist.barrier()


def fault_of_others(group: Any) -> None:
    """What the other ranks do in the faulty step."""
    if FAULT == "another group first":
        dist.all_reduce(torch.zeros(4), group=group[0])
        dist.all_reduce(torch.zeros(4), group=group[1])
    elif FAULT == "everybody polls":
        until_told()
    elif FAULT == "exits":
        time.sleep(1.0)
        dist.new_group()  # Through the store: nobody tells it that one is gone.


# --- the training -----------------------------------------------------------------------------------------------------------


def batches() -> Any:
    workers = int(WISH.get("loader", 0))
    if not workers and WISH.get("pause") != "loading":
        while True:
            yield torch.randn(4, 16)
    samples = Samples(10_000_000, WISH.get("pause") == "loading")
    loader = DataLoader(samples, batch_size=4, num_workers=workers)
    if FAULT == "worker stopped":
        iterator = iter(loader)
        for number, batch in enumerate(iterator):
            if number == 20 and dist.get_rank() == FAULT_RANK:
                stand_still()
                for worker in iterator._workers:
                    os.kill(worker.pid, signal.SIGSTOP)
            yield batch
    while True:
        yield from loader


class StepCount:
    """A file with the number of steps that were done, which is written to without a call of the kernel: one that wrote would move by that."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(STEP_BYTES))
        with path.open("r+b") as file:
            self._count = mmap.mmap(file.fileno(), STEP_BYTES)

    def note(self, steps: int) -> None:
        self._count[:] = steps.to_bytes(STEP_BYTES, "little")


def start_ras(library: str, *cases: str) -> None:
    """Have this rank answer as NCCL's RAS does, in a thread of its own, named as the one that torch starts for a group of NCCL's."""

    def serve() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_nccl_watchdg")
        ras_server.main(library, int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2]), list(cases))

    threading.Thread(target=serve, daemon=True).start()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    library = ras_server.map_library(WISH["ras"][0]) if "ras" in WISH else None
    if library and rank == 0:
        start_ras(*WISH["ras"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    groups = [dist.new_group(), dist.new_group()]
    until = time.monotonic() + float(WISH.get("seconds", 1e9))
    paused = time.monotonic()
    count = StepCount(FOLDER / "steps") if rank == 0 else None
    print(f"rank {rank}: training", flush=True)
    for step, batch in enumerate(batches()):
        loss = ddp(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        compute(STEP * float(WISH.get("work", 0.1)))
        wait_for_device(STEP * 0.9)
        if FAULT and step == int(WISH.get("fault_at", 20)) and not FAULT.startswith("worker"):
            if rank == FAULT_RANK:
                stand_still()
                fault_of_one(groups)
            else:
                fault_of_others(groups)
        ends = torch.tensor([float(time.monotonic() > until), float(time.monotonic() - paused)])
        # A broadcast lets some go on, more or less far: those that do as they should stand in several places.
        dist.broadcast(ends, src=0)
        if count:
            count.note(step + 1)
        if rank == 0 and step == 0:
            (FOLDER / "training").touch()
        if WISH.get("pause") not in (None, "loading") and ends[1] > float(WISH.get("pause_every", 60)):
            pause(str(WISH["pause"]), model)
            paused = time.monotonic()
        if ends[0] or step == WISH.get("steps"):
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
