"""The shared libraries that torch gets: its own, or others that stand in front of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import dotted, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known, known_or
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.libraries import Libraries, Library
from ddpdoctor.facts.snapshot import Packages, TargetPython, Torch
from ddpdoctor.knowledge.cuda_stack import (
    PinnedRelease,
    bundled,
    import_broken,
    is_ours,
    needs_cuda_build,
    pin_of,
    pins,
    reinstall,
    together,
    version_of,
    without_folder,
)
from ddpdoctor.knowledge.evidence import told, torch_version
from ddpdoctor.knowledge.installing import uninstall
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.wheels import index_options, numbers, older, same_version

OF_CUDA = compile_lazily(
    r"lib(cublas|cublasLt|cudart|cufft|cufile|cupti|curand|cusolver|cusparse|cusparseLt|nvJitLink|nvrtc)\.so"
)


REMOVE_ALL = "Remove them all, and install what torch requires"

OF_ITS_SYMBOLS = compile_lazily(r"_*(nvJitLink|nvrtc|cublas|cuda|cufft|cufile|cupti|curand|cusolver|cusparse)")
"""What their symbols begin with."""


def _undefined(torch: Torch) -> str:
    """The symbol that the import misses, "" if that isn't its complaint."""
    found = re.search(r"undefined symbol: (\w+)", torch.import_error + torch.import_traceback)
    return found[1] if found else ""


def _folder(library: Library) -> str:
    return library.path.rpartition("/")[0]


def _in_front(pattern: re.Pattern[str], libraries: Libraries) -> list[tuple[Library, Library]]:
    """Foreign libraries that a process gets instead of the target Python's own, each with the one that it displaces.

    What was loaded is believed; where nothing was, what LD_PRELOAD and LD_LIBRARY_PATH offer would have been.
    """
    if isinstance(libraries.loaded, Unknown):
        if any(pattern.match(path.rpartition("/")[2]) for path in libraries.preload):
            leave_untested(libraries.loaded.reason)  # what it is would show only once it is loaded
        taken = list({library.soname: library for library in reversed(libraries.offered)}.values())
    else:
        taken = list(libraries.loaded)
    found = []
    for library in taken:
        own = bundled(library.soname, libraries)
        if own and pattern.match(library.soname) and not is_ours(library, libraries):
            found.append((library, own))
    return found


@check("nccl-duplicate-pip", severity=FAIL, owner=Owner.USER)
def nccl_duplicate_pip(
    torch: Torch, packages: Packages, libraries: Libraries, target_python: TargetPython
) -> Iterator[Finding]:
    """Two packages bring the same libnccl.so.2, and one has overwritten the other's.

    ## What breaks
    `import torch` ends with "undefined symbol: nccl...", or runs with an NCCL that it wasn't built for.

    ## Why
    nvidia-nccl-cu11, -cu12 and -cu13 all unpack to `nvidia/nccl/lib/libnccl.so.2`. Another framework, or a second torch in
    the same environment, brought the other one; the file of the last that was installed stays.

    ## Fix
    Remove all of them and install the one that torch requires.
    """
    cuda = needs_cuda_build(torch)
    groups = together(packages, r"nvidia-nccl-cu\d+")
    if not groups:
        return
    wanted = pin_of("libnccl.so.2", packages, target_python)
    keep = f"{wanted.package}{wanted.wanted}" if wanted else f"nvidia-nccl-cu{numbers(cuda)[0]}"
    own = if_known(bundled, "libnccl.so.2", libraries, default=None)
    found = own.version if own else ""
    outdated = bool(wanted and wanted.exact and found and older(found, wanted.exact))
    for group in groups:
        both = listed(f"{package.name} {package.version}" for package in group)
        remove = uninstall(target_python, *(package.name for package in group))
        yield Finding.of(
            f"{both} overwrite each other's libnccl.so.2",
            told(packages, "installed", f"all are installed: {both}"),
            told(libraries, "bundled", f"libnccl.so.2 is now {found or 'of unknown version'}, in {group[0].location}"),
            Fix(REMOVE_ALL, (remove, pip_install(target_python, "--no-deps", keep))),
            cause=f"torch requires {keep}; the file that is there now is {found or 'of unknown version'}.",
            severity=FAIL if outdated or (import_broken(torch) and _undefined(torch).startswith("nccl")) else WARN,
        )


@check("nccl-lib-shadowed", severity=FAIL, owner=Owner.USER)
def nccl_lib_shadowed(
    torch: Torch, packages: Packages, libraries: Libraries, target_python: TargetPython
) -> Iterator[Finding]:
    """An older libnccl.so.2 is loaded in place of the one that belongs to torch.

    ## What breaks
    "undefined symbol: ncclCommRegister" at import; or ranks on different nodes run different versions of NCCL.

    ## Why
    LD_PRELOAD, and in many builds LD_LIBRARY_PATH, come before the path that is written into torch's libraries. An environment
    module, a system package or conda holds another NCCL there. (A newer one is harmless, and often there on purpose.)

    ## Fix
    Take the folder out of LD_LIBRARY_PATH for this job.
    """
    needs_cuda_build(torch)
    requires(bundled("libnccl.so.2", libraries), "torch brings no libnccl.so.2 of its own")
    for taken, own in _in_front(re.compile(r"libnccl\.so"), libraries):
        theirs, ours = version_of(taken, packages, target_python), version_of(own, packages, target_python)
        missed = _undefined(torch).startswith("nccl")
        if not missed:
            known(libraries.loaded)  # what is offered isn't always taken: current wheels' RPATH goes first
            if not (theirs and ours):
                leave_untested(f"{taken.path} and {own.path} don't both tell their versions")
            if not older(theirs, ours):
                continue
        yield Finding.of(
            f"torch gets NCCL {theirs or 'of another version'} from {_folder(taken)} in place of its own {ours}".strip(),
            _both(libraries, taken, own, theirs, ours),
            _search_path(libraries),
            _left_out(libraries, taken),
        )


def _left_out(libraries: Libraries, taken: Library) -> Fix:
    """The fix that keeps a foreign library away, where it is known how it came in."""
    if any(path.endswith(taken.path.rpartition("/")[2]) for path in libraries.preload):
        return Fix(f"Take {taken.soname} out of LD_PRELOAD for this job", ("unset LD_PRELOAD",))
    return without_folder(libraries, _folder(taken)) or Fix(
        f"Find out why {taken.path} comes first, and remove it from there",
        ("echo $LD_LIBRARY_PATH", f"ldconfig -p | grep -F {shlex.quote(taken.soname)}"),
    )


def _both(libraries: Libraries, taken: Library, own: Library, theirs: str, ours: str) -> tuple[Evidence, ...]:
    field, verb = ("offered", "would be loaded") if isinstance(libraries.loaded, Unknown) else ("loaded", "loaded")
    return (
        told(libraries, field, f"{verb}: {taken.path} ({theirs or 'version unknown'})"),
        told(libraries, "bundled", f"torch's own: {own.path} ({ours or 'version unknown'})"),
    )


def _search_path(libraries: Libraries) -> Evidence | None:
    path = ":".join(libraries.search_path)
    return told(libraries, "search_path", f"LD_LIBRARY_PATH={path}") if path else None


@check("ld-library-path-shadow", severity=FAIL, owner=Owner.USER)
def ld_library_path_shadow(
    torch: Torch, packages: Packages, libraries: Libraries, target_python: TargetPython
) -> Iterator[Finding]:
    """LD_LIBRARY_PATH puts other CUDA libraries in front of torch's own.

    ## What breaks
    `import torch` ends with "undefined symbol: __nvJitLinkComplete_12_4"; or it works and computes with libraries that it
    was never tested with.

    ## Why
    Wheels bring the CUDA libraries with them, which find each other by a path (RUNPATH) that LD_LIBRARY_PATH overrides. A line such as
    `export LD_LIBRARY_PATH=/usr/local/cuda/lib64` in `.bashrc`, or `module load cuda`, then wins.
    Where there is no such folder, pip replaced one of torch's own packages: `ddpdoctor check --select cuda-libs-mixed`.

    ## Fix
    Take the toolkit's folder out of LD_LIBRARY_PATH; to compile, PATH and CUDA_HOME are enough.
    """
    needs_cuda_build(torch)
    own_libraries = [library for library in libraries.bundled if OF_CUDA.match(library.soname)]
    requires(own_libraries, "torch brings no CUDA libraries of its own")
    missed = OF_ITS_SYMBOLS.match(_undefined(torch))
    culprits, untold = [], []
    for taken, own in _in_front(OF_CUDA, libraries):
        theirs, ours = version_of(taken, packages, target_python), version_of(own, packages, target_python)
        if not (theirs and ours):
            untold.append(taken)
        elif not same_version(theirs, ours) and (older(theirs, ours) or missed):
            culprits.append((taken, own, theirs, ours))
    if not culprits and untold:
        leave_untested(f"{untold[0].path} doesn't tell its version")
    if not culprits:
        return
    if not missed:
        known(libraries.loaded)  # what is offered isn't always taken: current wheels' RPATH goes first
    taken, own, theirs, ours = culprits[0]
    others = f" and {len(culprits) - 1} more come" if len(culprits) > 1 else " comes"
    yield Finding.of(
        f"{taken.soname}{others} from {_folder(taken)}: {theirs} instead of torch's {ours}",
        (evidence for pair in culprits[:3] for evidence in _both(libraries, *pair)),
        _search_path(libraries),
        _left_out(libraries, taken),
        severity=FAIL if import_broken(torch) else WARN,
    )


@check("cuda-libs-mixed", severity=WARN, owner=Owner.USER)
def cuda_libs_mixed(torch: Torch, packages: Packages, target_python: TargetPython) -> Iterator[Finding]:
    """The CUDA packages in this environment, or others that torch pins, are not those that torch requires.

    ## What breaks
    Undefined symbols at import, crashes in cuBLAS or cuDNN, an import of triton that fails in torch.compile, or nothing until the
    day that one of them is used.

    ## Why
    Another package was installed later and changed the version of a library that torch pins, such as triton or NCCL; or it brought the libraries of
    another CUDA major, some of which unpack to the same folder (cuDNN, cuSPARSELt, NVSHMEM).

    ## Fix
    Install the pinned versions again, or better: make a new environment, and install torch into it first.
    """
    requires(torch.installed, "torch is not installed")
    if torch.impostor:
        leave_untested(f"torch is hidden by {torch.impostor}")
    required = pins(packages, target_python)
    requires([pin for pin in required if pin.installed], "torch pins no pip package that is installed here")
    # Where several packages of NCCL overwrite each other, nccl-duplicate-pip speaks.
    several = {package.name for group in together(packages, r"nvidia-nccl-cu\d+") for package in group}
    wrong = [pin for pin in required if not pin.fits and not _newer_and_served(pin) and pin.package not in several]
    severity = FAIL if import_broken(torch) else WARN
    if wrong:
        named = [f"{pin.package} {pin.installed} (not {pin.exact or pin.wanted.removeprefix('==')})" for pin in wrong]
        versions = "a version" if len(wrong) == 1 else "versions"
        installed = [f"{pin.package} {pin.installed}; torch requires {pin.wanted}" for pin in wrong]
        yield Finding.of(
            f"{plural(len(wrong), 'package')} in {versions} that torch doesn't want: {listed(named, most=3)}",
            (told(packages, "installed", text) for text in installed),
            Fix("Install the versions that torch requires", _reinstalled(torch, target_python, wrong)),
            severity=severity,
        )
    requirements = [text for package in packages.named("torch")[:1] for text in package.requires]
    for group in together(packages, r"nvidia-cudnn-cu\d+") + together(packages, r"nvidia-(cusparselt|nvshmem)-cu\d+"):
        kinds = {package.name.rpartition("-")[0] for package in group}
        if len(kinds) == len(group):
            continue
        needed = [pin for pin in required if pin.package.rpartition("-")[0] in kinds]
        both = listed(f"{package.name} {package.version}" for package in group)
        remove = uninstall(target_python, *(package.name for package in group))
        yield Finding.of(
            f"{both} overwrite each other's files",
            told(packages, "installed", f"all are installed: {both}"),
            Fix(REMOVE_ALL, (remove, reinstall(target_python, *needed))),
            severity=severity,
        )
    unread = any(text.startswith("cuda-toolkit") for text in requirements)
    if unread and not any(package.requires for package in packages.named("cuda-toolkit")):
        leave_untested("what cuda-toolkit requires for torch was not read")


def _reinstalled(torch: Torch, target_python: TargetPython, wrong: Sequence[PinnedRelease]) -> tuple[str, ...]:
    """Some packages lie only where torch's own build came from."""
    elsewhere = [pin for pin in wrong if pin.package.startswith(("pytorch-triton", "triton-"))]
    usual = [pin for pin in wrong if pin not in elsewhere]
    index = shlex.join(index_options(torch.version or ""))
    return (
        *([reinstall(target_python, *usual)] if usual else []),
        *([f"{reinstall(target_python, *elsewhere)} {index}".rstrip()] if elsewhere else []),
    )


def _newer_and_served(pin: PinnedRelease) -> bool:
    """A newer cuDNN or NCCL of the same major serves torch as well, and is often installed on purpose."""
    if not pin.package.startswith(("nvidia-cudnn", "nvidia-nccl")) or not pin.installed or not pin.exact:
        return False
    same_major = numbers(pin.installed)[:1] == numbers(pin.exact)[:1]
    return same_major and older(pin.exact, pin.installed)


@check("cudnn-mismatch", severity=FAIL, owner=Owner.USER)
def cudnn_mismatch(
    torch: Torch, packages: Maybe[Packages], libraries: Libraries, target_python: TargetPython
) -> Iterator[Finding]:
    """The cuDNN that is loaded isn't the one that torch was built against.

    ## What breaks
    "cuDNN version incompatibility: PyTorch was compiled against ..." or CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH at the first
    convolution; no rank gets past it.

    ## Why
    torch wants the same major and at least the same minor, and cuDNN that all its libraries are of one release. A cuDNN from the
    system or a module is on LD_LIBRARY_PATH or where the loader looks anyway, or another package made pip replace the one that
    torch pins.

    ## Fix
    Take the foreign folder out of LD_LIBRARY_PATH, or install the pinned package again.
    """
    needs_cuda_build(torch)
    pin = pin_of("libcudnn.so.9", known_or(packages, Packages(installed=())), target_python)
    if versions := _cudnn_by_torch(torch):
        foreign = if_known(_foreign_cudnn, torch, libraries, default=[])
    else:
        foreign = _foreign_cudnn(torch, libraries)
        versions = _cudnn_by_files(torch, pin, foreign[0][0].version if foreign else "")
    loaded, built = versions
    if loaded[:1] == built[:1] and loaded[:2] >= built[:2]:
        return
    path, field = if_known(_own_cudnn, libraries, default=""), "bundled"
    if foreign:
        path, fix = foreign[0][0].path, _left_out(libraries, foreign[0][0])
        field = "offered" if isinstance(libraries.loaded, Unknown) else "loaded"
    elif pin:
        fix = Fix("Install the cuDNN that torch requires", (reinstall(target_python, pin),))
    else:
        fix = Fix(
            "Install this torch again, with all that it requires; this shows which cuDNN it finds now",
            (in_target_python(target_python, "-c", "import torch; print(torch.backends.cudnn.version())"),),
        )
    yield Finding.of(
        f"torch was built against cuDNN {dotted(built)}, but gets {dotted(loaded)}",
        told(libraries, field, f"cuDNN: {path}") if path else torch_version(torch),
        told(torch, "cudnn_built", f"torch was built against cuDNN {dotted(built)}"),
        fix,
    )


def _foreign_cudnn(torch: Torch, libraries: Libraries) -> list[tuple[Library, Library]]:
    foreign = _in_front(re.compile(r"libcudnn\.so"), libraries)
    if foreign and not _undefined(torch).startswith("cudnn"):
        known(libraries.loaded)
    return foreign


def _own_cudnn(libraries: Libraries) -> str:
    return next((library.path for library in libraries.bundled if "cudnn" in library.soname), "")


CudnnVersions = tuple[tuple[int, ...], tuple[int, ...]]
"""As loaded, and as torch was built against."""


def _cudnn_by_torch(torch: Torch) -> CudnnVersions | None:
    """By torch, or by what it said when it refused."""
    versions = torch.cudnn_version, torch.cudnn_built
    reasons = [version.reason for version in versions if isinstance(version, Unknown)]
    if not reasons:
        requires(all(versions), "torch is built without cuDNN")
        return known(versions[0]) or (), known(versions[1]) or ()
    refused = re.search(r"compiled\s+against \(([\d, ]+)\) but found runtime version \(([\d, ]+)\)", " ".join(reasons))
    return (numbers(refused[2].replace(", ", ".")), numbers(refused[1].replace(", ", "."))) if refused else None


def _cudnn_by_files(torch: Torch, pin: PinnedRelease | None, foreign: str) -> CudnnVersions:
    """By files and packages; where they don't tell either, the check is left untested.

    foreign: the version of a cuDNN in front of torch's own, "" if there is none or it doesn't tell.
    """
    there = foreign or (pin.installed if pin else "")
    if not (pin and pin.exact and there):
        known(torch.cudnn_version), known(torch.cudnn_built)
        leave_untested("torch doesn't tell its version of cuDNN")
    return numbers(there), numbers(pin.exact)
