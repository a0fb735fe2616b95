"""Raw CUDA kernels without a compiler on the host: NVRTC, which comes with torch, and the driver's own API, by ctypes."""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from pathlib import Path

ILLEGAL_ACCESS = 'extern "C" __global__ void kernel(long long where) { *(volatile int *)where = 1; }'
ENDLESS = 'extern "C" __global__ void kernel(long long where) { volatile int go = 1; while (go) { } }'


def launch(source: str, argument: int = 0) -> None:
    """Compile a kernel and start it on the current device's current context; returns while it runs.

    Args:
        source: CUDA C++ with one `extern "C" __global__ void kernel(long long)`.
        argument: the kernel's.

    Raises:
        RuntimeError: NVRTC or the driver refused.
    """
    import torch

    torch.ones(1, device="cuda").item()  # there is a context from now on
    major, minor = torch.cuda.get_device_capability()
    image = _compiled(source, f"--gpu-architecture=compute_{major}{minor}")
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _must(cuda.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
    _must(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"kernel"), "cuModuleGetFunction")
    value = ctypes.c_longlong(argument)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    _must(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None), "cuLaunchKernel")


def _compiled(source: str, architecture: str) -> ctypes.Array[ctypes.c_char]:
    """PTX, which the driver brings to the GPU's own code."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _must(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "NVRTC")
    options = (ctypes.c_char_p * 1)(architecture.encode())
    _must(nvrtc.nvrtcCompileProgram(program, 1, options), f"NVRTC with {architecture}")
    size = ctypes.c_size_t()
    _must(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)), "NVRTC")
    image = ctypes.create_string_buffer(size.value)
    _must(nvrtc.nvrtcGetPTX(program, image), "NVRTC")
    return image


def _nvrtc() -> ctypes.CDLL:
    """The one that torch has loaded or would load: beside it, among the packages, on the loader's path."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libnvrtc.so" in line}
    packaged = [
        found
        for folder in sys.path
        for found in glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libnvrtc.so*"))  # noqa: PTH207, PTH118
        if "builtins" not in found
    ]
    toolkit = sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so*"), reverse=True)  # noqa: PTH207
    for path in (*sorted(mapped), *packaged, *toolkit, "libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise RuntimeError("there is no libnvrtc on this machine")


def _must(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what} returned {code}")
