"""How the dynamic loader says that torch, or an extension, doesn't go with what is there."""

from __future__ import annotations

from typing import Final

from ddpdoctor.base.log_signs import LogSign, SignRole

NEWER_SYSTEM: Final = LogSign(
    "version `GLIBC_2.",
    role=SignRole.HINTS,
    pattern=r"^(?!/\S*/(?!python)[\w.-]+: ).*version `(?P<wanted>GLIBC_2\.\d+)' not found \(required by (?!\S*/torch/lib/)\S*\.so",
    why="The loader's words on the C library, which comes with the system, to Python: it was built on a newer one, and has to be built for this one",
    source="glibc's ld.so; as reported in public",
)
RAISED: Final = r"^(?:E +)?(?:ModuleNotFoundError|ImportError): .*No module named '"
"""Python's own line: what a library says of it, as it goes on without, isn't meant."""
BUILT_ELSEWHERE: Final = (
    LogSign(
        ".so: undefined symbol: ",
        pattern=r"^(?!.*(?:/torch/lib/|/torchvision/|/torchaudio/)).*\.so: undefined symbol: (?:aoti_)?torch_\w+",
        why="A function of torch's interface for extensions that this torch doesn't have",
        source="torch 2.13.0: torch/csrc/inductor/aoti_torch/c/shim.h; glibc's ld.so",
    ),
    NEWER_SYSTEM,
    LogSign(
        "ot compiled with GPU support",
        role=SignRole.HINTS,
        pattern=r"^(?:E +)?(?:(?:\w+\.)*\w+Error| *what\(\)): .*[Nn]ot compiled with GPU support",
        why="An extension's own words, mostly detectron2's and its kin's: it was built where there was no toolkit or no GPU",
        source="detectron2: layers/csrc; torchvision up to 0.5; as reported in public",
    ),
    LogSign(
        ": implementation for device cuda:",
        role=SignRole.HINTS,
        pattern=r"\b\w+_impl: implementation for device cuda:\d+ not found",
        why="mmcv's own words: it was built without its part for CUDA",
        source="mmcv: ops/csrc/common/pytorch_device_registry.hpp",
    ),
    LogSign(
        "NameError: name '_C' is not defined",
        role=SignRole.HINTS,
        why="A package's compiled part could not be loaded, as it warned at its import",
        source="GroundingDINO: ms_deform_attn.py, as reported in public; others call it so, too",
    ),
    LogSign(
        "No module named '",
        role=SignRole.HINTS,
        pattern=rf"{RAISED}(?!(?:fused_layer_norm|mlp|fused_dense)_cuda')\w+_cuda'",
        why="The compiled part of a package isn't there: it was installed without, or built for another Python",
        source="flash-attn, mamba and others, which call it so; Python's own words",
    ),
)
TORCH_BROKEN: Final = (
    LogSign(
        "undefined symbol: iJIT_NotifyEvent",
        pattern=r"libtorch_cpu\.so: undefined symbol: iJIT_NotifyEvent",
        why="This torch was linked against an older MKL than the one that conda or pip put beside it",
        source="glibc's ld.so; as reported in public",
    ),
    LogSign(
        ": cannot enable executable stack as shared object requires",
        pattern=r"lib(?:torch|c10)\w*\.so: cannot enable",
        why="glibc 2.41 and later refuse what older builds of torch ask for",
        source="glibc's ld.so; as reported in public",
    ),
    LogSign(
        ": cannot allocate memory in static TLS block",
        pattern=r"/torch/lib/\S+: cannot allocate",
        why="The loader's words on a library of torch's own that comes too late: import torch before the others",
        source="glibc's ld.so; as reported in public",
    ),
    LogSign(
        "No module named 'torch._C'",
        role=SignRole.HINTS,
        pattern=r"^\S.*No module named 'torch\._C'",
        why="torch's C part isn't there: built for another Python, not unpacked to its end, or a folder called torch stands in front",
        source="Python's own words; torch 2.13.0: torch/__init__.py",
    ),
)
