"""Compiled extensions of torch, and what it takes to compile one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogSign, LogTraits, SignRole, check, requires
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.extensions import Extension, Extensions, SharedObject
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.toolchain import Nvcc, Toolchain
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.building import (
    home_of,
    minor_only,
    old_strings,
    readable,
    rejects,
    toolkit_fixes,
    torch_index,
    wheel_fix,
)
from ddpdoctor.knowledge.cuda_stack import needs_cuda_build
from ddpdoctor.knowledge.evidence import nvcc_version, told, torch_cuda
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.loading_signs import BUILT_ELSEWHERE, RAISED
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.logs.analyze.false_positives import is_of_own_script
from ddpdoctor.logs.analyze.sightings import word

OFFICIAL = ("torchvision", "torchaudio", "torchcodec")
"""Packages that come as wheels beside torch's own, rather than to be built here."""


def _missing_header(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Of a header alone it isn't known that there is no nvcc: pip's and conda's packages come one by one."""
    header = word(seen, "header")
    if not header or any(not one.words.get("header") for one in seen):
        return Particulars()
    return Particulars(
        f"The compiler doesn't find {header}, a header of the CUDA toolkit: not all of that is installed"
    )


@check(
    "extension-abi-mismatch",
    severity=FAIL,
    log=LogTraits(refuted=is_of_own_script),
    log_signs=(
        LogSign(
            "undefined symbol: _Z",
            pattern=r"^(?!.*(?:/torch/lib/|/torchvision/|/torchaudio/|(?:amp_C|apex_C|fused_layer_norm_cuda|syncbn|mlp_cuda|fused_dense_cuda)\.)).*undefined symbol: _ZN?K?(?:2at|3c10|5torch)",
            why="A C++ name of torch's that this torch doesn't have; Apex, torchvision and torch's own libraries are told apart by their files",
            source="glibc's ld.so; made to happen with modules linked by hand",
        ),
        LogSign(
            "were compiled with different CUDA versions",
            pattern=r"PyTorch and torch_\w+ were compiled with different CUDA versions",
            why="The own words of PyTorch Geometric's extensions, at their import",
            source="torch_scatter 2: torch_scatter/__init__.py",
        ),
        *BUILT_ELSEWHERE,
        LogSign(
            ": undefined symbol: cu",
            role=SignRole.HINTS,
            pattern=r"^(?!.*(?:/torch/lib/|/nvidia/|/torchvision/|/torchaudio/|(?:amp_C|apex_C|fused_layer_norm_cuda|syncbn|mlp_cuda|fused_dense_cuda)\.)).*"
            r"\.so: undefined symbol: cu(?:blas|sparse|dnn|rand|solver|fft|[A-Z])\w*",
            why="An extension that was linked without a library of CUDA's, or against another release; or the library in front is another",
            source="glibc's ld.so; of DeepSpeed's cpu_adam_op.so as reported in public",
        ),
        LogSign(
            "cannot open shared object file",
            role=SignRole.HINTS,
            pattern=r"(?:lib(?:c10|torch|torch_cpu|torch_python)|/torch_extensions/\S+)\.so: cannot open",
            why="An extension asks for a library of torch's that this torch hasn't got, or that wasn't loaded before; or itself was never built to its end",
            source="glibc's ld.so, with torch's folder for extensions that it compiles at first use; as reported in public",
        ),
        LogSign(
            "No module named '",
            role=SignRole.HINTS,
            pattern=rf"{RAISED}(?!torch\.|torchvision\.)\w[\w.]*\._(?:ext|C)'",
            why="The compiled part of a package isn't there: it was installed without (mmcv's lite wheel), or built for another Python",
            source="mmcv: utils/ext_loader.py, detectron2: layers, which call it so; Python's own words",
        ),
        LogSign(
            "DLL load failed while importing ",
            role=SignRole.HINTS,
            pattern=r"importing (?:_ext|_C|\w+_(?:ext|cuda|cpp))\b",
            why="Windows' word where an extension lacks a library, or a function in one: built for another torch or CUDA, or these aren't on PATH",
            source="Python 3.8 to 3.13: dynload_win.c, as reported in public of mmcv",
        ),
    ),
)
def extension_abi_mismatch(extensions: Extensions, target_python: TargetPython, torch: Torch) -> Iterator[Finding]:
    """A compiled extension was built for another torch, CUDA or Python.

    ## What breaks
    Importing it ends with `undefined symbol: _ZN3c10...`, `libcudart.so.11.0: cannot open shared object file` or
    `No module named ...`; torchvision says `operator torchvision::nms does not exist`.

    ## Why
    torch promises extensions no stable C++ interface: what was compiled against one release looks for functions that
    another no longer has; what was built for one major CUDA loads that one's runtime. Upgrading torch leaves them behind.

    ## Fix
    Install the companion wheel that was made for this torch, or build the extension again in this environment, with
    `--no-build-isolation` (so that it sees this torch) and `--no-cache-dir` (so that pip doesn't take the old wheel).
    Of one that is compiled at its first use, remove the folder in `~/.cache/torch_extensions`, and see on one rank what
    the compiler says. Where a library of torch's isn't found, `import torch` may only have to stand before it.
    """
    requires(torch.installed, "torch is not installed")
    requires(extensions.packages, "no compiled extension of torch is installed")
    for package in extensions.packages:
        for one in package.objects:
            if reason := mismatch(one, package.objects, target_python, torch):
                summary, evidence = reason
                yield Finding(
                    summary=f"{package.package} {package.version}".strip()
                    + f" {summary}"[: 150 - len(package.package)],
                    evidence=(Evidence(evidence, one.path),),
                    fixes=(reinstall(package, target_python, torch),),
                )
                break


def cudart_major(one: SharedObject) -> str:
    """Major version of the CUDA runtime that it loads, "" for none or one that it brings along."""
    found = (re.fullmatch(r"libcudart\.so\.(\d+)(?:\.\d+)*", name) for name in one.needed)
    return next((match[1] for match in found if match), "")


def other_python(one: SharedObject, target_python: TargetPython) -> str:
    """The version of CPython that it was built for ("3.10"), if that isn't the target Python's; else ""."""
    tag = re.fullmatch(r"cpython-(\d)(\d+)", one.python_tag)
    if not tag or not target_python.version:
        return ""
    version = f"{tag[1]}.{tag[2]}"
    return "" if target_python.version.split(".")[:2] == version.split(".") else version


def mismatch(
    one: SharedObject, siblings: tuple[SharedObject, ...], target_python: TargetPython, torch: Torch
) -> tuple[str, str] | None:
    """What is wrong with a shared object, after its package's name, and the evidence; None if nothing is."""
    name = one.path.rpartition("/")[2]
    build = torch.version or "the installed torch"
    if one.error:
        return f"has a broken file, {name}: {one.error}", f"{name}: {one.error}"
    if (version := other_python(one, target_python)) and not _other_build(one, siblings, target_python):
        return f"was built for Python {version}; this is {target_python.version}", f"{name} is tagged {one.python_tag}"
    if one.missing:
        return (
            f"needs {listed(one.missing, 2)}, which torch {build} doesn't have",
            f"{name} needs {listed(one.missing)}",
        )
    major = cudart_major(one)
    if major and torch.cuda and major != torch.cuda.partition(".")[0]:
        return (
            f"was built for CUDA {major}; torch {build} is for CUDA {torch.cuda}",
            f"{name} needs libcudart.so.{major}",
        )
    return unresolved(one, torch)


def unresolved(one: SharedObject, torch: Torch) -> tuple[str, str] | None:
    """As `mismatch()`, for symbols alone."""
    if not one.undefined:
        return None
    hint = "; it was built with the old C++ ABI" if old_strings(one.undefined) else ""
    name = torch.version or "the installed one"
    return (
        f"needs {readable(one.undefined[0])}, which torch {name} doesn't have{hint}",
        f"symbols that nothing defines: {listed(one.undefined, 3)}",
    )


def _other_build(one: SharedObject, siblings: tuple[SharedObject, ...], target_python: TargetPython) -> bool:
    """Whether the same module lies beside it for this Python: some packages ship one file for each."""
    return any(sibling.module == one.module and not other_python(sibling, target_python) for sibling in siblings)


def reinstall(package: Extension, target_python: TargetPython, torch: Torch) -> Fix:
    """The command that brings the package back in line with torch."""
    if package.package == "torchtext":
        return Fix(
            "Remove it: torchtext 0.18, for torch 2.3, was its last release",
            (uninstall(target_python, "torchtext"),),
        )
    if package.package in OFFICIAL:
        release = (torch.version or "").partition("+")[0]
        pinned = (f"torch=={release}",) if release else ()
        return Fix(
            f"Install the {package.package} that was made for this torch",
            (
                uninstall(target_python, package.package),
                pip_install(target_python, "--no-cache-dir", *pinned, package.package, *torch_index(torch)),
            ),
        )
    name = package.package.replace("_", "-")
    if not package.version:
        ask = f"import importlib.metadata as m; print(m.packages_distributions().get({package.package!r}))"
        return Fix(
            f"Build the package that {package.package} belongs to again, with --no-build-isolation; this tells which one it is",
            (in_target_python(target_python, "-c", ask),),
        )
    options = ("--force-reinstall", "--no-deps", "--no-build-isolation", "--no-cache-dir")
    version, _, local = package.version.partition("+")
    source = f", from PyPI's source (the wheel with +{local} came from elsewhere)" if local else ""
    return Fix(
        f"Build {name} again for this torch{source}", (pip_install(target_python, *options, f"{name}=={version}"),)
    )


def compiling(toolchain: Toolchain, torch: Torch) -> str:
    """The CUDA version of a torch for which something compiles on this host; ends the check where nothing does."""
    cuda = needs_cuda_build(torch)
    requires(toolchain.compiles, "nothing compiles CUDA code here")
    return cuda


def working_nvcc(toolchain: Toolchain) -> Nvcc:
    """The nvcc that torch would run, with a version."""
    requires(toolchain.nvcc, "there is no nvcc: see cuda-home-missing")
    assert toolchain.nvcc is not None
    if not toolchain.nvcc.version:
        known(Unknown(f"{toolchain.nvcc.path} --version: {toolchain.nvcc.error}"))
    return toolchain.nvcc


def why_compiling(toolchain: Toolchain) -> tuple[Evidence, ...]:
    return tuple(told(toolchain, "compiles", one.reason) for one in toolchain.compiles)


@check(
    "cuda-toolkit-mismatch",
    severity=FAIL,
    log_signs=(
        LogSign(
            "The detected CUDA version (",
            pattern=r"mismatches the version that was used to compile",
            why="torch's own words; 'has a minor version mismatch' is a warning only",
            source="torch 2.9.1: torch/utils/cpp_extension.py; made to happen with nvcc 13.0",
        ),
        LogSign(
            "does not match the version torch was compiled with",
            pattern=r"torch was compiled with .*unable to compile",
            why="DeepSpeed's own words; without 'unable to compile' it accepts the pair",
            source="deepspeed 0.19.8: op_builder/builder.py",
        ),
        LogSign(
            "Unsupported gpu architecture '",
            role=SignRole.HINTS,
            pattern=r"nvcc fatal *: Unsupported gpu architecture '(?P<arch>compute_\w+)",
            why="nvcc is older than the GPU, or so new that it has dropped it; TORCH_CUDA_ARCH_LIST may ask for a wrong one, too",
            source="nvcc, as reported in public",
        ),
        LogSign(
            "Error building extension '",
            role=SignRole.HINTS,
            near="Unsupported gpu architecture '",
            why="torch's word on a build that nvcc refused",
            source="torch 2.13.0: torch/utils/cpp_extension.py",
        ),
    ),
)
def cuda_toolkit_mismatch(
    toolchain: Toolchain,
    torch: Torch,
    target_python: TargetPython,
    driver: Maybe[Driver],
    gpus: Maybe[Gpus],
    machine: Maybe[Machine],
    packages: Maybe[Packages],
) -> Iterator[Finding]:
    """The nvcc that would compile extensions is of another CUDA version than torch.

    ## What breaks
    The build stops with "The detected CUDA version (12.4) mismatches the version that was used to compile PyTorch
    (13.0)"; DeepSpeed stops at the first use of an op, with CUDAMismatchException.

    ## Why
    An extension shares one CUDA runtime with torch, so it has to be compiled for the same. How strictly depends on who
    builds: torch's own tools refuse another major version, DeepSpeed some minor ones, Apex any difference.

    ## Fix
    Point `CUDA_HOME` to the toolkit of torch's version (`python -c "import torch; print(torch.version.cuda)"`), install
    it, or install the torch wheel for the toolkit that is there. A runtime without nvcc needs neither.
    """
    cuda = compiling(toolchain, torch)
    nvcc = working_nvcc(toolchain)
    refusals = [
        (consumer, reason)
        for consumer in toolchain.compiles
        if (reason := rejects(consumer.name, nvcc.version, cuda, skips_check=toolchain.skips_cuda_check))
    ]
    if not refusals:
        return
    wheel = wheel_fix(target_python, nvcc.version, torch, driver, gpus, machine, packages)
    yield Finding(
        summary=f"nvcc is of CUDA {nvcc.version}, but torch of CUDA {cuda}: {refusals[0][1]}",
        evidence=(
            nvcc_version(nvcc),
            torch_cuda(torch),
            *(told(toolchain, "compiles", consumer.reason) for consumer, _ in refusals),
        ),
        fixes=(*toolkit_fixes(toolchain, target_python, cuda), *((wheel,) if wheel else ())),
        # DeepSpeed compiles only those of its ops that a program uses; a build that is at hand stops at once.
        severity=WARN if all(consumer.name == "deepspeed" for consumer, _ in refusals) else FAIL,
    )


@check(
    "cuda-home-missing",
    severity=WARN,
    log=LogTraits(particulars=_missing_header),
    log_signs=(
        LogSign(
            "CUDA_HOME environment variable is not set",
            why="torch's own words",
            source="torch 2.13.0: torch/utils/cpp_extension.py; made to happen",
        ),
        LogSign(
            "CUDA was not found on the system, please set the CUDA_HOME",
            why="torch's own words",
            source="torch 2.13.0: torch/utils/cpp_extension.py",
        ),
        LogSign(
            "CUDA_HOME does not exist, unable to compile CUDA op(s)",
            why="DeepSpeed's own words",
            source="deepspeed 0.19.8: op_builder/builder.py",
        ),
        LogSign(
            "was requested, but nvcc was not found.",
            pattern=r"RuntimeError: --\w+ was requested",
            why="Apex's setup.py of 2019 and 2020, asked for its CUDA extensions",
            source="NVIDIA/apex: setup.py, as reported in public",
        ),
        LogSign(
            "was requested, but nvcc was not found.",
            role=SignRole.NOISE,
            pattern=r"^(?!.*RuntimeError: --).* was requested",
            why="What others made of it (flash-attn, mamba) only warns: mostly a wheel that was built elsewhere is installed",
            source="flash-attn, mamba-ssm, causal-conv1d: setup.py, as reported in public",
        ),
        LogSign(
            "name 'bare_metal_version' is not defined",
            near="was requested, but nvcc was not found.",
            why="Those setup.py go on without nvcc, and fail at the first question about its version",
            source="mamba-ssm, causal-conv1d: setup.py, as reported in public",
        ),
        LogSign(
            "unsupported operand type(s) for +: 'NoneType' and 'str'",
            near='cuda_dir + "/bin/nvcc"',
            within=4,
            why="A setup.py, mostly Apex's, asks nvcc for its version, and torch has found no folder for CUDA_HOME",
            source="NVIDIA/apex: setup.py, get_cuda_bare_metal_version(), which many projects have copied",
        ),
        LogSign(
            "/bin/nvcc'",
            pattern=r"No such file or directory: '\S*/bin/nvcc'",
            why="Python's own words for a program that isn't there: torch took a folder without nvcc as CUDA_HOME",
            source="torch 2.13.0: torch/utils/cpp_extension.py, which calls it; Python's own words",
        ),
        LogSign(
            "cannot find -lcuda",
            role=SignRole.HINTS,
            pattern=r"\bld\S{0,60}: cannot find -lcuda(?:rt)?(?![\w-])",
            why="The linker found no libcudart or libcuda: there is no toolkit, or its folder of stubs isn't searched",
            source="GNU ld, as reported in public",
        ),
        LogSign(
            ".h: No such file or directory",
            role=SignRole.HINTS,
            pattern=r"fatal error: (?P<header>(?:cuda(?:_runtime(?:_api)?|_profiler_api|_fp16|_bf16)?|cublas_v2|cusparse|cusolver\w*|curand\w*|cufft)\.h): No such",
            why="A header of the CUDA toolkit: there is none where the compiler looks, or not all of it was installed",
            source="gcc, as reported in public",
        ),
        LogSign(
            "Error building extension '",
            role=SignRole.HINTS,
            near="cannot find -lcuda",
            why="torch's word on a build that the linker refused",
            source="torch 2.13.0: torch/utils/cpp_extension.py",
        ),
        LogSign(
            "Error building extension '",
            role=SignRole.HINTS,
            near="fatal error: cuda_profiler_api.h: No such file",
            why="torch's word on a build that lacked a header of the toolkit",
            source="torch 2.13.0: torch/utils/cpp_extension.py",
        ),
        LogSign(
            "No CUDA runtime is found, using CUDA_HOME",
            role=SignRole.NOISE,
            why="torch tells which toolkit it takes, on a host that shows no GPU, as where a wheel is built",
            source="torch 2.9.1: torch/utils/cpp_extension.py; made to happen",
        ),
    ),
)
def cuda_home_missing(toolchain: Toolchain, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
    """Something compiles CUDA code here, but there is no nvcc where torch looks for it.

    ## What breaks
    Building Apex or an extension, and DeepSpeed when it first uses an op, stop with "CUDA_HOME environment variable is
    not set", "No such file or directory: .../bin/nvcc" or "cannot find -lcudart".

    ## Why
    torch brings the CUDA runtime, not the compiler. Its build tools take `CUDA_HOME`, else `CUDA_PATH`, else the folder
    above an nvcc on PATH (which goes wrong where that nvcc is a script of the system's), else /usr/local/cuda, and don't
    look what is in it. Container images called "runtime" have no nvcc, those called "devel" do. pip's packages of nvcc
    lack the libcudart.so that the linker asks for.

    ## Fix
    `export CUDA_HOME=/usr/local/cuda-13.0` (the version of torch's CUDA), or install that toolkit; with conda:
    `conda install -c nvidia/label/cuda-13.0.0 cuda-toolkit`.
    """
    cuda = compiling(toolchain, torch)
    nvcc = toolchain.nvcc
    if nvcc is not None and nvcc.whole:
        return
    home = toolchain.cuda_home
    lacks = f"has an nvcc but lacks {nvcc.lacks}" if nvcc else "has no bin/nvcc"
    here = (
        f"torch takes {home if len(home) <= 40 else '...' + home[-37:]} as CUDA_HOME, which {lacks}"
        if home
        else "there is no nvcc where torch looks"
    )
    fixes = toolkit_fixes(toolchain, target_python, cuda)
    other = next((one for one in toolchain.nvccs if one.whole), None)
    if other and not any(one.version == minor_only(cuda) for one in toolchain.nvccs):
        text = f"Or try the nvcc that is here, of CUDA {other.version or 'an unknown version'} (torch wants {cuda})"
        fixes = (*fixes, Fix(text, (f"export CUDA_HOME={shlex.quote(home_of(other))}",)))
    yield Finding(
        summary=f"CUDA code is compiled here, but {here}",
        evidence=(
            told(toolchain, "cuda_home", f"folder in which torch looks for nvcc: {home or 'none'}"),
            *why_compiling(toolchain),
        ),
        fixes=fixes,
    )
