"""Shared libraries: loaded by torch, bundled with it, offered by the environment, and missing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.libraries import Libraries, Library
from ddpdoctor.knowledge.wheels import CUDA_WHEELS
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.elf import NotElf, opened
from ddpdoctor.probes.files import exists, names_in
from ddpdoctor.probes.library_search import (
    DEFAULT_FOLDERS,
    library_path,
    loader_cache,
    place,
    preloaded,
    shared_objects_in,
    targets_libstdcxx,
)
from ddpdoctor.probes.target_python.asking import SECONDS, Answer, ask, maybe, why_silent

DEADLINE = SECONDS["torch"] + 5

RELEVANT = re.compile(
    r"lib(?:nccl|cudart|cublas|cublasLt|cudnn\w*|cusparse|cusparseLt|cusolver\w*|cufft\w*|curand|nvJitLink|nvrtc[\w-]*|cupti"
    r"|nvshmem\w*|cuda|nvidia-ml|stdc\+\+|gomp|iomp5|omp|rccl|amdhip64|c10(?:_cuda)?|torch(?:_cpu|_cuda|_hip|_python)?)(?:-[0-9a-f]{8})?\.so(?:\.|$)"
)
"""Names of the libraries that matter; older wheels put eight hexadecimal digits behind the name."""

TORCH_LIBRARIES = (
    "libtorch_cuda.so", "libtorch_cpu.so", "libtorch_python.so", "libtorch_global_deps.so", "libc10_cuda.so", "libc10.so",
)  # fmt: skip
DRIVER_LIBRARIES = {"libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvidia-ptxjitcompiler.so.1"}  # fmt: skip
PYTHON_LIBRARY = re.compile(r"libpython3")

CUDA_WHEEL = re.compile(r"nvidia-(?P<package>.+?)(?:-cu\d+)?")
NCCL_VERSION = compile_lazily(rb"NCCL version (\d+\.\d+(?:\.\d+)?)\+")


def probe(context: Context) -> Libraries | Unknown:
    interpreter = ask(context, "interpreter")
    if interpreter.state != "ok":
        return why_silent(interpreter)
    # All that needs no torch is done while torch is still being imported.
    bundled = tuple(_bundled(interpreter))
    offered = tuple(library_file for folder in library_path(context) for library_file in _in_folder(context, folder))
    libstdcxx = targets_libstdcxx(context, interpreter.told["base_prefix"])
    imported = None if context.quick else ask(context, "torch")
    loaded = _loaded(interpreter, imported)
    for loaded_library in () if isinstance(loaded, Unknown) else loaded[::-1]:
        if loaded_library.soname == "libstdc++.so.6":
            libstdcxx = loaded_library.path
    return Libraries(
        loaded=loaded,
        bundled=bundled,
        search_path=library_path(context),
        offered=offered,
        preload=preloaded(context),
        # What was imported lacks nothing.
        missing=_missing(context, interpreter, bundled) if isinstance(loaded, Unknown) else (),
        glibcxx_provided=_glibcxx(context, libstdcxx),
        glibcxx_path=libstdcxx if isinstance(libstdcxx, str) else "",
    )


def _loaded(interpreter: Answer, imported: Answer | None) -> tuple[Library, ...] | Unknown:
    if maybe(interpreter.told, "torch", "looking for torch") is None:
        return Unknown("torch is not installed")
    if imported is None or imported.told.get("import_state") != "ok":
        return Unknown("torch was not imported")
    paths = maybe(imported.told, "loaded", "listing what torch loaded")
    if isinstance(paths, Unknown):
        return paths
    return tuple(library(path) for path in paths if RELEVANT.match(Path(path).name))


def _in_folder(context: Context, folder: str) -> Iterator[Library]:
    """One of each name: of libx.so, libx.so.1 and libx.so.1.2 the one that the loader would ask for."""
    best: dict[str, Library] = {}
    for name in filter(RELEVANT.match, shared_objects_in(context, folder)):
        found = library(str(Path(folder, name)), place(context, folder) / name)
        if found.soname not in best or name == found.soname:
            best[found.soname] = found
    yield from best.values()


def _bundled(interpreter: Answer) -> Iterator[Library]:
    """List what the wheels bring, and in a conda environment what its packages bring."""
    versions = _package_versions(interpreter)
    seen: set[str] = set()
    for folder in _bundled_folders(interpreter):
        for name in filter(RELEVANT.match, names_in(folder)):
            found = library(str(folder / name))
            if found.real_path not in seen:
                seen.add(found.real_path)
                yield msgspec.structs.replace(found, version=found.version or versions.get(stem(name), ""))


def _bundled_folders(interpreter: Answer) -> list[Path]:
    told = interpreter.told
    folders = [
        Path(packages) / "nvidia" / component / "lib"
        for packages in told["site_packages"]
        for component in names_in(Path(packages) / "nvidia")
    ]
    if (torch := _torch_folder(interpreter)) is not None:
        folders.append(torch / "lib")
    if told["environment_kind"] == "conda":
        folders.append(Path(told["prefix"]) / "lib")
    return folders


def _torch_folder(interpreter: Answer) -> Path | None:
    torch = maybe(interpreter.told, "torch", "looking for torch")
    return None if torch is None or isinstance(torch, Unknown) else Path(torch["location"])


def _package_versions(interpreter: Answer) -> dict[str, str]:
    """Stem of a library's name to the version of the wheel that brings it, where there is just one such wheel."""
    packages = maybe(interpreter.told, "packages", "reading the target Python's packages")
    if isinstance(packages, Unknown):
        return {}
    versions: dict[str, set[str]] = {}
    for distribution in packages:
        if wheel := CUDA_WHEEL.fullmatch(distribution["name"]):
            versions.setdefault(wheel["package"], set()).add(distribution["version"])
    only = {package: found.pop() for package, found in versions.items() if len(found) == 1}
    return {library_stem: only[package] for library_stem, package in CUDA_WHEELS.items() if package in only}


def stem(name: str) -> str:
    """ "libcudnn_ops.so.9" is of "cudnn", "libcublasLt.so.13" of "cublasLt"."""
    match = re.match(r"lib([A-Za-z]+)", name)
    return match[1] if match else ""


def soname_of(name: str) -> str:
    """The name under which other libraries ask for the file of that name: "libcudart.so.12.4.127" is libcudart.so.12."""
    match = re.fullmatch(r"(lib[\w+-]+?)(?:-[0-9a-f]{8})?\.so(?:\.(\d+)(?:\.(\d+))?.*)?", name)
    if match is None or match[2] is None:
        return name
    base, major, minor = match.groups()
    if base in ("libcuda", "libnvidia-ml"):
        return f"{base}.so.1"  # The file is called after the driver.
    if base == "libcudart" and major == "11":
        return f"{base}.so.11.0"  # All of CUDA 11, which promised to be compatible with itself.
    if base == "libcudart" and major == "10":
        return f"{base}.so.10.{minor or 0}"
    return f"{base}.so.{major}"


def library(path: str, real: Path | None = None) -> Library:
    """Describe a library. real: where to look at it, if that isn't `path` itself."""
    real_path = os.path.realpath(real or path)
    named = re.search(r"\.so\.(\d+\.\d[\d.]*)$", Path(real_path).name)
    soname = soname_of(Path(path).name)
    version = named[1] if named else ""
    if not version and soname.startswith("libnccl.so"):
        version = nccl_version(Path(real_path))
    return Library(soname=soname, path=path, real_path=real_path, version=version)


def nccl_version(path: Path) -> str:
    """Read what the library would print as its version, from its constants; "" if it can't be read."""
    try:
        with opened(path) as nccl:
            found = NCCL_VERSION.search(nccl.section(".rodata"))
    except NotElf:
        return ""
    return found[1].decode() if found else ""


def _glibcxx(context: Context, path: str | Unknown | None) -> str | Unknown | None:
    if path is None or isinstance(path, Unknown):
        return path
    try:
        with opened(place(context, path)) as libstdcxx:
            return libstdcxx.glibcxx.removeprefix("GLIBCXX_") or None
    except NotElf as error:
        return Unknown(f"{path}: {error}")


def _missing(context: Context, interpreter: Answer, bundled: Iterable[Library]) -> tuple[str, ...] | Unknown:
    """Find the libraries that torch's, and those of the wheels that they lead to, ask for and nobody has."""
    torch = _torch_folder(interpreter)
    if torch is None:
        return ()
    cache = loader_cache(context)
    folders = [*library_path(context), *DEFAULT_FOLDERS, interpreter.told["base_prefix"] + "/lib"]
    had = {name for folder in folders for name in shared_objects_in(context, folder)}
    had.update(() if isinstance(cache, Unknown) else cache)
    ours = {name: folder / name for folder in reversed(_bundled_folders(interpreter)) for name in names_in(folder)}
    waiting = [ours[name] for name in TORCH_LIBRARIES if name in ours]
    seen, missing = set(waiting), set()
    while waiting:
        file = waiting.pop()
        try:
            with opened(file) as found:
                needed, search = found.needed, found.search_path
        except NotElf:
            continue
        rpath = [Path(re.sub(r"\$ORIGIN|\$\{ORIGIN\}", str(file.parent), folder)) for folder in search]
        for name in needed:
            if name in ours and ours[name] not in seen:
                seen.add(ours[name])
                waiting.append(ours[name])
            elsewhere = name in had or name in DRIVER_LIBRARIES or PYTHON_LIBRARY.match(name)
            if not (name in ours or elsewhere or any(exists(folder / name) for folder in rpath)):
                missing.add(name)
    if missing and isinstance(cache, Unknown):
        return cache
    return tuple(sorted(missing))
