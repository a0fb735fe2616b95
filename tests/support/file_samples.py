"""Files of many kinds, as the tests of recognition need them, and what holds of every answer."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
import tarfile
from pathlib import Path

import torch

from ddpdoctor.checkpoints import named_paths
from ddpdoctor.checkpoints.kinds.file_head import Recognised

STATE = {"w": torch.arange(1000.0), "b": torch.ones(3)}


def save(path: Path, value: object = STATE, *, legacy: bool = False, protocol: int = 2) -> Path:
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    return path


def saved_bytes() -> bytes:
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    return buffer.getvalue()


def written(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def well_worded(found: Recognised) -> None:
    """What holds of every answer."""
    for text in (found.problem, found.advice):
        assert "\n" not in text
        assert not text.endswith(".") or text.endswith("..."), text
        assert text[:1] == text[:1].upper()
        assert "safe " not in text
    assert found.called
    assert not found.damaged or found.problem
    assert not found.rewritable or not found.problem


def recognise(path: Path) -> Recognised:
    """What we recognise, checked for how it is worded."""
    found = named_paths.recognise(path)
    well_worded(found)
    return found


def header(content: object, length: int | None = None, data: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def old_tar(path: Path) -> Path:
    """The layout of the first releases of torch, empty: torch itself still reads it."""
    storages = pickle.dumps(0, protocol=2) + pickle.dumps([], protocol=2)
    members = {
        "sys_info": pickle.dumps({}, protocol=2),
        "pickle": pickle.dumps({"epoch": 3}, protocol=2),
        "tensors": pickle.dumps(0, protocol=2),
        "storages": storages,
    }
    with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def onnx() -> bytes:
    """A ModelProto: ir_version 8, producer "pytorch", a graph of 300 bytes, an opset."""
    return b"\x08\x08\x12\x07pytorch\x3a\xac\x02" + b"\x0a" * 300 + b"\x42\x02\x10\x11"


def saved_model() -> bytes:
    return b"\x08\x01\x12\x05\x0a\x03\x12\x01a"


OTHERS = {
    "gguf": b"GGUF\3\0\0\0" + bytes(16),
    "ggml": b"lmgg" + bytes(40),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "onnx": onnx(),
    "tensorflow": saved_model(),
    "flax": b"\x81\xa6params\x82\xa3foo\x01",
    "program": Path(sys.executable).resolve().read_bytes()[:10_000],
}
