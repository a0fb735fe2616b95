"""Recognising which of the many things that are zip archives a file is.

A light look: read_directory() reads every entry and refuses what doesn't add up, which takes its time for a checkpoint of a
hundred thousand records, and here encrypted, truncated and foreign archives are to be named, not refused.
"""

from __future__ import annotations

import re
from contextlib import suppress

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.checkpoints.formats.zip_directory import (
    END_SIGNATURE,
    ENTRY,
    ENTRY_SIGNATURE,
    LOCAL,
    LOCAL_SIGNATURE,
    SPLIT_SIGNATURE,
    find_directory,
    names_and_flags,
)
from ddpdoctor.checkpoints.kinds.file_head import FileHead, Recognised, mode_of, printable, recognised
from ddpdoctor.facts.remedies import remedy

_TORCHS_NAME = re.compile(rb"[^/]+/(data\.pkl|data/\d+|constants\.pkl|version|byteorder|\.format_version)\Z")
"""Names of records with which torch begins an archive."""
_MAX_PICKLE_BYTES = 1 << 24
_RECORD_BYTES = 200
"""What a storage's headers and its alignment cost, about."""
_MAX_DIRECTORY_BYTES = 1 << 28

ZIP = Recognised(kind="zip", called="a PyTorch checkpoint (zip)")
TORCHSCRIPT = Recognised(kind="torchscript", called="a TorchScript file")


def recognise_zip(glance: FileHead) -> Recognised | None:
    """Recognise a zip archive; None if the file doesn't begin as one. torch looks at no more than four bytes either."""
    if glance.head.startswith(END_SIGNATURE):
        return recognised("zip-archive/empty")
    if glance.head.startswith(SPLIT_SIGNATURE):
        return recognised("zip-archive/split")
    if not glance.head.startswith(LOCAL_SIGNATURE):
        return None
    place = find_directory(glance.read, glance.size)
    if place is None:
        return _truncated(glance)
    # Of several archives, one behind the other, offsets count from where the last one begins.
    is_joined = place.offset + place.size < place.position and mode_of(glance.path.with_name(".metadata")) != 0
    if is_joined or glance.path.name.endswith(".distcp"):
        return recognised("dcp-shard", remedy("convert-dcp", glance.path.parent, "converted.pt"))
    directory = glance.read(place.offset, min(place.size, _MAX_DIRECTORY_BYTES))
    if _holds(directory, b"data.pkl"):
        # What torch.load itself goes by.
        return TORCHSCRIPT if _holds(directory, b"constants.pkl") else ZIP
    return _foreign(glance, names_and_flags(directory))


def _holds(directory: bytes, name: bytes) -> bool:
    """Whether a record of that name lies in the first folder. Fast, since a directory may list a hundred thousand."""
    at = directory.find(b"/" + name)
    while at >= 0:
        start = directory.rfind(ENTRY_SIGNATURE, 0, at) + ENTRY.size
        length = int.from_bytes(directory[start - 18 : start - 16], "little")
        if b"/" not in directory[start:at] and start + length == at + 1 + len(name):
            return True
        at = directory.find(b"/" + name, at + 1)
    return False


def _first_name(glance: FileHead) -> bytes:
    if len(glance.head) < LOCAL.size:
        return b""
    length = LOCAL.unpack_from(glance.head)[9]
    return glance.head[LOCAL.size : LOCAL.size + length]


def _truncated(glance: FileHead) -> Recognised:
    is_torchs = _TORCHS_NAME.match(_first_name(glance)) is not None
    total = _expected_size(glance) if is_torchs else 0
    of_total = f" of about {human(total)}" if total > glance.size else ""
    there = f"{glance.size:,} bytes ({human(glance.size)}){of_total} are there"
    whole = ""
    if is_torchs:
        from ddpdoctor.checkpoints.errors import CheckpointError
        from ddpdoctor.checkpoints.formats.byte_source import ByteSource
        from ddpdoctor.checkpoints.formats.zip_survivors import survivors

        with suppress(CheckpointError), ByteSource(glance.path) as source:
            whole = f"; {survivors(source)}"
    if not glance.read(max(0, glance.size - 4096), 4096).strip(b"\0"):
        problem = f"Its end is nothing but zero bytes: {there}, but not all were filled{whole}"
    else:
        problem = f"Truncated: {there}, and the zip archive's directory, which would be at the end, is not{whole}"
    return recognised("zip/truncated" if is_torchs else "zip-archive/truncated", problem=problem)


def _expected_size(glance: FileHead) -> int:
    """About how long the whole file was to be, by its data.pkl, which torch.save writes first; 0 if that isn't to be had."""
    if not _first_name(glance).endswith(b"/data.pkl"):
        return 0
    from ddpdoctor.checkpoints.errors import CheckpointError
    from ddpdoctor.checkpoints.pickles.machine import scan
    from ddpdoctor.checkpoints.pickles.tensors import element_size

    start = LOCAL.size + sum(LOCAL.unpack_from(glance.head)[9:])
    try:
        program = scan(glance.read(start, _MAX_PICKLE_BYTES))
    except CheckpointError:
        return 0
    sizes = {storage.key: storage.count * element_size(storage) for storage in program.storages}
    return int(start + program.end + sum(sizes.values()) + _RECORD_BYTES * len(sizes))


_CHECKPOINT_NAMES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".pth.tar", "data.pkl")


def _foreign(glance: FileHead, entries: list[tuple[str, int]]) -> Recognised:
    """An archive without torch.save's data.pkl in its first folder."""
    names = [name for name, _ in entries]
    inner = {name.partition("/")[2] for name in names}
    unpack = remedy("unzip", glance.path)
    if any(flags & 1 for _, flags in entries):
        return recognised("encrypted/zip", unpack)
    if "serialized_exported_program.json" in names or {"archive_format", "models/model.json"} & inner:
        return recognised("torch-export")
    if ".data/extern_modules" in inner:
        return recognised("torch-package")
    if names and all(name.endswith(".npy") for name in names):
        arrays = listed((printable(name.removesuffix(".npy"), 40) for name in names), 4)
        return recognised("numpy/archive", count=plural(len(names), "NumPy array"), names=arrays)
    if "model.weights.h5" in names:
        return recognised("keras")
    if "[Content_Types].xml" in names:
        return recognised("office-document")
    files = [name for name in names if not name.endswith("/")]
    inside = [name for name in files if name.endswith(_CHECKPOINT_NAMES)]
    if unpacked := [name for name in inside if name.endswith("data.pkl")]:
        return recognised("zip-archive/rezipped", name=printable(unpacked[0]))
    words = {"count": plural(len(files), "file"), "names": listed(map(printable, inside or files), 4)}
    return recognised("zip-archive/checkpoint", unpack, **words) if inside else recognised("zip-archive", **words)
