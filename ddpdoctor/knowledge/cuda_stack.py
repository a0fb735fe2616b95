"""The CUDA libraries of a target Python: which package brings which, what torch pins, and which file a process gets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.base.unknown import NotKnown
from ddpdoctor.engine.registry import requires
from ddpdoctor.facts.libraries import Libraries, Library
from ddpdoctor.facts.packages import Package, Packages
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.python_commands import pip_install
from ddpdoctor.knowledge.wheels import CUDA_WHEELS, numbers

if TYPE_CHECKING:
    from packaging.markers import Marker
    from packaging.requirements import Requirement


class PinnedRelease(msgspec.Struct, frozen=True):
    """Requirement that torch has of a package, "==12.8.4.1", and the version that stands there; None: not installed."""

    package: str
    wanted: str
    installed: str | None
    fits: bool

    @property
    def exact(self) -> str:
        """The version that torch pins, "" where it gives a range."""
        return self.wanted[2:] if self.wanted.startswith("==") and "*" not in self.wanted else ""


@cache
def requirement_in(text: str) -> tuple[str, Requirement] | None:
    """Read a line of Requires-Dist: the other package's name, normalised, and what is required of it; None if it can't be read."""
    # Here and not above: it takes as long to load as a tenth of a look at a host, and on many there is nothing to read.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return canonicalize_name(requirement.name), requirement


def pins(packages: Packages, target_python: TargetPython) -> tuple[PinnedRelease, ...]:
    """The packages that the installed torch requires in an exact version, and all nvidia-*; also by way of extras, as of
    cuda-toolkit's."""
    return tuple(dict.fromkeys(_pins(packages, target_python, "torch", "", set())))


def _pins(
    packages: Packages, target_python: TargetPython, name: str, extra: str, followed: set[tuple[str, str]]
) -> Iterator[PinnedRelease]:
    if (name, extra) in followed:
        return
    followed.add((name, extra))
    for package in packages.named(name)[:1]:
        for text in package.requires:
            if not _may_pin(text) or (read := requirement_in(text)) is None:
                continue
            required, requirement = read
            if requirement.marker and not _holds(requirement.marker, tuple(_environment(target_python, extra).items())):
                continue
            exact = any(part.operator in ("==", "===") for part in requirement.specifier)
            if required != name and (exact or required.startswith("nvidia-")):
                installed = packages.version(required)
                fits = installed is None or requirement.specifier.contains(installed, prereleases=True)
                yield PinnedRelease(required, str(requirement.specifier), installed, fits)
            for part in sorted(requirement.extras):
                yield from _pins(packages, target_python, required, part, followed)


def _may_pin(text: str) -> bool:
    """Whether a line of Requires-Dist is worth reading: a CPU build's torch pins nothing."""
    required, _, _ = text.partition(";")
    return "==" in required or "[" in required or required.lower().startswith("nvidia")


@cache
def _holds(marker: Marker, environment: tuple[tuple[str, str], ...]) -> bool:
    """Cached: several checks ask for torch's pins, and evaluating their markers took a third of all judging."""
    return marker.evaluate(dict(environment))


def _environment(target_python: TargetPython, extra: str) -> dict[str, str]:
    """The values that requirements' markers ask for, of the target Python and not of our own interpreter."""
    return {
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_machine": target_python.platform_tag.partition("-")[2] or "x86_64",
        "python_version": ".".join(target_python.version.split(".")[:2]) or "3.11",
        "python_full_version": target_python.version or "3.11.0",
        "implementation_name": target_python.implementation or "cpython",
        "platform_python_implementation": {"pypy": "PyPy"}.get(target_python.implementation, "CPython"),
        "platform_release": "",
        "platform_version": "",
        "implementation_version": target_python.version or "3.11.0",
        "extra": extra,
    }


def pin_of(soname: str, packages: Packages, target_python: TargetPython) -> PinnedRelease | None:
    """torch's pin of the package that brings a library."""
    stem = re.match(r"lib([A-Za-z]+)(?=[._]|$)", soname)
    middle = CUDA_WHEELS.get(stem[1]) if stem else None
    names = re.compile(rf"nvidia-{re.escape(middle or '-')}(-cu\d+)?")
    return next((pin for pin in pins(packages, target_python) if names.fullmatch(pin.package)), None)


def bundled(soname: str, libraries: Libraries) -> Library | None:
    """The target Python's own copy of a library."""
    return next((library for library in libraries.bundled if library.soname == soname), None)


def version_of(library: Library, packages: Packages, target_python: TargetPython) -> str:
    """A library's version: its own, else that of the package that brought it; "" if neither tells.

    A wheel's file has only the major in its name, and not every library says more inside.
    """
    if len(numbers(library.version)) > 1:
        return library.version
    if "/nvidia/" not in library.path:
        return ""
    pin = pin_of(library.soname, packages, target_python)
    return pin.installed or "" if pin else ""


def is_ours(library: Library, libraries: Libraries) -> bool:
    """Whether a file is one of the target Python's own."""
    own = {path for own_library in libraries.bundled for path in (own_library.path, own_library.real_path) if path}
    return library.path in own or library.real_path in own


def together(packages: Packages, pattern: str) -> list[tuple[Package, ...]]:
    """Packages whose names match and that lie in one folder, where they overwrite each other's files; groups of two and more."""
    groups: dict[str, list[Package]] = {}
    for package in packages.installed:
        if re.fullmatch(pattern, package.name):
            groups.setdefault(package.location, []).append(package)
    return [tuple(group) for group in groups.values() if len({package.name for package in group}) > 1]


def needs_cuda_build(torch: Torch) -> str:
    """Return torch's CUDA version, and end the check where there is none.

    Raises:
        NotKnown: torch doesn't say it, or something else hides torch.
    """
    requires(torch.installed, "torch is not installed")
    if torch.impostor:
        raise NotKnown(f"torch is hidden by {torch.impostor}")
    requires(torch.hip is None, "torch is built for ROCm")
    requires(torch.cuda is not None, "torch is a CPU-only build")
    if not torch.cuda or not numbers(torch.cuda):
        raise NotKnown("torch doesn't say for which CUDA it was built")
    return torch.cuda


def import_broken(torch: Torch) -> bool:
    """Whether the import of torch was tried and failed or crashed."""
    return torch.import_state in ("fails", "crashes")


def reinstall(target_python: TargetPython, *wanted: PinnedRelease) -> str:
    """The command that puts pinned packages back, even where pip believes them to be there."""
    return pip_install(
        target_python,
        "--force-reinstall",
        "--no-deps",
        *(f"{pinned_release.package}{pinned_release.wanted}" for pinned_release in wanted),
    )


def without_folder(libraries: Libraries, folder: str) -> Fix | None:
    """The fix that takes a folder out of LD_LIBRARY_PATH; None where it isn't in it."""
    kept = [entry for entry in libraries.search_path if entry.rstrip("/") != folder.rstrip("/")]
    if not folder or len(kept) == len(libraries.search_path):
        return None
    return Fix(f"Take {folder} out of LD_LIBRARY_PATH for this job", library_path(kept))


def library_path(kept: Sequence[str]) -> tuple[str, ...]:
    """The command that leaves these folders in LD_LIBRARY_PATH."""
    return (f"export LD_LIBRARY_PATH={shlex.quote(':'.join(kept))}" if kept else "unset LD_LIBRARY_PATH",)
