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
from contextlib import contextmanager, suppress
from enum import Enum, IntEnum
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

from ddpdoctor.checkpoints.errors import Refused, Untrusted
from ddpdoctor.checkpoints.formats.byte_source import read_exactly as read_exactly
from ddpdoctor.checkpoints.formats.byte_source import write_exactly as write_exactly
from ddpdoctor.checkpoints.formats.layouts import Change, Patch
from ddpdoctor.checkpoints.writing.exclusive_open import ExclusiveFile
from ddpdoctor.checkpoints.writing.trust import ensure_owner_trusted, ensure_trusted

SUFFIX = ".ddpdoctor-undo"
# Written under this name first. Left behind only by a run that was killed before it changed anything.
DRAFT_SUFFIX = SUFFIX + ".new"

MAGIC = b"ddpdoctor undo\n"
VERSION = 1
# Magic, version, stage, length of the payload, its SHA-256.
HEADER = struct.Struct("<15sBBQ32s")
_STAGE_AT = len(MAGIC) + 1
_MAX_BYTES = 512 << 20
"""Payloads say for each patch what was and what came: far below this for 100,000 tensors. Above it is an attack."""
_MAX_DATE_NANOSECONDS = 1 << 63
"""Before and after 1970."""
_HEAD_BYTES, _TAIL_BYTES = 4 << 10, 64 << 10
"""Of the content on both sides, compared beside the patches, to know whose undo file it is."""


def undo_file(path: Path) -> Path:
    """The path at which the undo file of a checkpoint is, or would be."""
    return path.with_name(path.name + SUFFIX)


def undo_size(path: Path) -> int:
    """Bytes of the undo file of a checkpoint: it grows with every change in place, and shrinks or goes away with its undoing."""
    try:
        return Path(f"{path}{SUFFIX}").stat().st_size
    except OSError:
        return 0


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


class JournalStage(IntEnum):
    """The step that was last begun with a change, or achieved. COMPLETE: with the date."""

    CHANGING = 0
    COMPLETE = 1
    UNDOING = 2


class JournalRecord(NamedTuple):
    """A layer as it stands in the undo file, from byte `start`. digest: of its payload."""

    layer: Layer
    start: int
    stage: JournalStage
    digest: bytes


class JournalState(Enum):
    """The progress of a change in the file."""

    BEFORE = "not begun, or taken back"
    TORN = "begun, and not complete"
    AFTER = "complete"
    FOREIGN = "this is other content"


def layer_of(file: int, change: Change) -> Layer:
    """Describe what would take the change back. file: open, as yet unchanged."""
    return Layer(
        size=change.size,
        mtime_ns=os.fstat(file).st_mtime_ns,
        patches=change.patches,
        appended=len(change.appended),
        digest=_sha256(change.appended),
        witness=_witness(file, change.size, change.patches),
    )


def state(file: int, layer: Layer) -> JournalState:
    """Tell from the bytes how far a change came: old, new, or any mixture of the two, in the order in which they are written.

    What is appended is on disk before the first patch begins; taken back, the patches go first.
    """
    size = os.fstat(file).st_size
    if not layer.size <= size <= layer.size + layer.appended:
        return JournalState.FOREIGN
    if _witness(file, layer.size, layer.patches) != layer.witness:
        return JournalState.FOREIGN
    untouched = complete = True
    for patch in layer.patches:
        now = read_exactly(file, len(patch.old), patch.offset)
        if now != patch.old:
            untouched = False
        if now != patch.new:
            complete = False
        if now not in (patch.old, patch.new) and not _mixed(now, patch):
            return JournalState.FOREIGN
    whole = (
        size == layer.size + layer.appended and _sha256(read_exactly(file, layer.appended, layer.size)) == layer.digest
    )
    if untouched and size == layer.size:
        return JournalState.BEFORE
    if complete and whole:
        return JournalState.AFTER
    return JournalState.TORN if whole or untouched else JournalState.FOREIGN


def may_be_torn(file: int, record: JournalRecord) -> bool:
    """Whether a file of FOREIGN content may still be one that was left half changed, and harmed afterwards.

    Then the record may hold the only copy of what is missing. A change that was completed left nothing half done, and
    an undo says so, on the disk, before it begins.
    """
    layer = record.layer
    if record.stage is JournalStage.COMPLETE:
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
    for start, end in ((0, min(size, _HEAD_BYTES)), (max(0, size - _TAIL_BYTES), size)):
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


def read(checkpoint: ExclusiveFile) -> tuple[JournalRecord, ...]:
    """The records of the undo file of a checkpoint, oldest first; empty if there is no file.

    The checkpoint may be open for reading alone. Refused is raised where it isn't one, is damaged, or was written by a later
    release; Untrusted where it isn't to be believed.
    """
    raw = _raw(checkpoint)
    return tuple(_records(raw, checkpoint.name + SUFFIX)) if raw is not None else ()


def _raw(checkpoint: ExclusiveFile) -> bytes | None:
    try:
        with _opened(checkpoint, os.O_RDONLY) as file:
            size = os.fstat(file).st_size
            if size > _MAX_BYTES:
                _refuse_foreign(checkpoint.name + SUFFIX, "is far too large for one")
            return read_exactly(file, size, 0)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise Refused(f"The undo file {checkpoint.name}{SUFFIX} can't be read ({error.strerror})") from None


@contextmanager
def _opened(checkpoint: ExclusiveFile, flags: int, record: JournalRecord | None = None) -> Iterator[int]:
    # Open the undo file, and believe it as it is open: by its name somebody else may have put another one there since it was
    # read. Refused or Untrusted is raised if it isn't ours, or not the one with that record.
    name = checkpoint.name + SUFFIX
    try:
        # Not through a link, and without waiting for a pipe that somebody laid there.
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=checkpoint.folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            ensure_owner_trusted(name, checkpoint)
        if error.errno == errno.ELOOP:
            _refuse_foreign(name, "is a symbolic link")
        raise
    try:
        ensure_trusted(file, name, checkpoint)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            _refuse_foreign(name, "is no regular file")
        if record:
            header = read_exactly(file, HEADER.size, record.start)
            if len(header) < HEADER.size or HEADER.unpack(header)[-1] != record.digest:
                _refuse_foreign(name, "was replaced meanwhile")
        yield file
    finally:
        os.close(file)


def ensure_there(checkpoint: ExclusiveFile, record: JournalRecord) -> None:
    """Make sure that the undo file is still the one with this record; else OSError, Refused or Untrusted is raised."""
    with _opened(checkpoint, os.O_RDWR, record):
        pass


def _records(raw: bytes, name: str) -> Iterator[JournalRecord]:
    if not raw:
        _refuse_foreign(name, "is empty")
    start, room = 0, _MAX_BYTES
    while start < len(raw):
        if raw[start : start + len(MAGIC)] != MAGIC[: len(raw) - start]:
            _refuse_foreign(name, "is something else")
        if len(raw) - start < HEADER.size:
            _refuse_foreign(name, "is cut off")
        _, version, stage, length, digest = HEADER.unpack_from(raw, start)
        if version != VERSION:
            raise Refused(
                f"The undo file {name} was written by a later release of ddpdoctor",
                "Use that release, or update this one",
                ("python -m pip install --upgrade ddpdoctor",),
            )
        payload = raw[start + HEADER.size : start + HEADER.size + length]
        if stage not in set(JournalStage) or len(payload) != length or _sha256(payload) != digest:
            _refuse_foreign(name, "is damaged")
        try:
            content = zlib.decompressobj().decompress(payload, room)
        except zlib.error:
            _refuse_foreign(name, "is damaged")
        # All of them together: thousands of small payloads may unfold to more than the memory.
        room = max(1, room - len(content))
        yield JournalRecord(_decoded(content, name), start, JournalStage(stage), digest)
        start += HEADER.size + length


def _decoded(content: bytes, name: str) -> Layer:
    try:
        layer = msgspec.msgpack.decode(content, type=Layer)
    except msgspec.DecodeError:
        _refuse_foreign(name, "is damaged")
    end = 0
    for patch in layer.patches:
        if patch.offset < end or len(patch.old) != len(patch.new):
            _refuse_foreign(name, "is damaged")
        end = patch.offset + len(patch.old)
    if end > layer.size or layer.appended < 0 or abs(layer.mtime_ns) >= _MAX_DATE_NANOSECONDS:
        _refuse_foreign(name, "is damaged")
    return layer


def _refuse_foreign(name: str, what: str) -> NoReturn:
    raise Refused(
        f"What should be the undo file, {name}, {what}",
        "Nothing was changed. Move it out of the way, if you know that no undo is needed",
    ) from None


def add(checkpoint: ExclusiveFile, layer: Layer, aside: str = "") -> JournalRecord:
    """Put a record behind those that are there: it is whole on disk when this returns, or nothing has changed.

    Whoever may read the checkpoint may read its undo file; its owner alone may write that. OSError is raised if it can't be
    written, Refused if somebody else's file is in the way. aside: what the file that is there is called afterwards, if it is
    of other content: the record then begins a new one.

    Raises:
        FileExistsError: something called `aside` is there.
    """
    folder, name = checkpoint.folder, checkpoint.name
    before = b"" if aside else _raw(checkpoint) or b""
    payload = zlib.compress(msgspec.msgpack.encode(layer), 1)
    digest = _sha256(payload)
    record = HEADER.pack(MAGIC, VERSION, JournalStage.CHANGING, len(payload), digest) + payload
    draft = name + DRAFT_SUFFIX
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(draft, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        ensure_owner_trusted(draft, checkpoint)
        raise
    try:
        try:
            write_exactly(file, before + record, 0)
            _give(file, os.fstat(checkpoint.file))
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
    return JournalRecord(layer, len(before), JournalStage.CHANGING, digest)


def _give(file: int, checkpoint: os.stat_result) -> None:
    """Give a file the checkpoint's owner, group and readers. Where it can't have the group, that of this user is no substitute."""
    readable = checkpoint.st_mode & 0o644
    with suppress(OSError):
        os.fchown(file, checkpoint.st_uid, checkpoint.st_gid)
    if os.fstat(file).st_gid != checkpoint.st_gid:
        readable &= ~0o040
    with suppress(OSError):
        os.fchmod(file, readable)


def _put_aside(folder: int, name: str, aside: str) -> None:
    # Give a file another name, durably, and overwrite nothing.
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


def mark(checkpoint: ExclusiveFile, record: JournalRecord, stage: JournalStage) -> None:
    """Note the stage of a record. OSError is raised, or Refused, with nothing written, if the file isn't the one with it."""
    with _opened(checkpoint, os.O_RDWR, record) as file:
        os.pwrite(file, bytes([stage]), record.start + _STAGE_AT)
        if stage is JournalStage.UNDOING:
            # Before the checkpoint's date changes. That it is complete can get lost: it is found out again.
            os.fsync(file)


def pop(checkpoint: ExclusiveFile, record: JournalRecord) -> None:
    """Take the last record off, in one step that needs no room on the disk; the file goes with its only record.

    Raises as `mark`.
    """
    with _opened(checkpoint, os.O_RDWR, record) as file:
        if record.start == 0:
            os.unlink(checkpoint.name + SUFFIX, dir_fd=checkpoint.folder)
            sync_folder(checkpoint.folder)
        else:
            os.ftruncate(file, record.start)
            os.fsync(file)


def has_draft(checkpoint: ExclusiveFile) -> bool:
    """Whether there is one, left by a run that was killed; what somebody else has put there is none."""
    try:
        status = os.stat(checkpoint.name + DRAFT_SUFFIX, dir_fd=checkpoint.folder, follow_symlinks=False)
        ensure_owner_trusted(checkpoint.name + DRAFT_SUFFIX, checkpoint)
    except (OSError, Untrusted):
        return False
    return stat.S_ISREG(status.st_mode)


def remove_draft(checkpoint: ExclusiveFile) -> bool:
    """Remove a draft; whether there was one. Only for who holds the checkpoint's lock."""
    if not has_draft(checkpoint):
        return False
    os.unlink(checkpoint.name + DRAFT_SUFFIX, dir_fd=checkpoint.folder)
    return True


def sync_folder(folder: int) -> None:
    """Make the names in it durable, where the file system knows such a thing.

    Raises:
        OSError: they can't be written.
    """
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF):
            raise
