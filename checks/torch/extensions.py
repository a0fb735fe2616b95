"""Compiled extensions of torch, and what it takes to compile one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from shlex import quote

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, if_known, known
from ddpdoctor.checks.torch.unbuilt_parts import which_part, with_loaders_in_vain
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, judged_apart, leave_untested, required, requires
from ddpdoctor.facts.extensions import Extension, Extensions, SharedObject
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.snapshot import Driver, Gpus, Machine, Packages, TargetPython, Toolchain, Torch
from ddpdoctor.facts.toolchain import Compiler, Consumer, Nvcc
from ddpdoctor.knowledge.building import (
    gcc_fixes,
    gcc_limit,
    home_of,
    minor_only,
    old_strings,
    readable,
    rejects,
    too_new,
    toolkit_fixes,
    wheel_fix,
)
from ddpdoctor.knowledge.cuda_stack import needs_cuda_build
from ddpdoctor.knowledge.evidence import nvcc_version, told, torch_cuda
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.wheels import index_options
from ddpdoctor.logs.analyze.sightings import word

OFFICIAL = ("torchvision", "torchaudio", "torchcodec")
"""Packages that come as wheels beside torch's own, rather than to be built here."""

NO_VERSION = "the version of the target Python is not known"


def _missing_part(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Name the missing header or library. That there is no nvcc isn't known of it: pip's and conda's packages come one by one."""
    header, library, nvcc = (word(seen, name) for name in ("header", "library", "nvcc"))
    if nvcc.startswith(":"):
        return Particulars(
            f"CUDA_HOME begins with a colon, so that the compiler is looked for at {nvcc}",
            (
                Fix(
                    "CUDA_HOME is one folder, and no list: set it alone, in ~/.bashrc or the job script, too",
                    (f"export CUDA_HOME={quote(nvcc.strip(':').partition(':')[0].removesuffix('/bin/nvcc'))}",),
                ),
            ),
            "A line such as export CUDA_HOME=$CUDA_HOME:/usr/local/cuda puts a colon before the folder, as is right for PATH alone.",
        )
    if library:
        return Particulars(
            f"The linker doesn't find lib{library}.so of the CUDA toolkit",
            (
                Fix(
                    "See where it lies on that host",
                    (f"find / -name {shlex.quote(f'lib{library}.so*')} -not -path '/proc/*' 2>/dev/null",),
                ),
                Fix(
                    "Let the linker look there, with the folder that holds it",
                    ("export LIBRARY_PATH=FOLDER${LIBRARY_PATH:+:$LIBRARY_PATH}",),
                ),
                Fix(
                    "Or install the whole toolkit of torch's CUDA; where only a file with a number lies, as lib.so.12, make the link to it that the linker asks for"
                ),
            ),
            "There is no toolkit, only a part of it is installed, or it lies in a folder that isn't searched, as conda's and pip's do.",
        )
    if not header or any(not match.words.get("header") for match in seen):
        return Particulars()
    return Particulars(
        f"The compiler doesn't find {header}, a header of the CUDA toolkit, which is only partly installed"
    )


def _is_of_own_script(one: SignMatch, log: Log) -> bool:
    """Whether it is a script of the user's, and no package, that misses a module which is called as compiled ones are, and is no part of a package
    that is there."""
    if one.sign != "No module named '" or one.words.get("part"):
        return False
    raised = next((exception for exception in log.raised if exception.line.order == one.line.order), None)
    return raised is not None and bool(raised.frames) and raised.own == raised.frames[-1]


def _is_of_another(seen: SignMatch, log: Log) -> bool:
    """Whether the module is the script's own, or one that another rank was to build, and could not."""
    missing = "/torch_extensions/" in seen.line.text and ": cannot open shared object file" in seen.line.text
    built = (
        missing
        and seen.role is SignRole.HINTS
        and any(raised.message.startswith("Error building extension '") for raised in log.raised)
    )
    return built or _is_of_own_script(seen, log)


@check(
    "extension-abi-mismatch",
    severity=FAIL,
    owner=Owner.USER,
    log=LogTraits(refuted=_is_of_another, revises=with_loaders_in_vain, particulars=which_part),
)
def extension_abi_mismatch(extensions: Extensions, target_python: TargetPython, torch: Torch) -> Iterator[Finding]:
    """A compiled extension was built for another torch, CUDA or Python.

    ## What breaks
    Importing it ends with `undefined symbol: _ZN3c10...`, `libcudart.so.11.0: cannot open shared object file` or
    `No module named ...`; torchvision says `operator torchvision::nms does not exist`.

    ## Why
    torch promises extensions no stable C++ interface: what was compiled against one release looks for functions that
    another no longer has; what was built for one major CUDA loads the runtime of that CUDA. Upgrading torch leaves extensions as
    they were.

    ## Fix
    Install the companion wheel that was made for this torch, or build the extension again in this environment, with
    `--no-build-isolation` (so that it sees this torch) and `--no-cache-dir` (so that pip doesn't take the old wheel).
    For an extension that is compiled at its first use, remove the folder in `~/.cache/torch_extensions`, and see on one rank what
    the compiler says. Where a library of torch's isn't found, it may be enough to `import torch` before the extension.
    """
    requires(torch.installed, "torch is not installed")
    requires(extensions.packages, "no compiled extension of torch is installed")
    yield from judged_apart(_first_mismatch(package, target_python, torch) for package in extensions.packages)


def _first_mismatch(package: Extension, target_python: TargetPython, torch: Torch) -> Iterator[Finding]:
    looks = (_mismatch(library, package, target_python, torch) for library in package.objects)
    return islice(judged_apart(looks), 1)


def _mismatch(
    library: SharedObject, package: Extension, target_python: TargetPython, torch: Torch
) -> Iterator[Finding]:
    if fault := mismatch(library, package.objects, target_python, torch):
        yield Finding.of(
            f"{package.package} {package.version}".strip() + f" {fault[0]}"[: 150 - len(package.package)],
            Evidence(fault[1], library.path),
            reinstall(package, target_python, torch),
        )
    else:
        other_python(library, target_python)  # The target Python's version may not be known.


def cudart_major(library: SharedObject) -> str:
    """Major version of the CUDA runtime that it loads, "" for none or one that it brings along."""
    found = (re.fullmatch(r"libcudart\.so\.(\d+)(?:\.\d+)*", name) for name in library.needed)
    return next((match[1] for match in found if match), "")


def other_python(library: SharedObject, target_python: TargetPython) -> str:
    """The version of CPython that it was built for ("3.10"), if that isn't the target Python's; else "".

    Raises:
        NotKnown: it was built for one version alone, and the target Python's isn't known.
    """
    tag = re.fullmatch(r"cpython-(\d)(\d+)", library.python_tag)
    if not tag:
        return ""
    if not target_python.version:
        leave_untested(NO_VERSION)
    version = f"{tag[1]}.{tag[2]}"
    return "" if target_python.version.split(".")[:2] == version.split(".") else version


def mismatch(
    library: SharedObject, siblings: tuple[SharedObject, ...], target_python: TargetPython, torch: Torch
) -> tuple[str, str] | None:
    """The fault of a shared object, in words that follow its package's name, and the evidence; None if none is known."""
    name = library.path.rpartition("/")[2]
    build = torch.version or "the installed torch"
    if library.error:
        return f"has a broken file, {name}: {library.error}", f"{name}: {library.error}"
    version = if_known(other_python, library, target_python, default="")
    if version and not _other_build(library, siblings, target_python):
        fault = f"was built for Python {version}; this is {target_python.version}"
        return fault, f"{name} is tagged {library.python_tag}"
    if library.missing:
        fault = f"needs {listed(library.missing, 2)}, which torch {build} doesn't have"
        return fault, f"{name} needs {listed(library.missing)}"
    major = cudart_major(library)
    if major and torch.cuda and major != torch.cuda.partition(".")[0]:
        fault = f"was built for CUDA {major}; torch {build} is for CUDA {torch.cuda}"
        return fault, f"{name} needs libcudart.so.{major}"
    return unresolved(library, torch)


def unresolved(library: SharedObject, torch: Torch) -> tuple[str, str] | None:
    """The same as `mismatch()`, for symbols alone."""
    if not library.undefined:
        return None
    hint = "; it was built with the old C++ ABI" if old_strings(library.undefined) else ""
    fault = (
        f"needs {readable(library.undefined[0])}, which torch {torch.version or 'the installed one'} doesn't have{hint}"
    )
    return fault, f"symbols that nothing defines: {listed(library.undefined, 3)}"


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
    build = pip_install(target_python, *options, f"{name}=={version}")
    return Fix(f"Build {name} again for this torch{source}", (build,))


def compiling(toolchain: Toolchain, torch: Torch) -> str:
    """The CUDA version of a torch for which something compiles on this host; ends the check where nothing does."""
    cuda = needs_cuda_build(torch)
    requires(toolchain.compiles, "nothing compiles CUDA code here")
    return cuda


def working_nvcc(toolchain: Toolchain) -> Nvcc:
    """The nvcc that torch would run, with a version."""
    nvcc = required(toolchain.nvcc, "there is no nvcc: see cuda-home-missing")
    if not nvcc.version:
        leave_untested(f"{nvcc.path} --version: {nvcc.error}")
    return nvcc


def why_compiling(toolchain: Toolchain, *consumers: Consumer) -> Iterator[Evidence]:
    return (told(toolchain, "compiles", consumer.reason) for consumer in consumers or toolchain.compiles)


@check("cuda-toolkit-mismatch", severity=FAIL, owner=Owner.USER)
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
    An extension shares one CUDA runtime with torch, so it has to be compiled for the same. How strict that is depends on the
    builder: torch's own tools refuse another major version, DeepSpeed some minor ones, Apex any difference.

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
    yield Finding.of(
        f"nvcc is of CUDA {nvcc.version}, but torch of CUDA {cuda}: {refusals[0][1]}",
        nvcc_version(nvcc),
        torch_cuda(torch),
        why_compiling(toolchain, *(consumer for consumer, _ in refusals)),
        toolkit_fixes(toolchain, target_python, cuda),
        wheel_fix(target_python, nvcc.version, torch, driver, gpus, machine, packages),
        # DeepSpeed compiles only those of its ops that a program uses; a build that is at hand stops at once.
        severity=WARN if all(consumer.name == "deepspeed" for consumer, _ in refusals) else FAIL,
    )


@check("cuda-home-missing", severity=WARN, owner=Owner.USER, log=LogTraits(particulars=_missing_part))
def cuda_home_missing(toolchain: Toolchain, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
    """Something compiles CUDA code here, but there is no nvcc where torch looks for it.

    ## What breaks
    Building Apex or an extension, and DeepSpeed when it first uses an op, stop with "CUDA_HOME environment variable is
    not set", "No such file or directory: .../bin/nvcc" or "cannot find -lcudart".

    ## Why
    torch brings the CUDA runtime, not the compiler. Its build tools take `CUDA_HOME`, else `CUDA_PATH`, else the folder
    above an nvcc on PATH (which goes wrong where that nvcc is a script of the system's), else /usr/local/cuda, and don't
    check what is in it. Container images called "runtime" have no nvcc, those called "devel" do. pip's packages of nvcc
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
    fixes = [*toolkit_fixes(toolchain, target_python, cuda)]
    other = next((nvcc for nvcc in toolchain.nvccs if nvcc.whole), None)
    if other and not any(nvcc.version == minor_only(cuda) for nvcc in toolchain.nvccs):
        text = f"Or try the nvcc that is here, of CUDA {other.version or 'an unknown version'} (torch wants {cuda})"
        fixes.append(Fix(text, (f"export CUDA_HOME={quote(home_of(other))}",)))
    yield Finding.of(
        f"CUDA code is compiled here, but {here}",
        told(toolchain, "cuda_home", f"folder in which torch looks for nvcc: {home or 'none'}"),
        why_compiling(toolchain),
        fixes,
    )


def _newest_gcc(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """The newest gcc that nvcc takes, by its own header, or by torch, which names the first one that it doesn't."""
    newest = word(seen, "newest_gcc")
    if not newest and (below := word(seen, "gcc_below")):
        major, _, minor = below.partition(".")
        newest = major if int(minor) else str(int(major) - 1)
    if not newest:
        return Particulars()
    compilers = f"export CC=gcc-{quote(newest)} CXX=g++-{quote(newest)}"
    conda = f"conda install -c conda-forge gxx_linux-64={quote(newest)}"
    return Particulars(
        f"The C++ compiler is newer than nvcc takes, which is gcc {newest} at most",
        (
            Fix(
                f"Install gcc {newest} or older beside it, set it as the compiler, and build in a new folder",
                (compilers,),
            ),
            Fix("Without root, conda has it; activate the environment again, which sets CC and CXX", (conda,)),
            Fix("Or take a newer CUDA toolkit, and torch's build for that"),
        ),
    )


@check("ninja-missing", severity=WARN, owner=Owner.USER)
def ninja_missing(toolchain: Toolchain, torch: Torch, target_python: TargetPython) -> Iterator[Finding]:
    """Something compiles extensions here, but ninja can't be run.

    ## What breaks
    Extensions that are compiled at first use (DeepSpeed's ops) stop with "Ninja is required to load C++ extensions";
    a setup.py falls back to compiling one file after the other.

    ## Why
    torch calls `ninja` by that name, so it has to be on PATH. Installed in a virtual environment that isn't activated,
    as under srun or in an editor, it isn't.

    ## Fix
    `pip install ninja` in the training environment, and put its bin folder on PATH: `export PATH=/path/to/env/bin:$PATH`.
    """
    requires(torch.installed, "torch is not installed")
    requires(toolchain.compiles, "nothing compiles CUDA code here")
    if known(toolchain.ninja) is not None:
        return
    if toolchain.ninja_beside_python:
        # Whoever names an interpreter may well activate its environment for the job.
        named = target_python.chosen_by == "--python"
        requires(not named, "the PATH of the job isn't known, since --python named the interpreter")
        folder = target_python.python.rpartition("/")[0]
        summary = "ninja is installed, but not on PATH"
        fix = Fix("Put its folder on PATH", (f"export PATH={quote(folder)}:$PATH",))
    else:
        summary, fix = "There is no ninja on PATH", Fix("Install ninja", (pip_install(target_python, "ninja"),))
    yield Finding.of(
        f"{summary}; extensions can't be compiled at first use",
        told(toolchain, "ninja", "no ninja on PATH"),
        why_compiling(toolchain),
        fix,
    )


@check("gcc-too-new", severity=WARN, owner=Owner.USER, log=LogTraits(particulars=_newest_gcc))
def gcc_too_new(toolchain: Toolchain, torch: Torch, machine: Maybe[Machine]) -> Iterator[Finding]:
    """The C++ compiler is newer than nvcc takes.

    ## What breaks
    The first .cu file stops with "#error -- unsupported GNU version! gcc versions later than 13 are not supported!".

    ## Why
    nvcc reads the compiler's own headers and knows only those that existed when it was made; each release has a
    newest gcc (CUDA 11.8: 11, 12.2: 12, 12.6: 13, 12.8: 14, 13.0: 15). New distributions come with newer ones.

    ## Fix
    Install an older one beside it and name it: `export CC=gcc-13 CXX=g++-13`; conda:
    `conda install -c conda-forge gxx_linux-64=13`. `-allow-unsupported-compiler` may compile, and may compile wrongly.
    """
    compiling(toolchain, torch)
    nvcc = working_nvcc(toolchain)
    limit = gcc_limit(nvcc)
    if limit is None:
        leave_untested(f"which gcc nvcc {nvcc.version} takes isn't known")
    compilers = (
        None if toolchain.skips_compiler_check else toolchain.compiler,
        None if toolchain.unsupported_allowed else toolchain.nvcc_compiler,
    )
    yield from islice(judged_apart(_too_new(compiler, limit, nvcc, toolchain, machine) for compiler in compilers), 1)


def _too_new(
    compiler: Maybe[Compiler | None], limit: int, nvcc: Nvcc, toolchain: Toolchain, machine: Maybe[Machine]
) -> Iterator[Finding]:
    if found := too_new(known(compiler), limit):
        yield Finding.of(
            f"{found.path} is gcc {found.version}, but nvcc {nvcc.version} takes none newer than gcc {limit}",
            Evidence(f"{found.path} is gcc {found.version} (found by {found.found_by})", "-dumpfullversion"),
            Evidence(f"{nvcc.path} is of CUDA {nvcc.version}", "nvcc --version"),
            why_compiling(toolchain),
            gcc_fixes(limit, machine),
        )
