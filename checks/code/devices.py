"""Models and tensors that are not on the GPU on which the script means to use them, told from its log."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.registry import SignRole
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.knowledge.python_commands import python_of
from ddpdoctor.logs.analyze.sightings import word

NO_CPU_YET: Final = "Tensors must be CUDA and dense"
"""Releases that say so may not have groups of two backends yet."""


@log_check("model-not-on-device", severity=FAIL, owner=Owner.USER, of_rank=True)
def model_not_on_device(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The model, or a part of it, was not on its GPU when DDP got it; or a collective got a tensor that wasn't.

    ## What breaks
    DDP() or the first forward pass ends with a ValueError or RuntimeError about devices, a collective with "No backend type
    associated with device type cpu".

    ## Why
    `model.to(device)` is missing, comes after DDP(), or a layer was added to the model after it was moved. `device_ids` is for
    models on one GPU only. NCCL works on GPUs only: it can't send parameters, buffers or tensors on the CPU.

    ## Fix
    `torch.cuda.set_device(local_rank)`, then `model = model.to(local_rank)`, then
    `DDP(model, device_ids=[local_rank])`. On the CPU: `DDP(model)` without device_ids. For tensors on the CPU, too:
    `init_process_group("cpu:gloo,cuda:nccl")` from torch 2.0 on, before `dist.new_group(backend="gloo")`.
    """
    where = word(seen, "where")
    if not where and word(seen, "tensor"):
        return _tensor_not_on_device(seen)
    on = "the CPU" if where in ("cpu", "CUDA") else where
    if word(seen, "wrapper"):
        return Finding.of(
            f"The model was not on the GPU on which FSDP is to train it: its parameters are on {on}",
            Fix(
                "Let FSDP move it: FSDP(model, device_id=torch.cuda.current_device()), after torch.cuda.set_device(local_rank)"
            ),
            Fix(
                "See that nothing moves it back before forward(): model.cpu(), an offload between two phases of the training"
            ),
        )
    return Finding.of(
        f"The model was not on the GPU that DDP was given{f': its parameters are on {on}' if on else ''}",
        Fix("Move the whole model before it is wrapped: DDP(model.to(local_rank), device_ids=[local_rank])"),
        Fix(
            "To train on the CPU: DDP(model), without device_ids and output_device; over gloo, as NCCL works on GPUs only"
        ),
    )


def _tensor_not_on_device(seen: Sequence[SignMatch]) -> Finding:
    sparse = ", or a sparse one" if all(match.role is SignRole.HINTS for match in seen) else ""
    return Finding.of(
        f"A collective was given a tensor on the CPU{sparse}, and this group has only NCCL, which works on GPUs",
        Fix('Make it on the rank\'s GPU: torch.tensor(..., device=f"cuda:{local_rank}")'),
        Fix(
            'Or send it over a group for the CPU: group = dist.new_group(backend="gloo"), on all ranks; dist.all_reduce(x, group=group)'
        )
        if any(match.sign == NO_CPU_YET for match in seen)
        else Fix('Or give the group a backend for the CPU, too: dist.init_process_group("cpu:gloo,cuda:nccl")'),
    )


BACKENDS: Final = {
    "cuda": ('dist.init_process_group("cpu:gloo,cuda:nccl")',),
    "xpu": (
        'dist.init_process_group("xccl")   # torch 2.8 and later',
        'import oneccl_bindings_for_pytorch   # before: and the backend "ccl"',
    ),
    "npu": ("import torch_npu", 'dist.init_process_group("hccl")'),
    "hpu": ("import habana_frameworks.torch.distributed.hccl", 'dist.init_process_group("hccl")'),
}
"""Kinds of devices, and what gives a process group a backend for them."""


@log_check("no-backend-for-device", severity=FAIL, owner=Owner.USER, of_rank=True)
def no_backend_for_device(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A collective got a tensor on a device for which the process group has no backend.

    ## What breaks
    The first collective with such a tensor ends with "No backend type associated with device type xpu" (or cuda, npu, hpu).

    ## Why
    A process group knows a backend for each kind of device: NCCL for CUDA and ROCm, XCCL or oneCCL for Intel's GPUs, HCCL for Ascend's
    and Habana's. The group was made with another one alone, or before the package that brings the backend was imported.

    ## Fix
    Make the group with the backend of that device, on all ranks, and import the package that brings it before: `torch_npu`,
    `habana_frameworks.torch.distributed.hccl`, `oneccl_bindings_for_pytorch` (Intel, before torch 2.8; later `xccl` is torch's own).
    """
    device = word(seen, "device")
    return Finding.of(
        f"A collective was given a tensor on a device of type {device}, for which the process group has no backend",
        Fix(
            "Make the group with a backend for it, on all ranks, after the import of what brings it",
            BACKENDS.get(device, ()),
        ),
    )


_WHAT_TORCH_SEES: Final = (
    "import torch; print(torch.__version__, torch.version.cuda, torch.version.hip, torch.cuda.device_count())"
)


@log_check("no-gpu-visible", severity=FAIL, owner=Owner.UNKNOWN)
def no_gpu_visible(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The script asks for a GPU, and torch sees none.

    ## What breaks
    What wants a GPU stops before the first step: Lightning with "No supported gpu backend found!", transformers with "can only be used on
    CUDA devices".

    ## Why
    `torch.cuda.is_available()` was False in that process, and the library doesn't say why. Most likely first: the scheduler gave the job or its step
    no GPU; CUDA_VISIBLE_DEVICES is empty or -1; torch is a build without CUDA; the driver isn't there or not loaded; or a
    container was started without GPUs.

    ## Fix
    Where the training ran, in the same job, see what torch and the driver show. torch.version.cuda None (and hip None): install the build for GPUs.
    No GPU in `nvidia-smi -L`: ask the scheduler for one (Slurm: `--gpus-per-node`, and the same for `srun`'s step), or start the container with
    GPUs. GPUs there, and a count of 0: look at CUDA_VISIBLE_DEVICES. If it is to run on the CPU, don't ask for a GPU: fp16 off,
    `accelerator="cpu"`.
    """
    return Finding.of(
        "The script asks for a GPU, and torch sees none",
        Fix(
            "Where the training ran, and within the same job, see what torch and the driver show",
            (
                shlex.join((python_of(log), "-c", _WHAT_TORCH_SEES)),
                'echo "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-not set}"',
                "nvidia-smi -L",
            ),
        ),
        Fix(
            "No GPU in the list: ask the scheduler for one, as Slurm by `--gpus-per-node`, or start the container with GPUs. GPUs in"
            " the list, and a count of 0: CUDA_VISIBLE_DEVICES hides them. `None None` behind the version: this torch was built without GPU support"
        ),
        Fix("Let the checks look, there", ("ddpdoctor check",)),
        Fix('If it is to run on the CPU, ask for no GPU: fp16 off, or accelerator="cpu"'),
    )


@log_check("device-map-mixed", severity=FAIL, owner=Owner.USER, of_rank=True)
def device_map_mixed(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """A model is spread over GPUs by device_map, and a tensor met one on another GPU.

    ## What breaks
    The forward pass or the loss ends with "Expected all tensors to be on the same device, but found at least two devices, cuda:1 and
    cuda:0".

    ## Why
    With `device_map="auto"` accelerate puts the layers on several GPUs of one process, and its hooks move the inputs of each layer. What the model
    computes by itself between layers, as its loss, isn't moved: the labels are on the first GPU, the last layer's output on
    another.

    ## Fix
    If the model fits one GPU: `device_map={"": int(os.environ.get("LOCAL_RANK", 0))}`, one process for each GPU. Else move the labels to the
    output's device before the loss (`labels.to(logits.device)`), or update transformers, whose models do it by themselves by now. To see
    the map: `print(model.hf_device_map)`.
    """
    one, other = word(seen, "one"), word(seen, "other")
    return Finding.of(
        f"The model is spread over GPUs by device_map, and tensors on {one} and {other} met",
        Fix("See which layer is where", ("print(model.hf_device_map)",)),
        Fix(
            "If the model fits one GPU, let each process load it on its own",
            ('device_map={"": int(os.environ.get("LOCAL_RANK", 0))}',),
        ),
        Fix(
            "Else compute the loss where the output is, or update transformers", ("labels = labels.to(logits.device)",)
        ),
    )
