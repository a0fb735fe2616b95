"""Compiled extension packages of the target Python, read as ELF files and never imported. Apex is one of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source


class SharedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One .so of a package: what it needs, what it can't find in the target Python's torch, what GPUs it holds code for."""

    path: str
    module: str
    """Import name, "amp_C"."""
    needed: tuple[str, ...] = ()
    """DT_NEEDED, as written."""
    missing: tuple[str, ...] = ()
    """Those of torch's own libraries among them (libc10*, libtorch*) that the target Python's torch doesn't have."""
    undefined: tuple[str, ...] = ()
    """Undefined C++ symbols of c10/at/torch that neither the target Python's libtorch nor the package itself exports
    (mangled, at most 20)."""
    architectures: tuple[str, ...] = ()
    """In its fat binary: "sm_80", "sm_90a", "compute_90" (PTX); read for Apex only; empty: no GPU code."""
    python_tag: str = ""
    """"cpython-311" out of the file name."""
    glibcxx: str = ""
    """Newest GLIBCXX_* that it asks for."""
    error: str = ""
    """Where the file couldn't be read as ELF."""


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """One package with compiled parts that link to torch."""

    package: str
    version: str = ""
    location: str = ""
    objects: tuple[SharedObject, ...] = ()


class Apex(msgspec.Struct, frozen=True, kw_only=True):
    """NVIDIA Apex: `kind` is "nvidia" or, for the unrelated package of that name on PyPI, "other"."""

    location: str
    version: str = ""
    kind: str = "nvidia"
    objects: tuple[SharedObject, ...] = ()


class Extensions(Facts, frozen=True, kw_only=True):
    """`apex` is empty where it isn't installed."""

    packages: Annotated[tuple[Extension, ...], Source("ELF files in the target Python's site-packages")] = ()
    apex: Annotated[Maybe[tuple[Apex, ...]], Source("apex folder and its .so files")] = ()
    """Normally at most one; the first is the one that would be imported."""
