"""Recognising a file: one of the formats that we rewrite, or what else, and what to do about it.

By content: a file's name decides nothing, but for what ddpdoctor itself leaves beside checkpoints, since a new file that
was cut short holds a checkpoint. Nothing is opened that could hang.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from ddpdoctor.base.regular_files import NotRegularError
from ddpdoctor.base.text import capital
from ddpdoctor.checkpoints.kinds.file_head import FileHead, Recognised, mode_of, recognised
from ddpdoctor.facts.remedies import remedy

LEGACY = Recognised(kind="legacy", called="a PyTorch checkpoint (format before torch 1.6)")
_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY = re.compile(
    rb"\x80[\x02-\xff](?:\x95.{8})?\x8a\x0a" + re.escape(_MAGIC.to_bytes(10, "little")) + rb"\.|L%dL\n\." % _MAGIC,
    re.DOTALL,
)
"""The pickle of torch's magic number, in any protocol."""


def is_legacy(head: bytes) -> bool:
    """Whether a file's first bytes are torch's magic number, as it was written before torch 1.6."""
    return _LEGACY.match(head) is not None


def recognise_file(path: Path) -> Recognised:
    """Recognise a file. Never raises. Reads a few kilobytes, and of a zip archive its directory."""
    try:
        status = path.stat()
    except OSError as error:
        return _unreachable(path, error)
    if not stat.S_ISREG(status.st_mode):
        return _not_a_file(status.st_mode)
    if own := _recognise_own(path):
        return own
    try:
        with FileHead(path) as glance:
            return _with_download(path, _content(glance))
    except NotRegularError as error:
        return _not_a_file(error.mode)
    except OSError as error:
        return unreadable(path, error)


def _content(glance: FileHead) -> Recognised:
    from ddpdoctor.checkpoints.kinds.zip_kinds import recognise_zip

    if not glance.size:
        return recognised("empty")
    if is_legacy(glance.head):
        return LEGACY
    if kind := recognise_zip(glance):
        return kind
    # The rest is only for what isn't a checkpoint of torch, and takes its time to import.
    from ddpdoctor.checkpoints.kinds.foreign_kinds import recognise_foreign
    from ddpdoctor.checkpoints.kinds.pickle_kinds import recognise_pickle
    from ddpdoctor.checkpoints.kinds.text_kinds import recognise_text

    return (
        recognise_foreign(glance)
        or recognise_pickle(glance)
        or recognise_text(glance)
        or recognised("unknown", head=glance.head[:8].hex(" "))
    )


_UNDO, _UNDO_BEGUN, _LOCK, _NEW = ".ddpdoctor-undo", ".ddpdoctor-undo.new", ".ddpdoctor-lock", ".ddpdoctor-new"


def is_own(name: str) -> bool:
    """Whether a file of this name is one of ddpdoctor's own: nothing to fix, whatever is in it."""
    return name.endswith((_UNDO, _UNDO_BEGUN, _LOCK)) or (name.startswith(".") and name.endswith(_NEW))


def _recognise_own(path: Path) -> Recognised | None:
    name = path.name
    if not is_own(name):
        return None
    for ending, key in ((_UNDO_BEGUN, "undo-begun"), (_LOCK, "lock"), (_NEW, "new")):
        if name.endswith(ending):
            of = name[ending == _NEW :].removesuffix(ending)
            return recognised(f"own-file/{key}", remedy("remove", path), name=of)
    checkpoint = path.with_name(name.removesuffix(_UNDO) or name)
    if mode_of(checkpoint):
        return recognised("own-file/undo", remedy("undo", checkpoint), name=checkpoint.name)
    return recognised("own-file/undo-alone", name=checkpoint.name)


_UNFINISHED_NAMES = (".incomplete", ".part", ".partial", ".crdownload", ".download", ".filepart", ".!qB", ".aria2")
_UNFINISHED_BESIDE = (".aria2", ".part", ".st", ".!qB")


def _with_download(path: Path, found: Recognised) -> Recognised:
    """Add, to what is damaged or unknown, that a download of it seems not to have ended."""
    if found.kind != "unknown" and not found.damaged:
        return found
    signs = [f"its name ends in {ending}" for ending in _UNFINISHED_NAMES if path.name.endswith(ending)]
    signs += [
        f"{path.name}{ending} lies beside it" for ending in _UNFINISHED_BESIDE if os.path.lexists(f"{path}{ending}")
    ]
    if not signs:
        return found
    import msgspec

    return msgspec.structs.replace(
        found,
        problem=f"{found.problem}; a download that has not ended, as {signs[0]}",
        advice="Let the download run to its end, or start it again",
    )


def _unreachable(path: Path, error: OSError) -> Recognised:
    """Recognise a path of which the system says nothing but this error."""
    if re.match(r"[a-z][a-z0-9+.-]{1,9}:/", str(path)):
        return recognised("address")
    if os.path.islink(path):  # noqa: PTH114 - Path's own raises for names that are too long
        return _lost_link(path, error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _missing(path)
    return unreadable(path, error)


def _lost_link(path: Path, error: OSError) -> Recognised:
    target = str(path.readlink())
    if error.errno == errno.ELOOP:
        return recognised("broken-link/circle", target=target)
    if error.errno != errno.ENOENT:
        return unreadable(path, error)
    if ".git/annex/objects/" in target:
        return recognised("git-annex-pointer", remedy("git-annex-get", path.parent, path.name), what="link")
    return recognised("broken-link/hub" if "/blobs/" in target else "broken-link", target=target)


def _missing(path: Path) -> Recognised:
    folder = path.parent
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        there = next((parent for parent in folder.parents if stat.S_ISDIR(mode_of(parent))), Path("/"))
        return recognised("missing/folder", folder=there.absolute())
    except OSError as error:
        return unreadable(folder, error, "folder")
    from ddpdoctor.checkpoints.shard_index import INDEX_ENDING, index_names

    indexes = sorted(name for name in names if name.endswith(INDEX_ENDING))
    if index := next((index for index in indexes if path.name in index_names(folder / index)), ""):
        return recognised("missing/shard", index=index)
    if not path.name:
        return recognised("missing/no-name")
    import difflib

    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.75)
    advice = f"Did you mean {' or '.join(str(folder / name) for name in near)}?" if near else ""
    return recognised("missing", advice=advice)


def unreadable(path: Path, error: OSError, what: str = "file") -> Recognised:
    """Why a file or folder can't be read, in the system's word, and what to do where we know it."""
    if isinstance(error, PermissionError):
        return recognised("no-permission", remedy("list", path), what=what)
    if error.errno == errno.ENAMETOOLONG:
        return recognised("missing/long-name")
    if error.errno == errno.EAGAIN:
        # Somebody has a lease on it: another run of ours, for the moment in which it changes the file, or a file server.
        return recognised("busy", what=what)
    return recognised(
        "unreadable/damaged" if error.errno == errno.EIO else "unreadable", what=what, reason=error.strerror
    )


def _not_a_file(mode: int) -> Recognised:
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a block device",
    }
    what = kinds.get(stat.S_IFMT(mode), "no regular file")
    return recognised("special", what=what, begin=capital(what))
