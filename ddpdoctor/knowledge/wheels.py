"""Builds of torch, and the drivers and GPUs that each serves. Tables with their source, and pure rules on them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from ddpdoctor.base.lazy_patterns import compile_lazily

WHEELS = "https://download.pytorch.org/whl"

JETSON_INDEX = "https://pypi.jetson-ai-lab.io/jp6/cu126"
"""Wheels for JetPack 6 (CUDA 12.6, Python 3.10). Source: NVIDIA's Jetson AI Lab."""

CUDA_TAGS: dict[tuple[int, int], tuple[str, ...]] = {
    (2, 0): ("cu117", "cu118"),
    (2, 1): ("cu118", "cu121"),
    (2, 2): ("cu118", "cu121"),
    (2, 3): ("cu118", "cu121"),
    (2, 4): ("cu118", "cu121", "cu124"),
    (2, 5): ("cu118", "cu121", "cu124"),
    (2, 6): ("cu118", "cu124", "cu126"),
    (2, 7): ("cu118", "cu126", "cu128"),
    (2, 8): ("cu126", "cu128", "cu129"),
    (2, 9): ("cu126", "cu128", "cu130"),
    (2, 10): ("cu126", "cu128", "cu130"),
    (2, 11): ("cu126", "cu128", "cu130"),
    (2, 12): ("cu126", "cu130", "cu132"),
    (2, 13): ("cu126", "cu130", "cu132"),
    (2, 14): ("cu126", "cu130", "cu132"),
}
"""Indexes that hold a release's Linux wheels. Source: pytorch.org/get-started/previous-versions and the release RFCs
(pytorch/pytorch#178665 and #190355 for 2.12 to 2.14)."""

DRIVER_FLOOR = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""CUDA major to the oldest Linux driver that serves it by minor-version compatibility.
Source: CUDA toolkit release notes, table "CUDA Minor Version Compatibility"."""

ARCHITECTURES: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "cu118": ((3, 7), (9, 0)),
    "cu126": ((5, 0), (9, 0)),
    "cu128": ((7, 5), (12, 1)),
    "cu130": ((7, 5), (12, 1)),
}
"""Oldest and newest compute capability that the newest wheels of an index have code for.
Source: PyTorch's CUDA support matrix (RELEASE.md; dev-discuss 3128 and 3290, by which Maxwell, Pascal and Volta are
left to CUDA 12.6)."""

CUDA_WHEELS = {
    "cublas": "cublas", "cublasLt": "cublas", "cudart": "cuda-runtime", "cudnn": "cudnn", "cufft": "cufft", "cufile": "cufile",
    "cupti": "cuda-cupti", "curand": "curand", "cusolver": "cusolver", "cusparse": "cusparse", "cusparseLt": "cusparselt",
    "nccl": "nccl", "nvJitLink": "nvjitlink", "nvrtc": "cuda-nvrtc", "nvshmem": "nvshmem", "nvToolsExt": "nvtx",
}  # fmt: skip
"""Stem of a library's name to the middle of the name of the wheel that brings it: nvidia-cublas-cu12, and nvidia-cublas for CUDA 13."""


def index_url(tag: str) -> str:
    """`https://download.pytorch.org/whl/cu130` for "cu130"."""
    return f"{WHEELS}/{tag}"


def index_options(version: str) -> tuple[str, ...]:
    """pip's options for the index that a build came from: by its local tag; none for PyPI's untagged builds."""
    tag = version.partition("+")[2]
    return ("--index-url", index_url(tag)) if re.fullmatch(r"cpu|cu\d+|rocm[\d.]+", tag) else ()


def cuda_tag(cuda: str) -> str:
    """ "13.0" as the wheels' tag, "cu130"."""
    return "cu" + "".join(cuda.split(".")[:2])


def tag_cuda(tag: str) -> tuple[int, int] | None:
    """The CUDA of a wheel's tag: "cu130" is (13, 0); None for "cpu" and the like."""
    found = re.fullmatch(r"cu(\d+)(\d)", tag)
    return (int(found[1]), int(found[2])) if found else None


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "12.8.90" is (12, 8, 90), "580.95.05" (580, 95, 5)."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def same_version(version: str, other: str) -> bool:
    """Equal as far as both tell: a file says "9.10.2" of what its package calls "9.10.2.21"."""
    left, right = _as_far_as_both_tell(version, other)
    return left == right != ()


def older(version: str, than: str) -> bool:
    """Whether a version is lower than another, as far as both tell."""
    left, right = _as_far_as_both_tell(version, than)
    return left < right


def _as_far_as_both_tell(version: str, other: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    left, right = numbers(version), numbers(other)
    return left[: len(right)], right[: len(left)]


def release(version: str | None) -> Version | None:
    """A torch version parsed, None where it isn't one by PEP 440."""
    try:
        return Version(version) if version else None
    except InvalidVersion:
        return None


def best_tag(
    driver_cuda: tuple[int, int] | None,
    capabilities: Iterable[tuple[int, int]] = (),
    torch_version: str | None = None,
) -> str | None:
    """The index to install from on a host with this driver and these GPUs.

    driver_cuda: the newest CUDA that the driver serves; None: no driver, the answer goes by the GPUs alone.
    torch_version: keep to an index that has this release; None: any release will do.
    Gives None where no wheel serves driver and GPUs together: the driver must be updated first.
    """
    gpus = list(capabilities)
    parsed = release(torch_version)
    tags = CUDA_TAGS.get((parsed.major, parsed.minor)) if parsed else None
    for tag in ("cu130", "cu129", "cu128", "cu126", "cu124", "cu121", "cu118"):
        if tag not in (ARCHITECTURES if tags is None else tags):
            continue
        if tags is None and tag == "cu128" and all(gpu < (10, 0) for gpu in gpus):
            continue  # cu126 holds newer releases; only Blackwell needs 12.8
        if runs_here(tag, driver_cuda, gpus, ARCHITECTURES.get(tag, ((5, 0), (9, 0)))):
            return tag
    return None


def runs_here(
    tag: str,
    served: tuple[int, int] | None,
    gpus: Iterable[tuple[int, int]],
    architectures: tuple[tuple[int, int], tuple[int, int]],
) -> bool:
    """Whether wheels of an index, made for these architectures, run on a driver that serves this CUDA (None: not known) and on
    GPUs of these compute capabilities."""
    cuda = tag_cuda(tag)
    assert cuda is not None
    if served is not None and cuda[0] > served[0]:
        return False
    oldest, newest = architectures
    return all(oldest <= gpu <= newest for gpu in gpus)


ARCHITECTURE = compile_lazily(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(capability: tuple[int, int], arch_list: Iterable[str], *, tegra: bool = False, jit: bool = True) -> bool:
    """Whether a binary with code for `arch_list` ("sm_80", "compute_90", "sm_90a") runs on that compute capability.

    Machine code (sm_XY) runs within its major on the same or a higher minor; with the suffix "a" either runs on that very GPU
    only, with "f" within its major.
    Intermediate code (compute_XY) is compiled by the driver for any newer GPU, unless the driver is older than the CUDA
    it was made by (`jit` False). Tegra and desktop code don't mix, so a Jetson needs its own sm.
    Source: CUDA programming guide, "Binary Compatibility" and "PTX Compatibility".
    """
    for entry in arch_list:
        found = ARCHITECTURE.fullmatch(entry)
        if not found or (found[1] == "compute" and not jit):
            continue
        code, suffix = (int(found[2]), int(found[3])), found[4]
        if code == capability:
            return True
        in_family = code[0] == capability[0] and not (tegra and found[1] == "sm")
        if suffix != "a" and code < capability and (in_family or (found[1] == "compute" and suffix != "f")):
            return True
    return False
