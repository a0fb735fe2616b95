"""Messages that healthy runs print, too: recognised, and never blamed. What an illness says as well stands beside its check."""

from __future__ import annotations

from typing import Final

import msgspec


class HarmlessText(msgspec.Struct, frozen=True):
    """A text that healthy runs print, what it is and why it is harmless, and where it was found. alone: it only passes on what another one
    says, and nothing else in its line counts."""

    text: str
    why: str
    source: str
    alone: bool = False


HARMLESS: Final = (
    HarmlessText(
        "The client socket has failed to connect to [",
        "one of several attempts: torch tries IPv6 and IPv4 in turn, and again until its timeout; only the timeout is an error",
        "torch 2.13.0: torch/csrc/distributed/c10d/socket.cpp",
    ),
    HarmlessText(
        "The server socket cannot be initialized on ",
        "the host has no IPv6: torch goes on with IPv4",
        "torch 2.13.0: torch/csrc/distributed/c10d/socket.cpp",
    ),
    HarmlessText(
        "network addresses of (",
        "the name has no address of one of both families: torch goes on with the other",
        "torch 2.9.1: torch/csrc/distributed/c10d/socket.cpp",
    ),
    HarmlessText(
        "destroy_process_group() was not called before program exit",
        "the script ends without closing its process group: resources are freed by the exit",
        "torch 2.9.1: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    HarmlessText(
        "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters",
        "costs a little time in each step, and nothing else",
        "torch 2.13.0: torch/csrc/distributed/c10d/reducer.cpp",
    ),
    HarmlessText(
        "is deprecated; use TORCH_",
        "the variable has a new name, and is still read",
        "torch 2.9.1: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp",
    ),
    HarmlessText(
        "The module torch.distributed.launch is deprecated",
        "the older launcher still works",
        "torch 2.13.0: torch/distributed/launch.py",
    ),
    HarmlessText(
        "Redirects are currently not supported in Windows or MacOs",
        "torch says so at every start on some platforms",
        "torch 2.9.1: torch/distributed/elastic/multiprocessing/redirects.py",
    ),
    HarmlessText(
        "NCCL WARN Could not find a path for pattern",
        "NCCL takes the GPUs in the order of their numbers: slower, and it works",
        "NCCL 2.7: src/graph/search.cc",
    ),
    HarmlessText(
        "NCCL WARN Cannot get incoming CPU",
        "Google's FastSocket plugin goes on without knowing on which core packets arrive",
        "NCCL FastSocket on Google Cloud, as reported in public",
    ),
    HarmlessText(
        "/Plugin: Could not find:",
        "there is no plugin of that kind: NCCL uses what is built in",
        "nccl 2.27.5, 2.32.3: plugin loader",
    ),
    HarmlessText(
        "No plugin found (",
        "there is no network plugin: NCCL uses what is built in",
        "nccl 2.20.5: net.cc",
    ),
    HarmlessText(
        "NET/Plugin: Failed to find ncclNetPlugin",
        "the plugin offers an older interface, which NCCL tries next",
        "nccl 2.20.5, 2.27.5: net.cc",
    ),
    HarmlessText(
        "NET/Plugin: Failed to find ncclCollNetPlugin",
        "the plugin offers no collectives in the network (SHARP): NCCL does without",
        "nccl 2.20.5, 2.27.5: net.cc",
    ),
    HarmlessText(
        "Tuner: no plugin found",
        "there is no tuner plugin: NCCL uses its own choice of algorithms",
        "nccl 2.20.5: tuner.cc",
    ),
    HarmlessText(
        "NET/OFI Error opening file: /sys/devices/virtual/dmi/id/",
        "Amazon's plugin asks which kind of machine it runs on, and isn't told: NCCL goes on without what the plugin sets for it",
        "aws-ofi-nccl: src/platform-aws.c, get_platform_type(); its one line as reported in public",
    ),
    HarmlessText(
        "The given NumPy array is not writable",
        "a warning about a shared array: nothing fails of it",
        "torch 2.13.0: torch/csrc/utils/tensor_numpy.cpp",
    ),
    HarmlessText(
        "Detected call of `lr_scheduler.step()` before",
        "common at the first step of mixed precision, whose gradients were skipped",
        "torch 2.13.0: torch/optim/lr_scheduler.py",
    ),
    HarmlessText(
        "UserWarning: Failed to load image Python extension:",
        "torchvision can't read or write image files by itself: only torchvision.io needs that",
        "torchvision 0.9 to 0.22: torchvision/io/image.py",
        alone=True,
    ),
    HarmlessText(
        "Skipping import of cpp extensions: ",
        "torchao goes on without kernels of its own that don't fit this torch: only what needs them by name fails",
        "torchao 0.13: torchao/__init__.py, as reported in public",
        alone=True,
    ),
    HarmlessText(
        "UserWarning: Plan failed with a",
        "cuDNN tried one of several ways to compute a convolution, and torch goes on to the next: what is too much for all of them is raised",
        "torch 2.3 to 2.6: aten/src/ATen/native/cudnn/Conv_v8.cpp",
        alone=True,
    ),
    HarmlessText(
        "UserWarning: gemm_and_bias error: ",
        "cuBLASLt could not multiply so, and torch goes on without fusing: what fails then, too, is raised",
        "torch 2.6 to 2.13: aten/src/ATen/cuda/CUDABlas.cpp, as reported in public",
        alone=True,
    ),
    HarmlessText(
        "TypedStorage is deprecated",
        "announces a change in a later release",
        "torch 2.13.0: torch/storage.py",
    ),
    HarmlessText(
        "does not have many workers which may be a bottleneck",
        "advice about speed",
        "lightning 2.6.6: lightning/pytorch/trainer/connectors/data_connector.py",
    ),
    HarmlessText(
        "The following values were not passed to `accelerate launch` and had defaults used instead",
        "accelerate says so where there is no configuration file",
        "accelerate 1.15.0: accelerate/commands/launch.py",
    ),
    HarmlessText(
        "requires the dev libaio .so object and headers but these were not found",
        "only offloading to NVMe needs it",
        "deepspeed 0.19.8: op_builder/async_io.py",
    ),
    HarmlessText(
        "No OpenFabrics connection schemes reported that they were able to be",
        "Open MPI itself does without InfiniBand then; NCCL looks for it on its own",
        "openmpi 4.1.4: help-mpi-btl-openib-cpc-base.txt",
    ),
    HarmlessText(
        "ERROR: pip's dependency resolver does not currently take into account",
        "pip has installed everything all the same, and lists packages that ask for other versions",
        "pip 23.2: pip/_internal/commands/install.py",
    ),
    HarmlessText(
        "fatal: not a git repository",
        "a logger asked git which version of the code runs, and there is none",
        "made to happen with git 2.39",
    ),
    HarmlessText(
        "FutureWarning: ",
        "announces a change in a later release",
        "Python: the warning's category, as the interpreter prints it",
    ),
    HarmlessText(
        "/dso_loader.cc:",
        "TensorFlow, which only came along, goes on without its GPU libraries",
        "tensorflow 2.x: tsl and stream_executor dso_loader.cc, as reported in public",
        alone=True,
    ),
    HarmlessText(
        "failed call to cuInit: ",
        "TensorFlow, which only came along, goes on without GPUs",
        "tensorflow 2.x: stream_executor/cuda/cuda_driver.cc, as reported in public",
        alone=True,
    ),
    HarmlessText(
        "TryGetProviderInfo_CUDA]",
        "onnxruntime goes on on the CPU",
        "onnxruntime: provider_bridge_ort.cc, as reported in public",
        alone=True,
    ),
    HarmlessText(
        "slurmstepd: error: couldn't chdir to ",
        "Slurm starts the job in /tmp instead",
        "slurm: src/slurmd/slurmstepd/task.c, as reported in public",
        alone=True,
    ),
    HarmlessText(
        "detected dubious ownership in repository at",
        "git refuses to read a repository of another user: no training needs it",
        "git 2.35.2 and later: setup.c, as reported in public",
        alone=True,
    ),
    HarmlessText(
        "DeprecationWarning: ",
        "announces a change in a later release",
        "Python: the warning's category, as the interpreter prints it",
    ),
)  # fmt: skip
