"""Distributions that are installed in the target Python."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Source


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One installed distribution; the name is normalised (lower case, hyphens)."""

    name: str
    version: str
    location: str = ""
    """The folder that it lies in (site-packages)."""
    requires: tuple[str, ...] = ()
    """Its requirements that name torch, nvidia-*, triton or a companion (PEP 508)."""
    installer: str = ""
    """"pip", "uv", "conda"."""


class Packages(Facts, frozen=True, kw_only=True):
    """Those that matter to training: torch and its companions, nvidia-*, triton, apex, deepspeed ..., pip, build tools."""

    installed: Annotated[tuple[Package, ...], Source("metadata in the folders of the target Python's sys.path")]

    def named(self, name: str) -> tuple[Package, ...]:
        """All distributions of that name, several if the same stands in several folders; first found on sys.path first."""
        return tuple(package for package in self.installed if package.name == name)

    def version(self, name: str) -> str | None:
        """Version of the one that would be imported, None if it isn't installed."""
        found = self.named(name)
        return found[0].version if found else None
