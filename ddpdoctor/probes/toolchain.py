"""Finds nvcc, the host compilers and ninja as torch.utils.cpp_extension would, and what on this host compiles."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.toolchain import Compiler, Consumer, Nvcc, Toolchain
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists, isdir, isfile, names_in, read_start, working_folder
from ddpdoctor.probes.library_search import place
from ddpdoctor.probes.programs import find_program
from ddpdoctor.probes.site_packages import SitePackages, site_packages
from ddpdoctor.probes.subprocesses import EndedProgram, StartedProgram, start

SECONDS = 8.0
"""For all commands together; nvcc and compilers answer in hundredths, unless a network file system sleeps."""

MAX_NVCCS = 6
MAX_TEXT_BYTES = 200_000
"""Of a header or setup.py."""
ON = ("ON", "1", "YES", "TRUE", "Y")
DEBIAN_COMPILER = "/usr/lib/nvidia-cuda-toolkit/bin/g++"
"""Debian's and Ubuntu's own nvcc runs this, whatever stands on PATH."""


def probe(context: Context) -> Toolchain:
    """Run `nvcc --version`, `c++ -dumpfullversion` and `ninja --version`, side by side."""
    home, found = _cuda_home(context)
    candidates = list(islice(_nvccs(context, home, found), MAX_NVCCS))
    until = time.monotonic() + SECONDS  # Only now: finding them waits for the target Python.
    asked = [_start(context, path, "--version") for path, _ in candidates]
    compilers = _cxx(context), _nvcc_host(context, candidates)
    asked_compilers = [
        [_start(context, path, option) for option in ("-dumpfullversion", "--version")] if path else []
        for path, _ in compilers
    ]
    ninja_path = _which(context, "ninja")
    ninja = _start(context, ninja_path, "--version") if ninja_path else None
    flags = f"{context.environ.get('NVCC_PREPEND_FLAGS', '')} {context.environ.get('NVCC_APPEND_FLAGS', '')}"
    site = site_packages(context)
    source, style = _apex_source()
    compiler, nvcc_compiler = (
        _compiler(path, found_by, *(started.wait_until(until) for started in both)) if path else None
        for (path, found_by), both in zip(compilers, asked_compilers, strict=True)
    )
    return Toolchain(
        nvccs=tuple(
            _nvcc(context, path, found_by, started.wait_until(until))
            for (path, found_by), started in zip(candidates, asked, strict=True)
        ),
        cuda_home=home,
        compiler=compiler,
        nvcc_compiler=nvcc_compiler,
        ninja=_ninja(ninja.wait_until(until)) if ninja else None,
        ninja_beside_python=isfile(context.path(context.python).parent / "ninja"),
        max_jobs=context.environ.get("MAX_JOBS"),
        arch_list=context.environ.get("TORCH_CUDA_ARCH_LIST"),
        unsupported_allowed="allow-unsupported-compiler" in flags,
        skips_cuda_check=context.environ.get("DS_SKIP_CUDA_CHECK") == "1",
        skips_compiler_check=context.environ.get("TORCH_DONT_CHECK_COMPILER_ABI") in ON,
        compiles=tuple(_consumers(context, site, source)),
        apex_source=source,
        apex_source_style=style,
    )


def _which(context: Context, name: str) -> str | None:
    """The path of a command, as a shell would find it on the context's PATH."""
    return find_program(name, context.environ.get("PATH"), context.root)


def _start(context: Context, path: str, option: str) -> StartedProgram:
    """Ask a program. It may be started from elsewhere, so that a relative path won't do."""
    return start([str(_located(context, path)), option], environ=context.environ)


def _located(context: Context, path: str) -> Path:
    """Locate what a setting names; a relative path is meant from the working folder, if there still is one."""
    try:
        return place(context, path)
    except OSError:
        return context.path(path)


def _cuda_home(context: Context) -> tuple[str | None, str]:
    """Find what torch.utils.cpp_extension.CUDA_HOME would be in a CUDA build of torch, and what says so."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if value := context.environ.get(name):
            return value, name
    if path := _which(context, "nvcc"):
        return str(PurePosixPath(path).parent.parent), "PATH"
    if exists(context.path("/usr/local/cuda")):
        return "/usr/local/cuda", "/usr/local/cuda"
    return None, ""


def _nvccs(context: Context, home: str | None, found: str) -> Iterator[tuple[str, str]]:
    """Every nvcc, torch's choice first, each once: (path, how it was found)."""
    seen = set()
    for path, by in _nvcc_places(context, home, found):
        real = _located(context, path)
        if isfile(real) and (key := real.resolve()) not in seen:
            seen.add(key)
            yield path, by


def _nvcc_places(context: Context, home: str | None, found: str) -> Iterator[tuple[str, str]]:
    if home is not None:
        yield f"{home.rstrip('/')}/bin/nvcc", found
    if path := _which(context, "nvcc"):
        yield path, "PATH"
    yield "/usr/local/cuda/bin/nvcc", "/usr/local/cuda"
    for name in reversed(names_in(context.path("/usr/local"))):
        if name.startswith("cuda-"):
            yield f"/usr/local/{name}/bin/nvcc", "/usr/local/cuda-*"
    if prefix := context.environ.get("CONDA_PREFIX"):
        yield f"{prefix}/bin/nvcc", "conda"
    site = site_packages(context)
    if not isinstance(site, Unknown):
        for folder in site.folders:
            for name in names_in(folder / "nvidia"):
                if re.fullmatch(r"cuda_nvcc|cu\d+", name):
                    yield str(folder / "nvidia" / name / "bin" / "nvcc"), "pip"


def _nvcc(context: Context, path: str, found_by: str, ended: EndedProgram) -> Nvcc:
    found = re.search(rb"release (\d+\.\d+)", ended.stdout)
    version = found[1].decode() if found else ""
    last = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip().splitlines()[-1:]
    error = ended.why_no_answer(SECONDS) or "".join(last) or "it names no release"
    home = _located(context, path).parent.parent
    return Nvcc(
        path=path,
        version=version,
        found_by=found_by,
        gcc_max=_gcc_max(context, path, version),
        has_headers=_holds(home, ("include", "targets/*/include"), "cuda_runtime.h"),
        has_libcudart=_holds(home, ("lib64", "lib", "lib/*-linux-gnu", "targets/*/lib"), "libcudart.so")
        or any(
            isfile(context.path(folder) / "libcudart.so")
            for folder in context.environ.get("LIBRARY_PATH", "").split(":")
            if folder.startswith("/")
        ),
        error="" if version else error,
    )


def _gcc_max(context: Context, path: str, version: str) -> int | None:
    """The limit in the toolkit's own header, which is what stops the compilation."""
    found = _located(context, path)
    homes = [found.parent.parent, found.resolve().parent.parent, context.path(f"/usr/local/cuda-{version}")]
    for home in homes:
        for include in ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"):
            header = _text(home / include / "crt/host_config.h")
            if limit := re.search(r"#\s*if\s+__GNUC__\s*>\s*(\d+)", header):
                return int(limit[1])
    return None


def _holds(home: Path, folders: tuple[str, ...], name: str) -> bool:
    """Whether the file is in one of the folders. conda keeps its own below targets and has its compilers look there;
    Debian's toolkit lies in /usr, where every linker looks."""
    try:
        return any(isfile(found) for folder in folders for found in home.glob(f"{folder}/{name}"))
    except OSError:
        return False


def _cxx(context: Context) -> tuple[str | None, str]:
    """torch compiles C++ with $CXX, or c++."""
    if context.environ.get("CXX"):
        return _compiler_in(context, "CXX"), "CXX"
    return _which(context, "c++"), "PATH"


def _nvcc_host(context: Context, nvccs: list[tuple[str, str]]) -> tuple[str | None, str]:
    """torch hands nvcc $CC as -ccbin; otherwise nvcc takes $NVCC_CCBIN, or what its distribution or PATH gives it."""
    for name in ("CC", "NVCC_CCBIN"):
        if context.environ.get(name):
            return _compiler_in(context, name), name
    if nvccs and nvccs[0][0] == "/usr/bin/nvcc" and exists(context.path(DEBIAN_COMPILER)):
        return DEBIAN_COMPILER, "the distribution's nvcc"
    return _which(context, "gcc"), "PATH"


def _compiler_in(context: Context, setting: str) -> str | None:
    """The compiler that a setting names: of "ccache g++-12 -O2" the last word that isn't an option."""
    text = context.environ[setting]
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    named = [word for word in words if not word.startswith("-")][-1:]
    if not named:
        return None
    return named[0] if "/" in named[0] else _which(context, named[0])


def _compiler(path: str, found_by: str, dumped: EndedProgram, told: EndedProgram) -> Compiler | Unknown:
    kind = "clang" if "clang" in told.text.lower() else "gcc"
    version = re.match(r"\d+(?:\.\d+)*", dumped.text)
    if kind == "clang" or not version:
        version = re.search(r"(?<!\d)\d+\.\d+(?:\.\d+)*", told.text)
    if not version:
        return Unknown(f"{path} --version: {told.why_no_answer(SECONDS) or 'names no version'}")
    return Compiler(path=path, kind=kind, version=version[0], found_by=found_by)


def _ninja(ended: EndedProgram) -> str | Unknown | None:
    if ended.ok and ended.text:
        return ended.text.splitlines()[0]
    # torch asks the same question, and takes any failure for "no ninja".
    return (
        None if ended.returncode else Unknown(f"ninja --version: {ended.why_no_answer(SECONDS) or 'names no version'}")
    )


def _consumers(context: Context, site: SitePackages | Unknown, apex_source: str | None) -> Iterator[Consumer]:
    if apex_source:
        yield Consumer(name="apex", reason=f"an Apex source tree lies in {apex_source}")
    if isinstance(site, SitePackages) and any(isdir(folder / "deepspeed") for folder in site.folders):
        version = site.version("deepspeed")
        yield Consumer(
            name="deepspeed",
            reason=f"DeepSpeed {version} is installed and builds its ops at first use".replace("  ", " "),
        )
    if reason := _other_build(context, site):
        yield Consumer(name="torch", reason=reason)


def _other_build(context: Context, site: SitePackages | Unknown) -> str:
    """Why something builds through torch.utils.cpp_extension here, or ""."""
    working = working_folder()
    if working and "CUDAExtension" in _text(f"{working}/setup.py"):
        return f"{working}/setup.py builds a CUDA extension"
    if isinstance(site, Unknown):
        return ""
    home = context.environ.get("XDG_CACHE_HOME") or f"{context.environ.get('HOME', '')}/.cache"
    python = "".join(site.python.split(".")[:2])
    # What an extension was built for stands in the folder's name; those of another Python are left-overs.
    for name in names_in(context.path(f"{home}/torch_extensions")):
        folder = f"{home}/torch_extensions/{name}"
        if re.fullmatch(rf"py{python}\w?_cu\d+", name) and names_in(context.path(folder)):
            return f"extensions have been built in {folder}"
    return ""


def _apex_source() -> tuple[str | None, str]:
    working = working_folder()
    for folder in (working, f"{working}/apex") if working else ():
        setup = _text(f"{folder}/setup.py")
        if "amp_C" in setup and "--cuda_ext" in setup:
            return folder, "environment" if "APEX_CUDA_EXT" in setup else "options"
    return None, ""


def _text(path: str | Path) -> str:
    try:
        return read_start(path, MAX_TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
