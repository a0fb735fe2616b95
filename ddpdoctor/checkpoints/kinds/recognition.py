"""What a path is: one of the formats that we rewrite, or what else, and what to do about it.

By content: a file's name decides nothing, but for what we leave beside checkpoints ourselves. Nothing is opened that could
hang.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from ddpdoctor.base.regular_files import NotRegularError
from ddpdoctor.checkpoints.kinds.own_files import recognise_own
from ddpdoctor.checkpoints.kinds.recognised import BUSY, FileHead, Recognised, mode_of
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
    """Never raises. Reads a few kilobytes, and of a zip archive its directory."""
    try:
        status = path.stat()
    except OSError as error:
        return _unreachable(path, error)
    if not stat.S_ISREG(status.st_mode):
        return _not_a_file(path, status.st_mode)
    if own := recognise_own(path):
        return own
    try:
        with FileHead(path) as glance:
            return _with_download(path, _content(glance))
    except NotRegularError as error:
        return _not_a_file(path, error.mode)
    except OSError as error:
        return unreadable(path, error)


def _content(glance: FileHead) -> Recognised:
    from ddpdoctor.checkpoints.kinds.zip_kinds import recognise_zip

    if not glance.size:
        return _empty(glance.path)
    if is_legacy(glance.head):
        return LEGACY
    if kind := recognise_zip(glance):
        return kind
    # The rest is only for what isn't a checkpoint of torch, and takes its time to import.
    from ddpdoctor.checkpoints.kinds.binary_kinds import recognise_binary
    from ddpdoctor.checkpoints.kinds.pickle_kinds import recognise_pickle
    from ddpdoctor.checkpoints.kinds.safetensors_kind import recognise_safetensors
    from ddpdoctor.checkpoints.kinds.text_kinds import recognise_text

    return (
        recognise_safetensors(glance)
        or recognise_binary(glance)
        or recognise_pickle(glance)
        or recognise_text(glance)
        or _unknown(glance)
    )


def _unknown(glance: FileHead) -> Recognised:
    return Recognised(
        kind="unknown",
        called="a file of an unknown format",
        problem=f"No format that we know: it begins with the bytes {glance.head[:8].hex(' ')}",
        advice="If it was a checkpoint, its beginning is damaged or it is encrypted: copy or download it again",
    )


def _empty(path: Path) -> Recognised:
    return Recognised(
        kind="empty",
        called="an empty file",
        damaged=True,
        problem="Empty: 0 bytes",
        advice="Copy or download it again; if a job was killed or its disk ran full while it saved, use the checkpoint before it",
    )


_UNFINISHED_NAMES = (".incomplete", ".part", ".partial", ".crdownload", ".download", ".filepart", ".!qB", ".aria2")
_UNFINISHED_BESIDE = (".aria2", ".part", ".st", ".!qB")


def _with_download(path: Path, found: Recognised) -> Recognised:
    """Adds, to what is damaged or unknown, that a download of it seems not to have ended."""
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
    """stat failed."""
    if re.match(r"[a-z][a-z0-9+.-]{1,9}:/", str(path)):
        return Recognised(
            kind="address",
            called="an address",
            problem="An address and not a file on this host",
            advice="Download the file, then name it here",
        )
    if os.path.islink(path):  # noqa: PTH114 - Path's own raises for names that are too long
        return _lost_link(path, error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _missing(path)
    return unreadable(path, error)


def _lost_link(path: Path, error: OSError) -> Recognised:
    target = str(path.readlink())
    if error.errno == errno.ELOOP:
        return Recognised(
            kind="broken-link",
            called="a symlink that leads to itself",
            problem=f"A symlink to {target}, which leads round in a circle",
        )
    if error.errno != errno.ENOENT:
        return unreadable(path, error)
    if ".git/annex/objects/" in target:
        return Recognised(
            kind="git-annex-pointer",
            called="a git-annex link",
            problem="A git-annex link: the file itself was never fetched",
            advice="Fetch it with git-annex",
            remedies=(remedy("git-annex-get", path.parent, path.name),),
        )
    return Recognised(
        kind="broken-link",
        called="a symlink to nothing",
        problem=f"A symlink to {target}, which does not exist",
        advice="Download the model again: its file was deleted from the hub's cache"
        if "/blobs/" in target
        else "Restore the file that it leads to, or name another",
    )


def _missing(path: Path) -> Recognised:
    folder = path.parent
    try:
        names = [one.name for one in folder.iterdir()]
    except FileNotFoundError:
        there = next((parent for parent in folder.parents if stat.S_ISDIR(mode_of(parent))), Path("/"))
        return Recognised(
            kind="missing",
            called="nothing",
            problem=f"No such file: not even its folder exists, only {there.absolute()}",
        )
    except OSError as error:
        return unreadable(folder, error, "folder")
    if index := _naming_index(folder, path.name, names):
        return Recognised(
            kind="missing",
            called="nothing",
            damaged=True,
            problem=f"No such file, though {index} names it as one of the model's shards",
            advice="Download the shard, or the whole model again",
        )
    import difflib

    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.75)
    return Recognised(
        kind="missing",
        called="nothing",
        problem="No such file" if path.name else "No file was named",
        advice=f"Did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "",
    )


def _naming_index(folder: Path, name: str, names: list[str]) -> str:
    """The index of a sharded model that names the file."""
    from ddpdoctor.checkpoints.index_files import INDEX_ENDING, index_names

    indexes = sorted(one for one in names if one.endswith(INDEX_ENDING))
    return next((index for index in indexes if name in index_names(folder / index)), "")


def unreadable(path: Path, error: OSError, what: str = "file") -> Recognised:
    """The system's word on why, and what to do where we know it."""
    if isinstance(error, PermissionError):
        return Recognised(
            kind="no-permission",
            called=f"a {what} that may not be read",
            problem=f"This user may not read the {what}",
            advice="Ask its owner to allow it; this shows whose it is",
            remedies=(remedy("list", path),),
        )
    if error.errno == errno.ENAMETOOLONG:
        return Recognised(kind="missing", called="nothing", problem="No such file: the name is too long for one")
    if error.errno == errno.EAGAIN:
        # Somebody has a lease on it: another run of ours, for the moment in which it changes the file, or a file server.
        return Recognised(
            kind=BUSY,
            called=f"a {what} that is being changed",
            problem="Another run is changing the file just now",
            advice="Run the command again in a moment",
        )
    return Recognised(
        kind="unreadable",
        called=f"a {what} that can't be read",
        problem=f"It can't be read: {error.strerror}",
        damaged=error.errno == errno.EIO,
        advice="The disk or the server that holds it is at fault: try again, then use another copy",
    )


def _not_a_file(path: Path, mode: int) -> Recognised:
    called = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a block device",
    }.get(stat.S_IFMT(mode), "no regular file")
    return Recognised(
        kind="special",
        called=called,
        problem=f"{called.capitalize()} and not a file",
        advice="Write what comes from it to a file, and name that",
    )
