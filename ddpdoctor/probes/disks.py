"""Asks the file systems that training writes to how much room they have, without hanging on one that hangs."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.disks import Disk, Disks
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.mounts import Mount, mount_of, read_mounts
from ddpdoctor.probes.waiting import ThreadedCall

ANSWER_SECONDS = 2.0


def probe(context: Context) -> Disks:
    table = read_mounts(context)
    mounts = () if isinstance(table, Unknown) else table
    calls = [
        (path, ThreadedCall(partial(_disk, context, purpose, path, mounts), ANSWER_SECONDS))
        for purpose, path in _folders(context)
    ]
    answers = [(path, call.result(Unknown("no answer"))) for path, call in calls]
    return Disks(
        folders=tuple(disk for _, disk in answers if isinstance(disk, Disk)),
        unanswered=tuple(path for path, disk in answers if isinstance(disk, Unknown)),
        removed=_removed(),
    )


def _removed() -> str:
    """The working folder's former path, if it was deleted."""
    try:
        os.getcwd()  # noqa: PTH109 (the system call is the question)
    except FileNotFoundError:
        with suppress(OSError):
            return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")  # noqa: PTH115
        return "the working folder"
    except OSError:
        pass  # It may not be looked at, which is another matter.
    return ""


def _folders(context: Context) -> list[tuple[str, str]]:
    """(purpose, absolute path), where each library would put its files."""
    environ = context.environ
    found = []
    with suppress(OSError):  # Somebody removed it; then nothing can be said of its file system.
        found.append(("working folder", str(Path.cwd())))
    home = environ.get("HOME") or str(Path("~").expanduser())
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    found += [
        ("Python's environment", str(Path(context.python).parent)),
        ("temporary files", environ.get("TMPDIR") or "/tmp"),
        ("home", home),
        ("torch cache", environ.get("TORCH_HOME") or f"{cache}/torch"),
        ("Hugging Face cache", environ.get("HF_HOME") or f"{cache}/huggingface"),
        ("Triton cache", environ.get("TRITON_CACHE_DIR") or f"{environ.get('TRITON_HOME') or home}/.triton"),
    ]
    return [(purpose, path) for purpose, path in found if path.startswith("/")]


def _disk(context: Context, purpose: str, path: str, mounts: tuple[Mount, ...]) -> Disk | None:
    """None where not even its parents can be looked at: there is nothing to report."""
    folder = context.path(path)
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        state = os.statvfs(folder)
        real = os.path.normpath(f"/{os.path.relpath(folder.resolve(), context.root.resolve())}")
    except OSError:
        return None
    mount = mount_of(real, mounts)
    return Disk(
        purpose=purpose,
        path=path,
        file_system=mount.kind,
        mount=mount.point,
        total=state.f_blocks * state.f_frsize,
        free=state.f_bavail * state.f_frsize,
        inodes_total=state.f_files,
        inodes_free=state.f_favail,
        writable=os.access(folder, os.W_OK | os.X_OK),
        read_only_mount=bool(state.f_flag & os.ST_RDONLY),
    )
