"""The undo file beside a checkpoint, NAME.ddpdoctor-undo: what each change in place replaced, one record after the other.

A record is on disk before the first byte of the checkpoint changes. How far a change came is told from the bytes of the
checkpoint itself (`state`); its stage says which way it was going, and whether the date was put right afterwards.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, IntEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.formats.changes import Change, Patch

SUFFIX = ".ddpdoctor-undo"
# Written under this name first. Left behind only by a run that was killed before it changed anything.
DRAFT_SUFFIX = SUFFIX + ".new"

MAGIC = b"ddpdoctor undo\n"
VERSION = 1
# Magic, version, stage, length of the payload, its SHA-256.
HEADER = struct.Struct("<15sBBQ32s")
_STAGE_AT = len(MAGIC) + 1
# A payload says for each patch what was and what came: far below this for 100,000 tensors. Above it is an attack.
_MOST = 512 << 20
# Nanoseconds before and after 1970 that a file's date can be.
_DATES = 1 << 63
# How much of the content on both sides is compared, beside the patches, to know whose undo file it is.
_HEAD, _TAIL = 4 << 10, 64 << 10


def undo_file(path: Path) -> Path:
    """Where the undo file of a checkpoint is, or would be."""
    return path.with_name(path.name + SUFFIX)


class Layer(msgspec.Struct, frozen=True, array_like=True):
    """One change, and how to take it back.

    size, mtime_ns: of the file before. appended, digest: length and SHA-256 of what was added behind the old end.
    witness: SHA-256 of both ends of the old content without the patches; no other file has it.
    """

    size: int
    mtime_ns: int
    patches: tuple[Patch, ...]
    appended: int
    digest: bytes
    witness: bytes


class Stage(IntEnum):
    """What was last begun with a change, or achieved. COMPLETE: with the date."""

    CHANGING = 0
    COMPLETE = 1
    UNDOING = 2


class Record(NamedTuple):
    """A layer as it stands in the undo file, from byte `start`."""

    layer: Layer
    start: int
    stage: Stage


class State(Enum):
    """How far a change has come in the file."""

    BEFORE = "not begun, or taken back"
    TORN = "begun, and not complete"
    AFTER = "complete"
    FOREIGN = "this is other content"


def layer_of(file: int, change: Change) -> Layer:
    """What would take the change back. file: open, as yet unchanged."""
    return Layer(
        size=change.size,
        mtime_ns=os.fstat(file).st_mtime_ns,
        patches=change.patches,
        appended=len(change.appended),
        digest=_sha256(change.appended),
        witness=_witness(file, change.size, change.patches),
    )


def state(file: int, layer: Layer) -> State:
    """Told from the bytes: old, new, or any mixture of the two, in the order in which they are written.

    What is appended is on disk before the first patch begins; taken back, the patches go first.
    """
    size = os.fstat(file).st_size
    if not layer.size <= size <= layer.size + layer.appended:
        return State.FOREIGN
    if _witness(file, layer.size, layer.patches) != layer.witness:
        return State.FOREIGN
    untouched = complete = True
    for patch in layer.patches:
        now = read_exactly(file, len(patch.old), patch.offset)
        if now != patch.old:
            untouched = False
        if now != patch.new:
            complete = False
        if now not in (patch.old, patch.new) and not _mixed(now, patch):
            return State.FOREIGN
    whole = (
        size == layer.size + layer.appended and _sha256(read_exactly(file, layer.appended, layer.size)) == layer.digest
    )
    if untouched and size == layer.size:
        return State.BEFORE
    if complete and whole:
        return State.AFTER
    return State.TORN if whole or untouched else State.FOREIGN


def may_be_torn(file: int, record: Record) -> bool:
    """Whether a file of FOREIGN content may still be one that was left half changed, and harmed afterwards.

    Then the record may hold the only copy of what is missing. A change that was completed left nothing half done, and
    an undo says so, on the disk, before it begins.
    """
    layer = record.layer
    if record.stage is Stage.COMPLETE:
        return False
    if _witness(file, layer.size, layer.patches) == layer.witness:
        return True
    for patch in layer.patches:
        now = read_exactly(file, len(patch.old), patch.offset)
        length = len(now)
        if now != patch.old[:length] and _mixed(now, Patch(patch.offset, patch.old[:length], patch.new[:length])):
            return True
    return False


def _mixed(now: bytes, patch: Patch) -> bool:
    if len(now) != len(patch.old):
        return False
    return all(byte in (old, new) for byte, old, new in zip(now, patch.old, patch.new, strict=True))


def _witness(file: int, size: int, patches: tuple[Patch, ...]) -> bytes:
    import hashlib

    digest = hashlib.sha256()
    for start, end in ((0, min(size, _HEAD)), (max(0, size - _TAIL), size)):
        content = bytearray(read_exactly(file, end - start, start))
        for patch in patches:
            first = max(patch.offset, start)
            past = min(patch.offset + len(patch.old), end)
            if first < past:
                content[first - start : past - start] = bytes(past - first)
        digest.update(content)
    return digest.digest()


def _sha256(data: bytes) -> bytes:
    # Here and not above: OpenSSL takes milliseconds to load, and only a change needs it.
    import hashlib

    return hashlib.sha256(data).digest()


def read(folder: int, name: str) -> tuple[Record, ...]:
    """The records of the undo file of checkpoint `name` in the open `folder`, oldest first; empty if there is no file.

    Raises Refused where it isn't one, is damaged, or was written by a later release.
    """
    raw = _raw(folder, name + SUFFIX)
    return tuple(_records(raw, name + SUFFIX)) if raw is not None else ()


def _raw(folder: int, name: str) -> bytes | None:
    try:
        # Not through a link, and without waiting for a pipe that somebody laid there.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        if error.errno == errno.ELOOP:
            raise _not_ours(name, "is a symbolic link") from None
        raise Refused(f"The undo file {name} can't be read ({error.strerror})") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise _not_ours(name, "is no regular file")
        if status.st_size > _MOST:
            raise _not_ours(name, "is far too large for one")
        return read_exactly(file, status.st_size, 0)
    finally:
        os.close(file)


def read_exactly(file: int, length: int, offset: int) -> bytes:
    """As much of that as there is; one call of the kernel may bring less."""
    parts = []
    while length and (part := os.pread(file, length, offset)):
        parts.append(part)
        length -= len(part)
        offset += len(part)
    return b"".join(parts)


def _records(raw: bytes, name: str) -> Iterator[Record]:
    if not raw:
        raise _not_ours(name, "is empty")
    start = 0
    while start < len(raw):
        if raw[start : start + len(MAGIC)] != MAGIC[: len(raw) - start]:
            raise _not_ours(name, "is something else")
        if len(raw) - start < HEADER.size:
            raise _not_ours(name, "is cut off")
        _, version, stage, length, digest = HEADER.unpack_from(raw, start)
        if version != VERSION:
            raise Refused(
                f"The undo file {name} was written by a later release of ddpdoctor",
                "Use that release, or update this one",
                ("python -m pip install --upgrade ddpdoctor",),
            )
        payload = raw[start + HEADER.size : start + HEADER.size + length]
        if stage not in set(Stage) or len(payload) != length or _sha256(payload) != digest:
            raise _not_ours(name, "is damaged")
        yield Record(_decoded(payload, name), start, Stage(stage))
        start += HEADER.size + length


def _decoded(payload: bytes, name: str) -> Layer:
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(payload, _MOST)
        layer = msgspec.msgpack.decode(content, type=Layer)
    except (zlib.error, msgspec.DecodeError):
        raise _not_ours(name, "is damaged") from None
    end = 0
    for patch in layer.patches:
        if patch.offset < end or len(patch.old) != len(patch.new):
            raise _not_ours(name, "is damaged")
        end = patch.offset + len(patch.old)
    if end > layer.size or layer.appended < 0 or not -_DATES < layer.mtime_ns < _DATES:
        raise _not_ours(name, "is damaged")
    return layer


def _not_ours(name: str, what: str) -> Refused:
    return Refused(
        f"What should be the undo file, {name}, {what}",
        "Nothing was changed. Move it out of the way, if you know that no undo is needed",
    )


def name_aside(path: Path) -> Path:
    """A name that nothing has yet, for a checkpoint's undo file whose content is gone."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}{SUFFIX}.old" + (f"-{number}" if number > 1 else ""))):
        number += 1
    return aside


def add(folder: int, name: str, layer: Layer, owner: os.stat_result, aside: str = "") -> Record:
    """Puts a record behind those that are there: it is whole on disk when this returns, or nothing has changed.

    owner: the checkpoint's status; whoever may read and undo the one may do so with the other. aside: what the file that
    is there is called afterwards, if it is of other content: the record then begins a new one.
    Raises OSError; FileExistsError if the draft of another run, or something called `aside`, is there.
    """
    before = b"" if aside else _raw(folder, name + SUFFIX) or b""
    payload = zlib.compress(msgspec.msgpack.encode(layer), 1)
    record = HEADER.pack(MAGIC, VERSION, Stage.CHANGING, len(payload), _sha256(payload)) + payload
    draft = name + DRAFT_SUFFIX
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(draft, flags, 0o600, dir_fd=folder)
    try:
        try:
            write_exactly(file, before + record, 0)
            with suppress(OSError):
                os.fchown(file, owner.st_uid, owner.st_gid)
            with suppress(OSError):
                os.fchmod(file, owner.st_mode & 0o666)
            os.fsync(file)
        finally:
            os.close(file)
        if aside:
            _put_aside(folder, name + SUFFIX, aside)
        os.rename(draft, name + SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    sync_folder(folder)
    return Record(layer, len(before), Stage.CHANGING)


def _put_aside(folder: int, name: str, aside: str) -> None:
    """Gives a file another name, durably, and overwrites nothing. Raises OSError."""
    try:
        os.link(name, aside, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # No hard links here (FAT, some file servers). The checkpoint's lock keeps other runs away.
        if os.path.lexists(f"/proc/self/fd/{folder}/{aside}"):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        sync_folder(folder)
        return
    # The second name is on the disk before the first one is given to another file.
    sync_folder(folder)


def write_exactly(file: int, data: bytes, offset: int) -> None:
    """All of it: one call of the kernel may take less. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view = view[written:]
        offset += written


def mark(folder: int, name: str, record: Record, stage: Stage) -> None:
    """Notes the stage of a record. Raises OSError."""
    file = os.open(name + SUFFIX, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.pwrite(file, bytes([stage]), record.start + _STAGE_AT)
        if stage is Stage.UNDOING:
            # Before the checkpoint's date changes. That it is complete can get lost: it is found out again.
            os.fsync(file)
    finally:
        os.close(file)


def pop(folder: int, name: str, record: Record) -> None:
    """Takes the last record off, in one step that needs no room on the disk; the file goes with its only record."""
    if record.start == 0:
        os.unlink(name + SUFFIX, dir_fd=folder)
        sync_folder(folder)
        return
    file = os.open(name + SUFFIX, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.ftruncate(file, record.start)
        os.fsync(file)
    finally:
        os.close(file)


def remove_draft(folder: int, name: str) -> bool:
    """Whether there was one, left by a run that was killed. Only for who holds the checkpoint's lock."""
    try:
        os.unlink(name + DRAFT_SUFFIX, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def sync_folder(folder: int) -> None:
    """Makes the names in it durable, where the file system knows such a thing."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF):
            raise
