"""The target Python's site-packages as folders: which distributions lie there, and where torch keeps its libraries.

Reads names only, so that it needn't wait for the target Python's import of torch.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import isfile, names_in

METADATA = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[0-9][^-]*)(?:-[^/]*)?\.(?:dist|egg)-info")

TORCH_LIBRARY = re.compile(r"lib(?:c10|torch)(?:_\w+)?\.so")
"""File names of torch's own libraries."""


class SitePackages(msgspec.Struct, frozen=True):
    """folders: in the order of the target Python's sys.path. versions: of the first distribution of each normalised name.
    python: the target Python's version."""

    folders: tuple[Path, ...]
    versions: dict[str, str]
    python: str

    @property
    def torch_libraries(self) -> dict[str, Path]:
        """The libraries of the torch that would be imported, by name; empty where they aren't found.

        Wheels keep them in torch/lib, conda-forge in the environment's own lib folder.
        """
        torch = next((folder for folder in self.folders if isfile(folder / "torch" / "__init__.py")), None)
        if torch is None:
            return {}
        found: dict[str, Path] = {}
        for folder in (torch / "torch" / "lib", *torch.parents[1:2]):
            for name in names_in(folder):
                if TORCH_LIBRARY.fullmatch(name):
                    found.setdefault(name, folder / name)
        return found if "libc10.so" in found else {}

    def version(self, package: str) -> str:
        """The version that a distribution's metadata folder names, or ""."""
        return self.versions.get(normalised(package), "")


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def site_packages(context: Context) -> SitePackages | Unknown:
    """The folders on the target Python's path, or why they aren't known."""
    found: SitePackages | Unknown = context.once("site-packages", lambda: _look(context))
    return found


def _look(context: Context) -> SitePackages | Unknown:
    target_python = context.facts(TargetPython)
    if isinstance(target_python, Unknown):
        return target_python
    if target_python.state != "ok":
        return Unknown(f"the target Python can't be asked: {target_python.detail}")
    folders = tuple(dict.fromkeys(Path(site_package) for site_package in target_python.site_packages))
    versions: dict[str, str] = {}
    for folder in folders:
        for name in names_in(folder):
            if metadata := METADATA.fullmatch(name):
                versions.setdefault(normalised(metadata["name"]), metadata["version"])
    return SitePackages(folders, versions, target_python.version)
