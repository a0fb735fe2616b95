"""The devices to which a checkpoint is pinned, and moving its pins: what torch.load would restore on one is to be restored on another."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.machine import Program
from ddpdoctor.checkpoints.pickles.nodes import Call, Global, Text, Tuple
from ddpdoctor.checkpoints.pickles.splices import Splice, Wording
from ddpdoctor.checkpoints.pickles.tensors import pairs

DEVICE_ARGUMENTS = {
    "torch._utils._rebuild_wrapper_subclass": 6,
    "torch._utils._rebuild_device_tensor_from_numpy": 2,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": 2,
    "torch._utils._rebuild_xla_tensor": 2,
}
"""Functions that make a tensor on a device of their own, beside that of any storage, and which argument says it."""

_MESH = "torch.distributed.device_mesh.DeviceMesh"

DEVICE_TYPES = ("cuda", "xpu", "npu", "hpu", "mps", "xla", "mlu", "musa", "mtia", "maia", "hip", "privateuseone", "ipu")

_DEVICE_TEXT = re.compile(rf"(?:cpu|meta|{'|'.join(DEVICE_TYPES)})(?::\d+)?")
"""cuda, cuda:3, npu:0."""


def pinned(device: str) -> bool:
    """Whether a location ties a tensor to hardware: neither the CPU nor meta, which holds no data."""
    return device.partition(":")[0] not in ("cpu", "meta")


class DeviceArgument(NamedTuple):
    """A device that a rebuild function is given, as torch.device(...) or as a text."""

    device: str
    node: Call | Text
    position: int
    """Where this occurrence stands."""


def device_arguments(program: Program) -> Iterator[DeviceArgument]:
    """Every device that is handed to a function which makes a tensor there."""
    if DEVICE_ARGUMENTS.keys().isdisjoint(program.globals):
        return
    for call in program.calls:
        name, arguments = call.name, call.arguments
        if name == "torch._tensor._rebuild_from_type_v2" and isinstance(arguments, Tuple) and len(arguments.items) > 2:
            function, _, arguments = arguments.items[:3]
            name = function.full_name if isinstance(function, Global) else ""
        index = DEVICE_ARGUMENTS.get(name)
        if index is None or not isinstance(arguments, Tuple) or len(arguments.items) <= index:
            continue
        node = arguments.items[index]
        device = device_of(node)
        if device:
            yield DeviceArgument(device, node, arguments.starts[index])


def device_of(node: Any) -> str:
    """The device that a text or a torch.device names; "" for anything else."""
    if isinstance(node, Text):
        return node.value if _DEVICE_TEXT.fullmatch(node.value) else ""
    if isinstance(node, Call) and node.name == "torch.device" and isinstance(node.arguments, Tuple):
        kind, *index = node.arguments.items or [None]
        if isinstance(kind, Text) and not index:
            return kind.value
        if isinstance(kind, Text) and len(index) == 1 and type(index[0]) is int and 0 <= index[0] < 1 << 16:
            return f"{kind.value}:{index[0]}"
    return ""


_BININT1, _BININT2, _TUPLE = b"KMt"
_INTEGERS = {ord("K"): 2, ord("M"): 3, ord("J"): 5}
"""Bytes of the opcodes that hold a number."""


class Moves(NamedTuple):
    """The edits that move the pins.

    wordings, splices: the edits. devices: by the id of the tuple that a torch.device is called with, the device it
    is to name.
    """

    wordings: list[Wording]
    splices: list[Splice]
    devices: dict[int, str]

    def __bool__(self) -> bool:
        return bool(self.wordings or self.splices)


def moves(data: bytes, program: Program, to: str, wanted: Callable[[str], bool]) -> Moves:
    """The edits that bring everything on a device for which `wanted(device)` holds to the device `to`."""
    found = Moves([], [], {})
    for storage in program.storages:
        if storage.location.value != to and wanted(storage.location.value):
            found.wordings.append(Wording(storage.location, storage.location_start, to))
    for argument in device_arguments(program):
        if argument.device == to or not wanted(argument.device):
            continue
        if isinstance(argument.node, Text):
            found.wordings.append(Wording(argument.node, argument.position, to))
        elif id(argument.node.arguments) not in found.devices:
            _redirect(data, argument.node.arguments, to, found)
    for call in program.calls if _MESH in program.globals else ():
        if call.name == _MESH:
            for pair in pairs(call.state):
                if isinstance(pair.key, Text) and pair.key.value == "_device_type" and isinstance(pair.value, Text):
                    kind = to.partition(":")[0]
                    if pair.value.value != kind and wanted(pair.value.value):
                        found.wordings.append(Wording(pair.value, pair.value_start, kind))
    return found


def _redirect(data: bytes, arguments: Tuple, to: str, found: Moves) -> None:
    # Make torch.device("cuda", 3) torch.device("cpu"). Whatever else stands among the opcodes, a frame or a place in the
    # memo, stays.
    kind, _, index = to.partition(":")
    text, *rest = arguments.items
    if text.value != kind:
        found.wordings.append(Wording(text, arguments.starts[0], kind))
    number = b""
    if index:
        number = (
            struct.pack("<BB", _BININT1, int(index)) if int(index) < 256 else struct.pack("<BH", _BININT2, int(index))
        )
    begin = end = arguments.end
    if rest:
        begin = arguments.starts[1]
        end = begin + _INTEGERS.get(data[begin], 0)
        if begin == end:
            raise Refused(
                f"A device's number is written in a way that no pickler writes, at byte {begin:,} of the pickle"
            )
    found.splices.append(Splice(begin, end, number))
    if data[arguments.end] != _TUPLE:
        found.splices.append(Splice(arguments.end, arguments.end + 1, b"\x86" if index else b"\x85"))
    found.devices[id(arguments)] = to
