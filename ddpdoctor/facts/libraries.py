"""Shared libraries: which torch really loads, and which others the environment offers in front of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Otherwise, Source


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `version` comes from its name or its own strings, "" if neither tells."""

    soname: str
    """"libnccl.so.2"."""
    path: str
    """As found; `real_path` has the links resolved."""
    real_path: str = ""
    version: str = ""


class Libraries(Facts, frozen=True, kw_only=True):
    """Libraries that matter: libnccl, libcudart, libcublas, libcudnn*, libcusparse, libnvJitLink, libcuda, libstdc++, libgomp/libiomp."""

    loaded: Annotated[Maybe[tuple[Library, ...]], Source("/proc/self/maps after import torch")]
    bundled: Annotated[tuple[Library, ...], Source("site-packages/nvidia, torch/lib")] = ()
    """Those that come with the target Python's packages."""
    search_path: Annotated[tuple[str, ...], Source("LD_LIBRARY_PATH"), Otherwise(())] = ()
    offered: Annotated[tuple[Library, ...], Source("folders of LD_LIBRARY_PATH")] = ()
    """Those that the folders of LD_LIBRARY_PATH hold, in its order."""
    preload: Annotated[tuple[str, ...], Source("LD_PRELOAD")] = ()
    missing: Annotated[Maybe[tuple[str, ...]], Source("DT_NEEDED of torch's libraries")] = ()
    """sonames that torch's own libraries need and nobody has: neither a package, nor the loader's cache, nor the search path."""
    glibcxx_provided: Annotated[Maybe[str | None], Source("symbol versions of libstdc++.so.6")] = None
    """Newest GLIBCXX_* that the libstdc++ which the target Python gets has, "3.4.30"."""
    glibcxx_path: Annotated[str, Source("library search"), Otherwise("")] = ""
