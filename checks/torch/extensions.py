"""Compiled extensions of torch, and what it takes to compile one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, requires
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
    wheel_fix,
)
from ddpdoctor.knowledge.cuda_stack import needs_cuda_build
from ddpdoctor.knowledge.evidence import nvcc_version, told, torch_cuda
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.wheels import index_options
from ddpdoctor.logs.analyze.false_positives import is_of_own_script
from ddpdoctor.logs.analyze.sightings import word

OFFICIAL = ("torchvision", "torchaudio", "torchcodec")
"""Packages that come as wheels beside torch's own, rather than to be built here."""


def _missing_header(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Name the missing header. That there is no nvcc isn't known of it: pip's and conda's packages come one by one."""
    header = word(seen, "header")
    if not header or any(not match.words.get("header") for match in seen):
        return Particulars()
    return Particulars(
        f"The compiler doesn't find {header}, a header of the CUDA toolkit: not all of that is installed"
    )


@check("extension-abi-mismatch", severity=FAIL, log=LogTraits(refuted=is_of_own_script))
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
        for library in package.objects:
            if reason := mismatch(library, package.objects, target_python, torch):
                summary, evidence = reason
                yield Finding(
                    summary=f"{package.package} {package.version}".strip()
                    + f" {summary}"[: 150 - len(package.package)],
                    evidence=(Evidence(evidence, library.path),),
                    fixes=(reinstall(package, target_python, torch),),
                )
                break


def cudart_major(library: SharedObject) -> str:
    """Major version of the CUDA runtime that it loads, "" for none or one that it brings along."""
    found = (re.fullmatch(r"libcudart\.so\.(\d+)(?:\.\d+)*", name) for name in library.needed)
    return next((match[1] for match in found if match), "")


def other_python(library: SharedObject, target_python: TargetPython) -> str:
    """The version of CPython that it was built for ("3.10"), if that isn't the target Python's; else ""."""
    tag = re.fullmatch(r"cpython-(\d)(\d+)", library.python_tag)
    if not tag or not target_python.version:
        return ""
    version = f"{tag[1]}.{tag[2]}"
    return "" if target_python.version.split(".")[:2] == version.split(".") else version


def mismatch(
    library: SharedObject, siblings: tuple[SharedObject, ...], target_python: TargetPython, torch: Torch
) -> tuple[str, str] | None:
    """The fault of a shared object, in words that follow its package's name, and the evidence; None if it has none."""
    name = library.path.rpartition("/")[2]
    build = torch.version or "the installed torch"
    if library.error:
        return f"has a broken file, {name}: {library.error}", f"{name}: {library.error}"
    if (version := other_python(library, target_python)) and not _other_build(library, siblings, target_python):
        return (
            f"was built for Python {version}; this is {target_python.version}",
            f"{name} is tagged {library.python_tag}",
        )
    if library.missing:
        return (
            f"needs {listed(library.missing, 2)}, which torch {build} doesn't have",
            f"{name} needs {listed(library.missing)}",
        )
    major = cudart_major(library)
    if major and torch.cuda and major != torch.cuda.partition(".")[0]:
        return (
            f"was built for CUDA {major}; torch {build} is for CUDA {torch.cuda}",
            f"{name} needs libcudart.so.{major}",
        )
    return unresolved(library, torch)


def unresolved(library: SharedObject, torch: Torch) -> tuple[str, str] | None:
    """The same as `mismatch()`, for symbols alone."""
    if not library.undefined:
        return None
    hint = "; it was built with the old C++ ABI" if old_strings(library.undefined) else ""
    name = torch.version or "the installed one"
    return (
        f"needs {readable(library.undefined[0])}, which torch {name} doesn't have{hint}",
        f"symbols that nothing defines: {listed(library.undefined, 3)}",
    )


def _other_build(library: SharedObject, siblings: tuple[SharedObject, ...], target_python: TargetPython) -> bool:
    """Whether the same module lies beside it for this Python: some packages ship one file for each."""
    return any(sibling.module == library.module and not other_python(sibling, target_python) for sibling in siblings)


def reinstall(package: Extension, target_python: TargetPython, torch: Torch) -> Fix:
    """The command that brings the package back in line with torch."""
    if package.package == "torchtext":
        text = "Remove it: torchtext 0.18, for torch 2.3, was its last release"
        return Fix(text, (uninstall(target_python, "torchtext"),))
    if package.package in OFFICIAL:
        release = (torch.version or "").partition("+")[0]
        pinned = (f"torch=={release}",) if release else ()
        install = pip_install(
            target_python, "--no-cache-dir", *pinned, package.package, *index_options(torch.version or "")
        )
        text = f"Install the {package.package} that was made for this torch"
        return Fix(text, (uninstall(target_python, package.package), install))
    name = package.package.replace("_", "-")
    if not package.version:
        ask = f"import importlib.metadata as m; print(m.packages_distributions().get({package.package!r}))"
        text = f"Build the package that {package.package} belongs to again, with --no-build-isolation; this tells which one it is"
        return Fix(text, (in_target_python(target_python, "-c", ask),))
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
    return tuple(told(toolchain, "compiles", consumer.reason) for consumer in toolchain.compiles)


@check("cuda-toolkit-mismatch", severity=FAIL)
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


@check("cuda-home-missing", severity=WARN, log=LogTraits(particulars=_missing_header))
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
    shown = home if not home or len(home) <= 40 else f"...{home[-37:]}"
    here = f"torch takes {shown} as CUDA_HOME, which {lacks}" if home else "there is no nvcc where torch looks"
    fixes = toolkit_fixes(toolchain, target_python, cuda)
    other = next((nvcc for nvcc in toolchain.nvccs if nvcc.whole), None)
    if other and not any(nvcc.version == minor_only(cuda) for nvcc in toolchain.nvccs):
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
