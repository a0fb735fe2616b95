"""What this host could compile a CUDA extension with."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.facts.base import Facts, Maybe, Source


class Nvcc(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: str
    """"13.0", or "" where it could not be run."""
    found_by: str
    """"CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda", "pip"."""
    error: str = ""


class Compiler(Facts, frozen=True, kw_only=True):
    path: str
    kind: str
    """"gcc", "clang"."""
    version: str
    found_by: str
    """"CXX", "CUDAHOSTCXX", "PATH"."""


class Toolchain(Facts, frozen=True, kw_only=True):
    """Sizes in bytes. torch takes CUDA_HOME, then CUDA_PATH, then nvcc on PATH, then /usr/local/cuda."""

    nvccs: Annotated[tuple[Nvcc, ...], Source("CUDA_HOME, PATH, /usr/local/cuda*")] = ()
    """In the order in which torch would take them."""
    cuda_home: Annotated[str | None, Source("CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda")] = None
    """What torch.utils.cpp_extension would use."""
    compiler: Annotated[Maybe[Compiler | None], Source("CXX, c++ on PATH")] = None
    ninja: Annotated[Maybe[str | None], Source("ninja on PATH or in the patient")] = None
    """Its version."""
    max_jobs: Annotated[str | None, Source("MAX_JOBS")] = None
    arch_list: Annotated[str | None, Source("TORCH_CUDA_ARCH_LIST")] = None
    compiles: Annotated[tuple[str, ...], Source("packages and cache folders")] = ()
    """Why something compiles here: "deepspeed is installed (it builds its ops at first use)", "an apex source tree lies in ..."."""
