"""Compiled extension packages of the patient, read as ELF files and never imported. Apex is one of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.facts.base import Facts, Maybe, Source


class SharedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One .so of a package: what it needs, what it can't find in the patient's torch, what GPUs it holds code for."""

    path: str
    module: str
    """Import name, "amp_C"."""
    needed: tuple[str, ...] = ()
    """DT_NEEDED, as written."""
    undefined: tuple[str, ...] = ()
    """Undefined C++ symbols of c10/at/torch that the patient's libtorch doesn't export (mangled, at most 20)."""
    architectures: tuple[str, ...] = ()
    """In its fat binary: "sm_80", "compute_90"; empty: no GPU code."""
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
    """`apex` is None where it isn't installed."""

    packages: Annotated[tuple[Extension, ...], Source("ELF files in the patient's site-packages")] = ()
    apex: Annotated[Maybe[tuple[Apex, ...]], Source("apex folder and its .so files")] = ()
    """Empty: not installed; normally one."""
