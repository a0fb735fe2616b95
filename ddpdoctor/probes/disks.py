"""Asks the file systems that training writes to how much room they have, without hanging on one that hangs."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.disks import Disk, Disks
from ddpdoctor.probes.context import Context

ANSWER_SECONDS = 2.0


class DiskMount(msgspec.Struct, frozen=True):
    point: str
    file_system: str


def probe(context: Context) -> Disks:
    mounts = _mounts(context)
    asked = [_Asked(context, purpose, path, mounts) for purpose, path in _folders(context)]
    for question in asked:
        question.start()
    until = time.monotonic() + ANSWER_SECONDS
    for question in asked:
        question.answered.wait(max(0.0, until - time.monotonic()))
    return Disks(
        folders=tuple(question.disk for question in asked if question.disk is not None),
        unanswered=tuple(question.path for question in asked if not question.answered.is_set()),
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
    found.append(("Python's environment", str(Path(context.python).parent)))
    found.append(("temporary files", environ.get("TMPDIR") or "/tmp"))
    home = environ.get("HOME") or str(Path("~").expanduser())
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    found.append(("home", home))
    found.append(("torch cache", environ.get("TORCH_HOME") or f"{cache}/torch"))
    found.append(("Hugging Face cache", environ.get("HF_HOME") or f"{cache}/huggingface"))
    found.append(("Triton cache", environ.get("TRITON_CACHE_DIR") or f"{environ.get('TRITON_HOME') or home}/.triton"))
    return [(purpose, path) for purpose, path in found if path.startswith("/")]


class _Asked:
    """One question to one file system, in a thread that may hang for ever."""

    def __init__(self, context: Context, purpose: str, path: str, mounts: list[DiskMount]) -> None:
        self.path = path
        self.disk: Disk | None = None
        self.answered = threading.Event()
        self._context = context
        self._purpose = purpose
        self._mounts = mounts

    def start(self) -> None:
        threading.Thread(target=self._ask, name=f"statvfs {self.path}", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.disk = _disk(self._context, self._purpose, self.path, self._mounts)
        except OSError:
            pass  # Not even its parents can be looked at: there is nothing to report.
        finally:
            self.answered.set()


def _disk(context: Context, purpose: str, path: str, mounts: list[DiskMount]) -> Disk:
    folder = context.path(path)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    state = os.statvfs(folder)
    mount = _mount_of(context, folder, mounts)
    return Disk(
        purpose=purpose,
        path=path,
        file_system=mount.file_system,
        mount=mount.point,
        total=state.f_blocks * state.f_frsize,
        free=state.f_bavail * state.f_frsize,
        inodes_total=state.f_files,
        inodes_free=state.f_favail,
        writable=os.access(folder, os.W_OK | os.X_OK),
        read_only_mount=bool(state.f_flag & os.ST_RDONLY),
    )


def _mount_of(context: Context, folder: Path, mounts: list[DiskMount]) -> DiskMount:
    real = "/" + os.path.relpath(folder.resolve(), context.root.resolve()).removeprefix(".")
    best = DiskMount("", "")
    for mount in mounts:
        inside = mount.point == "/" or real == mount.point or real.startswith(mount.point + "/")
        # Of two mounts on the same point the later one covers the earlier.
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best


def _mounts(context: Context) -> list[DiskMount]:
    text = context.read("/proc/self/mountinfo")
    if isinstance(text, Unknown):
        return []
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 4 and kind:
            # A blank in a path stands there as \040.
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
            found.append(DiskMount(point, kind[0]))
    return found
