"""A GPU's memory that runs out, told from the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import human, ranks_named
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.checks.processes.full_gpus import FullGpu, full_gpu
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import word

NOBODY_ELSE = Fix(
    "See whether somebody else holds the GPU", ("ddpdoctor check --select gpu-memory-in-use,zombie-gpu-process",)
)


GROW = Fix(
    "Where much is reserved but unallocated, let torch grow its blocks",
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
)
DEVICES = {
    "UR": "XPU", "ZE": "XPU", "DEVMEM": "HPU", "workspace": "HPU", "hbm": "TPU", " at the bottom of memory": "TPU", "MPS": "Mac",
}  # fmt: skip
"""What a sign's word for the device calls it, where it is none of NVIDIA's or AMD's."""


_SIZES: Final = compile_lazily(
    r"Tried to allocate (?P<wanted>[\d.]+) (?P<unit>[GT])iB.{1,60}?(?:\(GPU \d+; (?P<old>[\d.]+) GiB total capacity|has a total capac\w+ of (?P<new>[\d.]+) GiB)"
)
_ABSURD: Final = 20
"""So many times a whole GPU nobody asks for knowingly."""


def _times_the_gpu(seen: Sequence[SignMatch]) -> float:
    """How many times the whole GPU a single tensor was to have, by torch's figures; 0 where it has less."""
    found = next((sizes for match in seen if (sizes := _SIZES.search(match.line.text))), None)
    if not found:
        return 0.0
    wanted = float(found["wanted"]) * (1024 if found["unit"] == "T" else 1)
    times = wanted / float(found["old"] or found["new"])
    return times if times > 1 else 0.0


def _ranks(seen: Sequence[SignMatch]) -> set[int]:
    return {match.line.rank for match in seen if match.line.rank is not None}


@log_check("oom-batch-too-large", severity=FAIL, owner=Owner.USER)
def oom_batch_too_large(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The model, its batch and its activations don't fit into the GPU's memory.

    ## What breaks
    The rank stops with "CUDA out of memory"; the others wait for it or lose the connection.

    ## Why
    The process itself holds the memory: parameters, gradients, the optimizer's state, and activations, which grow with the
    batch and the length of its samples. A longest sample, or validation without `torch.no_grad()`, may come late. Tensors
    that are kept (`losses.append(loss)`) add up with every step. Where torch's figures show that others hold the GPU, see
    gpu-memory-held-by-others and zombie-gpu-process.

    ## Fix
    A smaller batch for each GPU, with gradient accumulation; mixed precision (bf16); activation checkpointing; FSDP or ZeRO
    for a large model. Where much is "reserved by PyTorch but unallocated":
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
    """
    ranks, wanted = _ranks(seen), word(seen, "wanted")
    if times := _times_the_gpu(seen):
        absurd = times >= _ABSURD
        much = (
            f"{times:.0f} times a whole GPU's memory: its size was computed wrongly"
            if absurd
            else "more than the whole GPU has"
        )
        return Finding.of(
            f"A tensor of {wanted} was asked for, {much}",
            Fix(
                "Print the sizes from which it is made before the line that the traceback names: an index or a length that is garbage, two "
                "large ones multiplied (x[:, None] - x[None, :]), a batch that was never split",
                ("print(x.shape)   # in the script",),
            ),
            cause="No smaller batch, and no other precision, makes that fit."
            if absurd
            else "It is one tensor that doesn't fit, whatever else the GPU holds: a whole data set or sequence at once, two large sizes multiplied, or a size that was computed wrongly.",
            rank=min(ranks, default=None),
        )
    full = next((full for match in seen if (full := full_gpu(match.line.text)) and full.besides_torch), None)
    if full:
        return _taken_besides_torch(full, ranks)
    device = DEVICES.get(word(seen, "device"), "GPU")
    return Finding.of(
        f"{device} memory is full on {ranks_named(ranks) if ranks else f'a {device}'}{f': {wanted} more were wanted' if wanted else ''}",
        Fix(f"Take a smaller batch for each {device}, and accumulate gradients over several"),
        Fix("Or need less: bf16 autocast, activation checkpointing, FSDP for a large model"),
        (GROW, NOBODY_ELSE) if device == "GPU" else (),
        rank=min(ranks, default=None),
    )


def _taken_besides_torch(full: FullGpu, ranks: set[int]) -> Finding:
    return Finding.of(
        f"GPU {full.gpu} is full, and torch has little of it: this process holds {human(full.own or 0)} of {human(full.total)},"
        f" and {human(full.besides_torch)} of that are not torch's",
        Fix(
            "Where it imports TensorFlow or JAX: these take nearly a whole GPU as they start. Let them take what they need",
            ("export TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_PREALLOCATE=false",),
        ),
        Fix(
            "Or, where TensorFlow only reads data, keep it off the GPUs",
            ('tf.config.set_visible_devices([], "GPU")   # in the script, right behind import tensorflow as tf',),
        ),
        Fix(
            "Else look for what takes GPU memory of its own in that process: an engine such as vLLM, an extension, NCCL with many groups"
        ),
        cause="What else runs in this process has taken the rest, and torch can't use it: a smaller batch gains little.",
        rank=min(ranks, default=None),
    )


@log_check("nccl-cuda-oom", severity=FAIL, owner=Owner.USER)
def nccl_cuda_oom(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NCCL found no room on the GPU for its buffers.

    ## What breaks
    Init or the first collective fails with "unhandled cuda error"; the other ranks see an internal error, a closed
    connection or a timeout.

    ## Why
    torch keeps what it has freed, so the GPU is full for everybody else. NCCL takes its buffers when a process group first
    communicates: some hundred MiB, more with many groups (tensor, pipeline, expert parallel) and many GPUs.

    ## Fix
    Leave some GiB free: a smaller batch, or `torch.cuda.set_per_process_memory_fraction(0.9)`. Call one collective on each
    group before the model is made. `NCCL_BUFFSIZE=2097152` halves the buffers.
    """
    ranks = _ranks(seen)
    return Finding.of(
        f"NCCL found no memory for its buffers on {ranks_named(ranks) if ranks else 'a GPU'}",
        Fix(
            "Leave NCCL some GiB: a smaller batch, or torch.cuda.set_per_process_memory_fraction(0.9) before the model"
        ),
        Fix("Or halve its buffers", ("export NCCL_BUFFSIZE=2097152",)),
        NOBODY_ELSE,
        rank=min(ranks, default=None),
    )


@log_check("amd-gpu-reset", severity=FAIL, owner=Owner.NODE)
def amd_gpu_reset(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """An AMD GPU hung, and the driver reset it.

    ## What breaks
    Each process that used the GPU ends with "GPU Hang" or an error of HIP; the ranks on other GPUs wait for it until the timeout.

    ## Why
    A kernel that never ends, or that faults; firmware, driver and ROCm that don't go together; power or heat; a defective GPU. Where the
    same GPU hangs with other programs, too, it is the GPU or its driver.

    ## Fix
    Read what the kernel log says right before the reset. Update driver and firmware to those that this release of ROCm names. Leave the node
    out of the job if it is always the same GPU.
    """
    gpu, node = word(seen, "gpu"), word(seen, "node")
    which = f"The AMD GPU {gpu}" if gpu else f"The AMD GPU of node {node}" if node else "An AMD GPU"
    return Finding.of(
        f"{which} hung, and {'the driver reset it' if gpu else 'its processes were ended'}",
        Fix("Read what the kernel says before it", ("sudo dmesg -T | grep -i -B20 'amdgpu.*reset'",)),
        Fix("See the GPU's errors, heat and firmware", ("rocm-smi --showrasinfo --showtemp --showfwinfo",)),
    )


_OF_ASCEND = ("EJ0001", "EL0005")
"""The driver's numbers for a card that is taken."""


@log_check("hpu-not-acquired", severity=FAIL, owner=Owner.UNKNOWN, of_rank=True)
def hpu_not_acquired(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A process could not take a Gaudi or Ascend card for itself.

    ## What breaks
    The rank ends as it first uses the card, with "Device acquire failed" (Gaudi), "The resources are busy" or "Maybe the last training process
    is running" (Ascend); the others wait for it.

    ## Why
    Another job, or a process that an earlier run left behind, holds the card, or the card is being reset. Or there are more ranks than free
    cards; or the container was started without them; or driver and firmware don't go with this release of the software.

    ## Fix
    See who holds the cards by `hl-smi` or `npu-smi info`, end what was left behind, wait ten seconds, and start as many ranks as there are free
    ones. A container needs `--runtime=habana -e HABANA_VISIBLE_DEVICES=all` (Gaudi) or `--device=/dev/davinci0` for each card (Ascend).
    """
    if any(words in match.line.text for match in seen for words in _OF_ASCEND):
        return Finding.of(
            "An Ascend card could not be taken: another process holds it, or it isn't ready",
            Fix(
                "See who holds the cards, and end what an earlier run left behind",
                ("npu-smi info", "ps -ef | grep [p]ython"),
            ),
            Fix("Wait ten seconds after it has ended, and start again with as many ranks as there are free cards"),
        )
    return Finding.of(
        "A Gaudi card could not be taken",
        Fix(
            "See who holds the cards, and whether all of them are there", ("hl-smi", "sudo fuser -v /dev/accel/accel*")
        ),
        Fix(
            "Start as many ranks as there are free cards; a container needs them, too",
            ("docker run --runtime=habana -e HABANA_VISIBLE_DEVICES=all ...",),
        ),
    )
