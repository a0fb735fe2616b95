"""A training of two ranks under torchrun that ends well, or in one of several ways doesn't."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.command import plain_environ
from tests.support.running_jobs import wait_until

NOISE = "RuntimeError: unable to open shared memory object </torch_17> in read-write mode: No space left on device (28), so copies it"
"""The sign of an illness, which both ranks print in each run, and get over."""
NEW = "storage gateway lost its quorum on shelf 7, giving up"
"""What nobody has a sign for."""
SCRIPT = f'''\
import os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, how = dist.get_rank(), open("how").read()
open(f"pid-{{rank}}", "w").write(str(os.getpid()))
os.write(2, b"{NOISE}\\n")
for step in range(40):
    if step == 15 and rank == 1 and how == "lost":
        print("{NEW}", file=sys.stderr, flush=True)
        os._exit(7)
    if step == 15 and rank == 1 and how == "hang":
        open("stands", "w").close()
        time.sleep(600)
    loss = torch.ones(1)
    dist.all_reduce(loss)
    # In one piece: of two ranks that print at once lines are put into one.
    os.write(1, f"step {{step}} loss {{loss.item() / (step + 1):.4f}}\\n".encode())
dist.barrier()
os.write(1, b"model saved, training done\\n")
dist.destroy_process_group()
'''


def training(folder: Path, how: str) -> list[str]:
    """The command, the same however it is to end: "well", "lost" or "hang"."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "how").write_text(how)
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]


def log_of(folder: Path, how: str) -> Path:
    """Let it run, and return its log; one that hangs is killed, with all its ranks."""
    line, log = training(folder, how), folder / f"{how}.log"
    with log.open("wb") as file:
        job = subprocess.Popen(line, cwd=folder, env=plain_environ(), stdout=file, stderr=file)
        try:
            if how == "hang":
                wait_until((folder / "stands").exists, "the rank that stands", 90)
                wait_until(lambda: log.read_text().count("step 14 ") == 2, "what is printed before", 90)
                for pid in (job.pid, *(int((folder / f"pid-{rank}").read_text()) for rank in (0, 1))):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            job.wait(90)
        finally:
            job.kill()
            job.wait()
    return log
