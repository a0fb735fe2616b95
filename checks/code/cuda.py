"""Mistakes of a training script in its use of CUDA, told from their log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import SignRole, check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import lines, said_by, sightings, word


@log_check("cuda-fork-reinit", severity=FAIL, owner=Owner.USER, of_rank=True)
def cuda_fork_reinit(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A forked process uses CUDA, which its parent had used before.

    ## What breaks
    A DataLoader's worker or a process of multiprocessing ends with "Cannot re-initialize CUDA in forked subprocess".

    ## Why
    CUDA doesn't work in a forked process once the parent has used it. A dataset or collate function that moves tensors to the GPU needs it in the workers;
    `mp.Process` forks by default on Linux before Python 3.14.

    ## Fix
    Keep CUDA out of the workers: return CPU tensors, and move them in the training loop. Else
    `DataLoader(..., multiprocessing_context="spawn")` or `mp.set_start_method("spawn")`; ranks are best started by torchrun.
    """
    return Finding.of("A forked process used CUDA, which its parent had used before", _start_anew(log))


def _start_anew(log: Log) -> tuple[Fix, ...]:
    paths = " ".join(frame.path.replace("\\", "/") for exception in log.raised for frame in exception.frames)
    if "torch/multiprocessing/spawn.py" in paths and "utils/data/" not in paths:
        return (
            Fix(
                'Don\'t fork the processes: start them by mp.start_processes(..., start_method="spawn"), or by torchrun'
            ),
            Fix("Or don't use CUDA before that in the process that starts them: no tensor on a GPU, and no torch.cuda"),
        )
    return (
        Fix("Let datasets and collate functions return CPU tensors, and move them in the loop: x.to(device)"),
        Fix('Or don\'t fork the workers: DataLoader(..., multiprocessing_context="spawn")'),
    )


@log_check("cuda-illegal-access", severity=FAIL, owner=Owner.UNKNOWN, of_rank=True)
def cuda_illegal_access(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A CUDA kernel read or wrote memory that isn't its own.

    ## What breaks
    The rank dies with "an illegal memory access was encountered" or "misaligned address", at some call after the kernel's; NCCL's watchdog often is
    the one that notices, and the other ranks lose the connection.

    ## Why
    An index past the end of an array, in the script's own kernel or one of an extension (flash-attention, Triton, a custom operator), a
    tensor on another GPU than the kernel's, or one freed while it was in use. Rarely it is a fault of the GPU: then the
    driver logs an Xid of it.

    ## Fix
    `CUDA_LAUNCH_BLOCKING=1` makes the traceback point at the kernel; `compute-sanitizer --target-processes all python
    train.py` names the access. `sudo dmesg | grep -i xid` tells whether it is the GPU.
    """
    if any(text in match.line.text for match in seen for text in ("HIP error: ", "by GPU node-", "HSA_STATUS_")):
        return Finding.of(
            "A kernel on an AMD GPU accessed memory that isn't its own",
            Fix(
                "Let the traceback point at the kernel",
                ("AMD_SERIALIZE_KERNEL=3 torchrun --nproc-per-node=1 train.py",),
            ),
            Fix("See whether the driver logged a fault of the GPU", ("sudo dmesg -T | grep -i amdgpu",)),
            cause="An index past the end of an array, in the script's own kernel or one of an extension, or memory that was freed while it"
            " was in use. Rarely it is a fault of the GPU: then the kernel's log has lines of amdgpu before it.",
        )
    misaligned = all("misaligned address" in match.line.text for match in seen)
    return Finding.of(
        "A CUDA kernel accessed memory at an address that isn't a multiple of what it reads at once: misaligned address"
        if misaligned
        else "A CUDA kernel accessed memory that isn't its own: an illegal memory access was encountered",
        Fix("Let the traceback point at the kernel", ("CUDA_LAUNCH_BLOCKING=1 torchrun --nproc-per-node=1 train.py",)),
        Fix("See which access it is", ("compute-sanitizer --target-processes all python train.py",)),
        Fix("See whether the driver logged a fault of the GPU", ("sudo dmesg | grep -i xid",)),
    )


@check("barrier-device-unknown", severity=FAIL, owner=Owner.USER)
def barrier_device_unknown(log: Log) -> Iterator[Finding]:
    """NCCL had to guess on which GPU a barrier is to run.

    ## What breaks
    Where the guess is wrong, two ranks take one GPU, or memory is taken on a GPU that isn't theirs: the first barrier hangs
    until the watchdog ends it.

    ## Why
    `dist.barrier()` came before any other collective, and torch hadn't been told which GPU is the rank's. NCCL takes the global rank
    modulo the number of GPUs, which is wrong where the ranks are in another order or each rank sees other GPUs.

    ## Fix
    `torch.cuda.set_device(local_rank)` first, and `init_process_group("nccl", device_id=torch.device("cuda", local_rank))`.
    """
    seen = sightings(log, "barrier-device-unknown")
    if not seen:
        return
    gpu = word([match for match in seen if match.role is not SignRole.NOISE], "gpu")
    guess = f"guessed GPU {gpu} for a barrier" if gpu else "had to guess a barrier's GPU"
    yield Finding.of(
        f"NCCL {guess}, and the first collective timed out",
        lines(log, seen),
        Fix(
            "Tell torch which GPU is the rank's: torch.cuda.set_device(local_rank), and"
            ' init_process_group("nccl", device_id=torch.device("cuda", local_rank))'
        ),
        rank=said_by(seen),
    )
