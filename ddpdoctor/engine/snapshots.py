"""Snapshots as files: written whole or not at all, and read with suspicion, as anybody may have written them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import msgspec

from ddpdoctor.base.ownership import ROOT
from ddpdoctor.base.text import escaped_json
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.base.whole_files import write_whole
from ddpdoctor.engine.output_streams import open_stream
from ddpdoctor.engine.sanitize_facts import plausible
from ddpdoctor.engine.snapshot_lines import joined
from ddpdoctor.facts.snapshot import SCHEMA, Checkpoints, Snapshot

MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024
"""A real snapshot has some tens of kilobytes."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises on what isn't whole JSON of that shape."""


class SnapshotError(Exception):
    """A file that can't be read as a snapshot, or not be written; the text says why and what to do."""


class _Header(msgspec.Struct):
    ddpdoctor_snapshot: int


def read_snapshot(path: str | Path) -> Snapshot:
    """Read one snapshot from a file, or from standard input where the path is "-".

    It raises `SnapshotError` where it doesn't exist, may not be read, is too large, truncated, not ours, or from a newer ddpdoctor.
    """
    name = "standard input" if str(path) == "-" else str(path)
    return decode_snapshot(_read(path, name), name)


def _read(path: str | Path, name: str) -> bytes:
    try:
        with os.fdopen(0, "rb", closefd=False) if str(path) == "-" else Path(path).open("rb") as file:
            content = file.read(MAX_SNAPSHOT_BYTES + 1)
    except OSError as error:
        raise SnapshotError(f"{name}: {error.strerror or error}") from error
    if len(content) > MAX_SNAPSHOT_BYTES:
        raise SnapshotError(
            f"{name}: larger than {MAX_SNAPSHOT_BYTES >> 20} MiB, so this is no snapshot; nothing of it was used"
        )
    return content


def decode_snapshot(content: bytes, name: str) -> Snapshot:
    """Decode the snapshot in these bytes.

    Args:
        content: JSON, or the lines of `snapshot_lines`.
        name: stands in the errors.
    Raises:
        SnapshotError: truncated, not ours, or from a newer ddpdoctor.
    """
    content = joined(content)
    check_header(content, name)
    try:
        snapshot = plausible(msgspec.json.decode(content, type=Snapshot))
    except UNREADABLE as error:
        raise SnapshotError(f"{name}: not a whole snapshot: {error}") from error
    return msgspec.structs.replace(snapshot, checkpoints=attributed(snapshot.checkpoints))


def check_header(content: bytes, name: str) -> None:
    """Tell what is no snapshot that this version can read by its beginning.

    Raises:
        SnapshotError: truncated, not ours, or from a newer ddpdoctor.
    """
    if not content.strip():
        raise SnapshotError(f"{name}: there is nothing in it; take the snapshot again with ddpdoctor snapshot -o FILE")
    try:
        schema = msgspec.json.decode(content, type=_Header).ddpdoctor_snapshot
    except msgspec.ValidationError as error:
        raise SnapshotError(f"{name}: not a snapshot of ddpdoctor (ddpdoctor snapshot -o FILE takes one)") from error
    except UNREADABLE as error:
        kind = "ends too early; was it copied whole?" if "truncated" in str(error) else f"not valid JSON: {error}"
        raise SnapshotError(f"{name}: {kind}") from error
    if schema > SCHEMA:
        raise SnapshotError(
            f"{name}: taken by a newer ddpdoctor (schema {schema}, this one reads up to {SCHEMA}); update ddpdoctor here"
        )


def attributed(checkpoints: Maybe[Checkpoints]) -> Maybe[Checkpoints]:
    """Put in front of what the snapshot says to do that these are its words: a sentence may hold a command, too."""
    if isinstance(checkpoints, Unknown) or not any(file.advice for file in checkpoints.files):
        return checkpoints
    files = tuple(
        msgspec.structs.replace(file, advice=f'The snapshot says: "{file.advice}"') if file.advice else file
        for file in checkpoints.files
    )
    return msgspec.structs.replace(checkpoints, files=files)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode the snapshot as indented JSON in UTF-8, fit for a terminal."""
    return escaped_json(msgspec.json.format(msgspec.json.encode(snapshot), indent=1).decode()).encode() + b"\n"


def encode_line(snapshot: Snapshot) -> bytes:
    """Encode the snapshot as JSON in one line, fit for a terminal."""
    return escaped_json(msgspec.json.encode(snapshot).decode()).encode() + b"\n"


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write the snapshot as `write_private` does.

    Raises:
        SnapshotError: the folder doesn't exist, no permission, disk full, nothing that a snapshot is written into ...
    """
    try:
        write_private(encode_snapshot(snapshot), path)
    except OSError as error:
        raise SnapshotError(f"{path}: the snapshot was not written: {error.strerror or error}") from error


def write_private(content: bytes, path: Path) -> None:
    """Write a file whole or not at all, or into the pipe or terminal that the path names.

    What root sees is for root alone: the settings of others are in it. An existing file's permissions never become wider.

    Raises:
        OSError: the folder doesn't exist, no permission, disk full, nothing that is written into ...
    """
    stream = open_stream(path)
    if stream is None:
        write_whole(path, content, _mode(path))
        return
    with os.fdopen(stream, "wb") as file:
        file.write(content)


def _mode(path: Path) -> int:
    mask = os.umask(0)
    os.umask(mask)
    mode = 0o600 if os.geteuid() == ROOT else 0o666 & ~mask
    with contextlib.suppress(FileNotFoundError):
        before = path.lstat().st_mode
        mode &= before if stat.S_ISREG(before) else mode
    return mode
