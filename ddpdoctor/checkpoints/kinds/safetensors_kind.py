"""safetensors files: that they are, and that they are whole. They hold no device, so there is nothing to rewrite."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from ddpdoctor.base.text import human
from ddpdoctor.checkpoints.kinds.recognised import FileHead, Recognised, printable

_LONGEST_HEADER = 100_000_000
"""Bytes; what the safetensors library allows."""


def recognise_safetensors(glance: FileHead) -> Recognised | None:
    """None if it doesn't begin with a header's length and an opening brace."""
    if len(glance.head) < 9:
        return None
    (length,) = struct.unpack_from("<Q", glance.head)
    if not 2 <= length <= _LONGEST_HEADER or glance.head[8:9] != b"{":
        return None
    problem = _problem(glance, length)
    return Recognised(
        kind="safetensors",
        called="a safetensors file",
        problem=problem,
        damaged=bool(problem),
        advice="Copy or download it again"
        if problem
        else "It holds no device, so there is nothing to fix: safetensors.torch.load_file loads to the CPU, or to the device= it is given",
    )


def _problem(glance: FileHead, length: int) -> str:
    if 8 + length > glance.size:
        return f"Truncated within its header: {human(glance.size)} are there, the header alone has {human(length)}"
    try:
        header: Any = msgspec.json.decode(glance.read(8, length))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "Corrupt: its header is not JSON"
    if not isinstance(header, dict):
        return "Corrupt: its header names no tensors"
    needed = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets: Any = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not _is_range(offsets):
            return f"Corrupt: its header does not say where the tensor {printable(name)} is"
        needed = max(needed, offsets[1])
    there = glance.size - 8 - length
    if there < needed:
        return f"Truncated: {human(needed - there)} of {human(8 + length + needed)} are missing at its end ({glance.size:,} of {8 + length + needed:,} bytes are there)"
    if there > needed:
        return f"Corrupt: {human(there - needed)} follow its last tensor, which safetensors refuses to load"
    return ""


def _is_range(offsets: Any) -> bool:
    return (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(offset) is int for offset in offsets)
        and 0 <= offsets[0] <= offsets[1]
    )
