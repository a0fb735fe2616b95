"""How libraries say that torch sees no GPU, whatever the reason, which several illnesses share; and that it was built for none."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.log_signs import LogSign, SignRole

SEES_NONE: Final = (
    LogSign(
        "No supported gpu backend found!",
        role=SignRole.HINTS,
        why="Lightning's word where torch sees no GPU, whatever the reason",
        source="Lightning 2: lightning/pytorch/trainer/connectors/accelerator_connector.py",
    ),
    LogSign(
        "`CUDAAccelerator` can not run on your system since the accelerator is not available",
        role=SignRole.HINTS,
        why="Lightning's word where torch sees no GPU, whatever the reason",
        source="Lightning 1.6 to 2: lightning/pytorch/trainer/connectors/accelerator_connector.py",
    ),
    LogSign(
        "can only be used on CUDA devices",
        role=SignRole.HINTS,
        pattern=r"FP16 Mixed precision training with AMP or APEX .*can only be used on CUDA devices",
        why="transformers' word where torch sees no GPU, whatever the reason",
        source="transformers 4: training_args.py",
    ),
    LogSign(
        "0 active drivers ([]). There should only be one",
        role=SignRole.HINTS,
        why="Triton's word where torch sees no GPU, whatever the reason",
        source="triton 3: runtime/driver.py, as reported in public",
    ),
)
NCCL_SEES_NONE: Final = LogSign(
    "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    role=SignRole.HINTS,
    why="torch's word where it has CUDA and NCCL, and sees no GPU, whatever the reason",
    source="torch 1.13.1 and 2.9.1: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
)
BUILT_WITHOUT: Final = (
    LogSign(
        "torch.cuda.Stream requires CUDA support",
        pattern=r"^(?!.{0,80}\b(?:WARN|WARNING|INFO|\w*Warning)\b).*torch\.cuda\.Stream requires",
        why="torch's own words for a build that lacks what torch.cuda.Stream is made of; in a warning somebody goes on without it",
        source="torch 2.13.0: torch/cuda/streams.py; made to happen",
    ),
    LogSign(
        "Tried to instantiate dummy base class ",
        pattern=r"dummy base class (?:Event|Stream|CUDAGraph|_CudaDeviceProperties|_?Cuda(?:Stream|Event)Base|_?CUDAGraph)\b",
        why="torch's own words for a build that lacks what these classes are made of",
        source="torch 2.13.0: torch/_utils.py and torch/cuda; made to happen",
    ),
    LogSign(
        " without ATen_cuda library. ",
        pattern=r"Cannot (?:get|initialize|query|access|synchronize) .{0,80}(?:CUDA|cuFFT|cuDNN).{0,80} without ATen_cuda library\. ",
        why="torch's own words: there is no CUDA library in this build, or one that wasn't loaded",
        source="torch 2.13.0: aten/src/ATen/detail/CUDAHooksInterface.h; made to happen with torch.Generator",
    ),
    LogSign(
        "device_id is an int, but no accelerator support is found from the current compilation",
        why="torch's own words on init_process_group(device_id=...): this build has no accelerator at all",
        source="torch 2.13.0: torch/distributed/distributed_c10d.py",
    ),
    LogSign(
        " does not match the current compilation's accelerator support: None",
        pattern=r"device_id cuda\S* does not match",
        why="torch's own words on init_process_group(device_id=...): this build has no accelerator at all",
        source="torch 2.13.0: torch/distributed/distributed_c10d.py; made to happen",
    ),
    LogSign(
        "Device type CUDA is not supported for torch.Generator() api",
        why="torch's own words in older releases of a build without CUDA",
        source="torch 1.5 to 1.12: torch/csrc/Generator.cpp",
    ),
)
