"""Whether the dynamic loader would find a library, without starting anything."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from ddpdoctor.probes.context import Context

DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/lib/wsl/lib")


def can_be_found(context: Context, name: str) -> bool:
    """True if `name` ("libcuda.so.1") is in LD_LIBRARY_PATH, the loader's cache or a default folder.

    Says only that asking is worth while: which file a process gets, and whether it loads, only a process can tell.
    """
    machine = platform.machine()
    folders = [Path(one) for one in re.split("[:;]", context.environ.get("LD_LIBRARY_PATH", "")) if one]
    folders += [context.path(default_folder) for default_folder in DEFAULT_FOLDERS]
    folders += [context.path(f"{one}/{machine}-linux-gnu") for one in ("/lib", "/usr/lib")]
    if any(os.path.lexists(folder / name) for folder in folders):
        return True
    try:
        return b"\0" + name.encode() + b"\0" in context.path("/etc/ld.so.cache").read_bytes()
    except OSError:
        return False
