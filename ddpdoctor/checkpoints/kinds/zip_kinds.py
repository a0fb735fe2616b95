"""Which of the many things that are zip archives a file is.

A light look of its own: formats/zip_records reads every entry and refuses what doesn't add up, which takes its time for a
checkpoint of a hundred thousand records, and here encrypted, truncated and foreign archives are to be named, not refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.checkpoints.kinds.recognised import FileHead, Recognised, mode_of, printable
from ddpdoctor.facts.remedies import remedy

_LOCAL = Struct("<4s2xHHHHLLLHH")
_ENTRY = Struct("<4s4xHHHHLLLHHHHHLL")
_END = Struct("<4sHHHHLLH")
_LOCATOR = Struct("<4sLQL")
_END64 = Struct("<4sQHHLLQQQQ")
_TORCHS = re.compile(rb"[^/]+/(data\.pkl|data/\d+|constants\.pkl|version|byteorder|\.format_version)\Z")
"""Names of records with which torch begins an archive."""
_LARGEST_TAIL = _END.size + 0xFFFF
_LONGEST_PICKLE = 1 << 24
_PER_RECORD = 200
"""Bytes that a storage's headers and its alignment cost, about."""
_LARGEST_DIRECTORY = 1 << 28

ZIP = Recognised(kind="zip", called="a PyTorch checkpoint (zip)")
TORCHSCRIPT = Recognised(kind="torchscript", called="a TorchScript file")


def recognise_zip(glance: FileHead) -> Recognised | None:
    """None if the file doesn't begin as a zip archive. torch looks at no more than the first four bytes either."""
    if glance.head.startswith((b"PK\5\6", b"PK\7\x08")):
        return _empty_or_split(glance)
    if not glance.head.startswith(b"PK\3\4"):
        return None
    end = _find_directory(glance)
    if end is None:
        return _truncated(glance)
    offset, size, position = end
    if _is_shard(glance, offset + size, position):
        return _shard(glance)
    directory = glance.read(offset, min(size, _LARGEST_DIRECTORY))
    if _holds(directory, b"data.pkl"):
        # What torch.load itself goes by.
        return TORCHSCRIPT if _holds(directory, b"constants.pkl") else ZIP
    return _foreign(glance, _entries(directory))


def _holds(directory: bytes, name: bytes) -> bool:
    """Whether a record of that name lies in the first folder. Fast, since a directory may list a hundred thousand."""
    at = directory.find(b"/" + name)
    while at >= 0:
        start = directory.rfind(b"PK\1\2", 0, at) + _ENTRY.size
        length = int.from_bytes(directory[start - 18 : start - 16], "little")
        if b"/" not in directory[start:at] and start + length == at + 1 + len(name):
            return True
        at = directory.find(b"/" + name, at + 1)
    return False


def _find_directory(glance: FileHead) -> tuple[int, int, int] | None:
    """The directory's offset and size, and where its end record begins; None without an end record."""
    start = max(0, glance.size - _LARGEST_TAIL)
    tail = glance.read(start, _LARGEST_TAIL)
    at = tail.rfind(b"PK\5\6", 0, len(tail) - _END.size + 4)
    if at < 0:
        return None
    size, offset = _END.unpack_from(tail, at)[5:7]
    position = start + at
    before = position - _END64.size - _LOCATOR.size
    ends64 = glance.read(before, _END64.size + _LOCATOR.size) if before >= 0 else b""
    if ends64.startswith(b"PK\6\6") and ends64.startswith(b"PK\6\7", _END64.size):
        # torch always writes these, too. Where they stand is looked at, not where they say that they stand: in a file of
        # several archives that is counted from the last one's beginning.
        size, offset = _END64.unpack_from(ends64)[8:]
        position = before
    elif 0xFFFFFFFF in (size, offset):
        return None
    return offset, size, position


def _first_name(glance: FileHead) -> bytes:
    if len(glance.head) < _LOCAL.size:
        return b""
    length = _LOCAL.unpack_from(glance.head)[8]
    return glance.head[_LOCAL.size : _LOCAL.size + length]


def _truncated(glance: FileHead) -> Recognised:
    torchs = _TORCHS.match(_first_name(glance)) is not None
    total = _expected(glance) if torchs else 0
    zeros = not glance.read(max(0, glance.size - 4096), 4096).strip(b"\0")
    there = (
        f"{glance.size:,} bytes ({human(glance.size)})"
        + (f" of about {human(total)}" if total > glance.size else "")
        + " are there"
    )
    return Recognised(
        kind="zip" if torchs else "zip-archive",
        called="a PyTorch checkpoint (zip)" if torchs else "a zip archive",
        damaged=True,
        problem=(
            f"Its end is nothing but zero bytes: {there}, but not all were filled"
            if zeros
            else f"Truncated: {there}, and the zip archive's directory, which would be at the end, is not"
        )
        + (_whole_storages(glance) if torchs else ""),
        advice="Copy or download it again; if a job was killed or its disk ran full while it saved, use the checkpoint before it",
    )


def _whole_storages(glance: FileHead) -> str:
    """What can be said of the storages before the place where it was cut off."""
    from ddpdoctor.checkpoints.errors import CheckpointError
    from ddpdoctor.checkpoints.formats.reading import ByteSource
    from ddpdoctor.checkpoints.formats.zip_survivors import survivors

    try:
        with ByteSource(glance.path) as source:
            return f"; {survivors(source)}"
    except CheckpointError:
        return ""


def _expected(glance: FileHead) -> int:
    """About how long the whole file was to be, by its data.pkl, which torch.save writes first; 0 if that isn't to be had."""
    if not _first_name(glance).endswith(b"/data.pkl"):
        return 0
    from ddpdoctor.checkpoints.errors import CheckpointError
    from ddpdoctor.checkpoints.pickles.machine import scan
    from ddpdoctor.checkpoints.pickles.tensors import element_size

    start = _LOCAL.size + sum(_LOCAL.unpack_from(glance.head)[8:10])
    try:
        program = scan(glance.read(start, _LONGEST_PICKLE))
    except CheckpointError:
        return 0
    sizes = {storage.key: storage.count * element_size(storage) for storage in program.storages}
    return int(start + program.end + sum(sizes.values()) + _PER_RECORD * len(sizes))


def _empty_or_split(glance: FileHead) -> Recognised:
    if glance.head.startswith(b"PK\5\6"):
        return Recognised(
            kind="zip-archive",
            called="an empty zip archive",
            problem="A zip archive with nothing in it, not a checkpoint",
        )
    return Recognised(
        kind="zip-archive",
        called="the first part of a split zip archive",
        problem="One part of a zip archive that was split into several, not a checkpoint",
        advice="Put the parts together with zip, naming the part that ends in .zip, and unpack the result",
    )


def _is_shard(glance: FileHead, directory_end: int, position: int) -> bool:
    """Several archives, one behind the other: offsets count from where the last one begins."""
    return glance.path.name.endswith(".distcp") or (
        directory_end < position and mode_of(glance.path.with_name(".metadata")) != 0
    )


def _shard(glance: FileHead) -> Recognised:
    return Recognised(
        kind="dcp-shard",
        called="one rank's file of a distributed checkpoint (DCP)",
        problem="One rank's file of a distributed checkpoint, not to be read without the others in its folder",
        advice="Load the folder with torch.distributed.checkpoint.load, or convert it to one file for torch.load",
        remedies=(remedy("convert-dcp", glance.path.parent, "converted.pt"),),
    )


def _entries(directory: bytes) -> list[tuple[str, int, int]]:
    """Name, flags and size of each record, as far as the directory can be read."""
    found = []
    at = 0
    while at + _ENTRY.size <= len(directory) and directory.startswith(b"PK\1\2", at):
        fields = _ENTRY.unpack_from(directory, at)
        name_length, extra_length, comment_length = fields[8:11]
        name = directory[at + _ENTRY.size : at + _ENTRY.size + name_length].decode("utf-8", "replace")
        found.append((name, fields[1], fields[7]))
        at += _ENTRY.size + name_length + extra_length + comment_length
    return found


def _foreign(glance: FileHead, entries: list[tuple[str, int, int]]) -> Recognised:
    """An archive without torch.save's data.pkl in its first folder."""
    names = [name for name, _, _ in entries]
    inner = {name.partition("/")[2] for name in names}
    if any(flags & 1 for _, flags, _ in entries):
        return Recognised(
            kind="encrypted",
            called="an encrypted zip archive",
            problem="An encrypted zip archive: what is in it can't be read without the password",
            advice="Unpack it with the password, then name the checkpoint in it",
            remedies=(remedy("unzip", glance.path),),
        )
    if "serialized_exported_program.json" in names or {"archive_format", "models/model.json"} & inner:
        return Recognised(
            kind="torch-export",
            called="a program saved by torch.export (.pt2)",
            problem="A program saved by torch.export, not a checkpoint: its devices are part of the exported graph",
            advice="Load it with torch.export.load and move it with torch.export.passes.move_to_device_pass, or export it again",
        )
    if ".data/extern_modules" in inner:
        return Recognised(
            kind="torch-package",
            called="a torch.package archive",
            problem="A torch.package archive, which holds code beside tensors, not a checkpoint",
            advice="Load it with torch.package.PackageImporter(file).load_pickle(..., map_location='cpu') and torch.save the state dict",
        )
    if names and all(name.endswith(".npy") for name in names):
        arrays = listed((printable(name.removesuffix(".npy"), 40) for name in names), 4)
        return Recognised(
            kind="numpy",
            called="a NumPy archive (.npz)",
            problem=f"{plural(len(names), 'NumPy array')} ({arrays}), not a checkpoint of torch",
            advice="Load it with numpy.load; NumPy's arrays hold no device",
        )
    if "model.weights.h5" in names:
        return Recognised(
            kind="keras",
            called="a Keras model (.keras)",
            problem="A Keras model, not a checkpoint of torch",
            advice="Load it with keras.saving.load_model",
        )
    if "[Content_Types].xml" in names:
        return Recognised(
            kind="office-document",
            called="an Office document",
            problem="An Office document (a zip of XML files), not a checkpoint",
        )
    return _plain_zip(entries, glance.path)


_CHECKPOINT_NAMES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".pth.tar", "/data.pkl", "data.pkl")


def _plain_zip(entries: list[tuple[str, int, int]], path: Path) -> Recognised:
    files = [name for name, _, _ in entries if not name.endswith("/")]
    inside = [name for name in files if name.endswith(_CHECKPOINT_NAMES)]
    unpacked = [name for name in inside if name.endswith("data.pkl")]
    if unpacked:
        return Recognised(
            kind="zip-archive",
            called="a zip archive",
            problem=f"A checkpoint that was unpacked and zipped again, so that {printable(unpacked[0])} is not where torch looks for it",
            advice="Take the original if there still is one; else zip anew, without compression, so that data.pkl lies in one top folder",
        )
    shown = listed(map(printable, inside or files), 4)
    return Recognised(
        kind="zip-archive",
        called="a zip archive",
        problem=f"A zip archive of {plural(len(files), 'file')} ({shown}), not a checkpoint itself",
        advice="Unpack it and name the checkpoint in it" if inside else "",
        remedies=(remedy("unzip", path),) if inside else (),
    )
