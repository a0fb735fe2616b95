"""Tools with which this host could compile a CUDA extension."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Nvcc(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    version: str
    """"13.0", or "" where it could not be run."""
    found_by: str
    """"CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda", "/usr/local/cuda-*", "conda", "pip"."""
    gcc_max: int | None = None
    """Newest major version of gcc that its crt/host_config.h lets pass; None: not found there."""
    has_headers: bool = True
    """Whether there is a cuda_runtime.h where torch lets the C++ compiler look if the folder above is CUDA_HOME."""
    has_libcudart: bool = True
    """Whether there is a libcudart.so to link with; pip's packages hold libcudart.so.13 alone, which -lcudart misses."""
    error: str = ""

    @property
    def whole(self) -> bool:
        """Whether an extension can be compiled and linked with its folder as CUDA_HOME."""
        return self.has_headers and self.has_libcudart

    @property
    def lacks(self) -> str:
        """Parts that its folder doesn't have, after "lacks"; "" if it is whole."""
        return "" if self.whole else "a libcudart.so to link with" if self.has_headers else "CUDA's headers"


class Compiler(Facts, frozen=True, kw_only=True):
    path: str
    kind: str
    """"gcc", "clang"."""
    version: str
    found_by: str
    """"CXX", "CC", "NVCC_CCBIN", "PATH", "the distribution's nvcc"."""


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """Something that compiles CUDA code on this host, with a rule of its own about CUDA versions."""

    name: str
    """"apex", "deepspeed", or "torch" for whatever builds through torch.utils.cpp_extension."""
    reason: str
    """How we know: "deepspeed 0.19.8 is installed (it builds its ops at first use)"."""


class Toolchain(Facts, frozen=True, kw_only=True):
    """Torch takes CUDA_HOME, then CUDA_PATH, then nvcc on PATH, then /usr/local/cuda."""

    nvccs: Annotated[tuple[Nvcc, ...], Source("CUDA_HOME, PATH, /usr/local/cuda*")] = ()
    """In the order in which torch would take them; the first lies in `cuda_home` only if that holds an nvcc at all."""
    cuda_home: Annotated[str | None, Source("CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda")] = None
    """What torch.utils.cpp_extension would use, whether there is an nvcc in it or not."""
    compiler: Annotated[Maybe[Compiler | None], Source("CXX, c++ on PATH")] = None
    """What torch.utils.cpp_extension compiles C++ with."""
    nvcc_compiler: Annotated[Maybe[Compiler | None], Source("CC, NVCC_CCBIN, gcc on PATH")] = None
    """What nvcc would hand its host code to; None: the same as `compiler`."""
    ninja: Annotated[Maybe[str | None], Source("ninja --version")] = None
    """Its version; None: no ninja on PATH."""
    ninja_beside_python: Annotated[bool, Source("the target Python's own folder")] = False
    """The target Python has a ninja, be it on PATH or not."""
    max_jobs: Annotated[str | None, Source("MAX_JOBS")] = None
    arch_list: Annotated[str | None, Source("TORCH_CUDA_ARCH_LIST")] = None
    unsupported_allowed: Annotated[bool, Source("NVCC_PREPEND_FLAGS, NVCC_APPEND_FLAGS")] = False
    """nvcc is told to take any host compiler (-allow-unsupported-compiler)."""
    skips_cuda_check: Annotated[bool, Source("DS_SKIP_CUDA_CHECK")] = False
    """DeepSpeed is told to take any nvcc."""
    skips_compiler_check: Annotated[bool, Source("TORCH_DONT_CHECK_COMPILER_ABI")] = False
    compiles: Annotated[tuple[Consumer, ...], Source("packages, cache and working folder")] = ()
    """What compiles here; empty: nothing that we know of."""
    apex_source: Annotated[str | None, Source("working folder")] = None
    """An Apex source tree at or directly below the working folder."""
    apex_source_style: Annotated[str, Source("its setup.py")] = ""
    """"environment" (APEX_CUDA_EXT=1) or "options" (--cuda_ext), by what its setup.py reads."""

    @property
    def nvcc(self) -> Nvcc | None:
        """The one that torch.utils.cpp_extension would run, None without one."""
        if self.cuda_home is None or not self.nvccs:
            return None
        first = self.nvccs[0]
        return first if first.path == f"{self.cuda_home.rstrip('/')}/bin/nvcc" else None
