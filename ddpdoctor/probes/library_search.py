"""Looks for shared libraries where the dynamic loader does: search path, cache, default folders. Starts nothing."""

from __future__ import annotations

import os
import platform
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists, isdir, names_in

CACHE = "/etc/ld.so.cache"
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
CACHE_ENTRY = struct.Struct("<iIIIQ")
CACHE_FLAGS = {"x86_64": 0x0300, "aarch64": 0x0A00, "ppc64le": 0x0500}
"""Which libraries in the cache are for this machine rather than, say, 32-bit ones."""

DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


def library_path(context: Context) -> tuple[str, ...]:
    """The folders of LD_LIBRARY_PATH, in order; the loader takes an empty one for the working folder."""
    text = context.environ.get("LD_LIBRARY_PATH", "")
    return tuple(part or "." for part in text.replace(";", ":").split(":")) if text else ()


def preloaded(context: Context) -> tuple[str, ...]:
    return tuple(context.environ.get("LD_PRELOAD", "").replace(":", " ").split())


def place(context: Context, path: str) -> Path:
    """Locate a path that a setting names; a relative one is meant from the working folder."""
    return context.path(str(Path(path).absolute()))


def shared_objects_in(context: Context, folder: str) -> list[str]:
    """File names of shared objects in a folder, sorted; nothing where it can't be read."""
    return [name for name in names_in(place(context, folder)) if ".so" in name]


def loader_cache(context: Context) -> dict[str, str] | Unknown:
    """soname to path, as ldconfig wrote it; the first entry of a name counts."""
    found: dict[str, str] | Unknown = context.once("loader cache", lambda: _read_cache(context))
    return found


def _read_cache(context: Context) -> dict[str, str] | Unknown:
    try:
        data = context.path(CACHE).read_bytes()
    except OSError as error:
        return Unknown(f"{CACHE}: {error.strerror}")
    # An older format may stand in front of it.
    start = data.find(CACHE_MAGIC)
    if start < 0:
        return Unknown(f"{CACHE} has a format that ddpdoctor doesn't know")
    try:
        return dict(reversed(list(_entries(data[start:]))))
    except (struct.error, ValueError):
        return Unknown(f"{CACHE} is cut off")


def _entries(data: bytes) -> Iterator[tuple[str, str]]:
    """After the magic: number of entries, then at 48 the entries (flags, offsets of name and path, two unused)."""
    (count,) = struct.unpack_from("<I", data, len(CACHE_MAGIC))
    ours = CACHE_FLAGS.get(platform.machine())

    def text(offset: int) -> str:
        return data[offset : data.index(b"\0", offset)].decode("utf-8", "replace")

    for index in range(count):
        flags, name, path, _, _ = CACHE_ENTRY.unpack_from(data, 48 + index * CACHE_ENTRY.size)
        if ours is None or flags & 0xFF00 == ours:
            yield text(name), text(path)


def targets_libstdcxx(context: Context, base_prefix: str) -> str | Unknown | None:
    """The libstdc++.so.6 that the target Python would get. A conda Python finds its own before anything else, since its
    executable carries an RPATH; `base_prefix` is sys.base_prefix, which has conda-meta where it is one."""
    name = "libstdc++.so.6"
    own = Path(base_prefix, "lib", name)
    for path in preloaded(context):
        if Path(path).name.startswith(name):
            return path
    if isdir(Path(base_prefix, "conda-meta")) and exists(own):
        return str(own)
    cache = loader_cache(context)
    known = {} if isinstance(cache, Unknown) else cache
    in_settings, by_default = (
        next((str(Path(folder, name)) for folder in folders if exists(place(context, folder) / name)), None)
        for folders in (library_path(context), DEFAULT_FOLDERS)
    )
    found = in_settings or known.get(name) or by_default
    return cache if found is None and isinstance(cache, Unknown) else found


def can_be_found(context: Context, name: str) -> bool:
    """Whether `name` ("libcuda.so.1") is in LD_LIBRARY_PATH, the loader's cache or a default folder.

    It says only that asking is worth while: which file a process gets, and whether it loads, only a process can tell.
    """
    machine = platform.machine()
    folders = [Path(folder) for folder in re.split("[:;]", context.environ.get("LD_LIBRARY_PATH", "")) if folder]
    folders += [context.path(folder) for folder in (*DEFAULT_FOLDERS, "/usr/lib/wsl/lib")]
    folders += [context.path(f"{folder}/{machine}-linux-gnu") for folder in ("/lib", "/usr/lib")]
    if any(os.path.lexists(folder / name) for folder in folders):
        return True
    try:
        return b"\0" + name.encode() + b"\0" in context.path(CACHE).read_bytes()
    except OSError:
        return False
