"""Checkpoints that torch itself writes, with pins to devices that this machine needn't have, and torch's word on them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

Tag = Callable[[Any], str]
"""From a storage to the location that the file is to say it had."""


def on(device: str) -> Tag:
    """Everything on one device. The tag is a new string each time, as torch makes it for GPUs."""
    return lambda storage: "".join(list(device))


def constant(device: str) -> Tag:
    """The same string each time, as torch has it for cpu and mps: pickle writes it once."""
    return lambda storage: device


def by_size(*devices: str) -> Tag:
    """Several devices: which one, a storage's size says."""
    return lambda storage: "".join(list(devices[storage.nbytes() % 7 % len(devices)]))


@contextmanager
def tagged(tag: Tag) -> Iterator[None]:
    """Whatever is saved meanwhile was on these devices."""
    with mock.patch.object(torch.serialization, "location_tag", tag):
        yield


def save(value: Any, path: Path, tag: Tag | None = None, *, legacy: bool = False, protocol: int = 2) -> Path:
    """Saves with torch; legacy: in the layout before 1.6."""
    with tagged(tag or torch.serialization.location_tag):
        torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    return path


def saved(value: Any, tag: Tag | None = None, *, legacy: bool = False, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    with tagged(tag or torch.serialization.location_tag):
        torch.save(value, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def pins(path: Path) -> dict[str, int]:
    """How many storages torch would restore on each device: its own reading, asked for each storage and told cpu."""
    found: dict[str, int] = {}

    def where(storage: Any, location: str) -> Any:
        found[location] = found.get(location, 0) + 1
        return storage

    torch.load(path, map_location=where, weights_only=False)
    return found


def pickle_of(path: Path) -> bytes:
    """data.pkl of a zip checkpoint, read by Python's zipfile."""
    with zipfile.ZipFile(path) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        return archive.read(name)


def assert_same(one: Any, other: Any) -> None:
    """Both are alike to the last bit: values, types, strides, what shares memory with what, attributes."""
    assert _form(one) == _form(other)


def _form(value: Any) -> Any:
    """A comparable form. What is met again, be it an object or a tensor's memory, is named by when it was first met."""
    numbers: dict[int, int] = {}
    memories: dict[int, int] = {}
    alive: list[Any] = []

    def memory(tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        alive.append(storage)
        return memories.setdefault(storage.data_ptr(), len(memories)) if storage.nbytes() else -1

    def dense(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        on_cpu = storage.device.type == "cpu"
        held = torch.tensor([], dtype=torch.uint8).set_(storage).numpy().tobytes() if on_cpu else str(storage.device)
        return (memory(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), held)

    def tensor_form(tensor: torch.Tensor) -> Any:
        about = (type(tensor).__name__, str(tensor.dtype), str(tensor.device), tensor.requires_grad, str(tensor.layout))
        attributes = form({**tensor.__dict__}) if tensor.__dict__ else None
        if type(tensor).__name__ == "DTensor":
            local, spec = tensor._local_tensor, tensor._spec  # type: ignore[attr-defined]
            return (about, tensor_form(local), str(spec.placements), str(spec.mesh), tuple(tensor.shape))
        if tensor.layout is torch.sparse_coo:
            parts = (tensor._indices(), tensor._values())
            return (about, attributes, tensor.is_coalesced(), tuple(tensor.shape), *map(dense, parts))
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
            return (about, attributes, tuple(tensor.shape), *map(dense, parts))
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
            return (about, attributes, tuple(tensor.shape), *map(dense, parts))
        if tensor.is_nested:
            return (about, [tensor_form(part) for part in tensor.unbind()])
        if tensor.is_meta:
            return (about, attributes, tuple(tensor.shape), tensor.stride())
        scheme = (str(tensor.qscheme()), tensor.int_repr().tolist()) if tensor.is_quantized else ()
        return (about, attributes, tensor.is_conj(), tensor.is_neg(), scheme, dense(tensor))

    def form(one: Any) -> Any:
        kind = type(one)
        if isinstance(one, (str, bytes, int, bool, type(None), torch.dtype, torch.device, torch.Size)):
            return (kind.__name__, one)
        if isinstance(one, (float, complex)):
            return (kind.__name__, repr(one))
        if isinstance(one, type) or (callable(one) and hasattr(one, "__qualname__")):
            return ("class", one.__module__, one.__qualname__)
        if kind is tuple:
            return ("tuple", *map(form, one))
        if kind in (set, frozenset):
            return (kind.__name__, *sorted(repr(form(item)) for item in one))
        if id(one) in numbers:
            return ("again", numbers[id(one)])
        numbers[id(one)] = len(numbers)
        alive.append(one)
        if isinstance(one, torch.Tensor):
            return tensor_form(one)
        parts: list[Any] = [kind.__name__]
        if isinstance(one, dict):
            parts += [(form(key), form(item)) for key, item in one.items()]
        elif isinstance(one, (list, tuple)):
            parts += map(form, one)
        elif isinstance(one, (torch.UntypedStorage, torch.storage.TypedStorage)):
            parts += one.tolist()
        elif not hasattr(one, "__dict__"):
            parts.append(repr(one))
        if getattr(one, "__dict__", None):
            parts.append(form(vars(one)))
        return tuple(parts)

    return form(value)
