"""What goes wrong with real ranks on a GPU. On the CPU, in a rehearsal, only as the user sees it: an error, a hang."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch

SECONDS = 300
"""A rank that nobody ends goes on after that."""


def illegal_access(device: torch.device) -> None:
    if torch.device(device).type == "cpu":
        raise RuntimeError("CUDA error: an illegal memory access was encountered (rehearsed)")
    from tests.gpu import kernels

    kernels.launch(kernels.ILLEGAL_ACCESS, 1 << 48)
    torch.cuda.synchronize()


def endless_kernel(device: torch.device) -> None:
    if torch.device(device).type == "cuda":
        from tests.gpu import kernels

        kernels.launch(kernels.ENDLESS)
        torch.ones(1, device=device).item()
    time.sleep(SECONDS)


def out_of_memory(device: torch.device) -> None:
    if torch.device(device).type == "cpu":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 GiB. (rehearsed)")
    torch.empty(1 << 40, dtype=torch.uint8, device=device)


def hold_gil(_: torch.device) -> None:
    ctypes.PyDLL(None).sleep(SECONDS)  # unlike CDLL it keeps the GIL


def sleep_in_user_code(_: torch.device) -> None:
    time.sleep(SECONDS)


def kill(_: torch.device) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: torch.device) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave(_: torch.device) -> None:
    os._exit(7)


def fail(_: torch.device) -> None:
    raise RuntimeError("a fault of the kit")
