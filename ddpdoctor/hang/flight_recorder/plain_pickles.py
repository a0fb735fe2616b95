"""Reads pickles that hold plain data and nothing else: no class, no function, no call, no persistent id.

The symbolic machine of the checkpoints runs the opcodes, and it imports and calls nothing; what it makes of a pickle is turned
into Python's own dicts, lists and so on here. Protocols 2 and later, which is all that torch and Python 3 write by themselves.
"""

from __future__ import annotations

from typing import Any

from ddpdoctor.base.text import masked
from ddpdoctor.checkpoints.errors import CheckpointError, OutOfData
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.checkpoints.pickles.nodes import Bytes, ContainerNode, Text, Tuple
from ddpdoctor.checkpoints.pickles.opcodes import OldProtocol

MAX_BYTES = 16 << 20
"""A flight recorder of 20,000 entries writes about 7 MiB."""
MAX_CONTAINER_OPCODES = 2_000_000
"""Opcodes of one byte that make a dict, list, tuple, mark or None: what takes most memory for its length in the file."""
MAX_DEPTH = 32
"""Levels within each other. A flight recorder's dump has six."""

_CONTAINER_OPCODES = (b"(", b")", b"]", b"}", b"N")
_KEY_TYPES = (str, int, float, bool, bytes, type(None))
"""Not tuples: to hash one that holds itself many times over takes for ever."""


class NotRead(Exception):
    """Why a file was not read, in a few words."""


def read_plain(data: bytes) -> Any:
    """Read one pickle. What it holds twice, by its memo, is one object here, too, so nothing grows beyond the file.

    Raises:
        NotRead: it is too large, damaged, no pickle, or holds more than plain data.
    """
    if len(data) > MAX_BYTES:
        raise NotRead(f"it has more than {MAX_BYTES >> 20} MiB")
    # Those bytes may stand in its texts as well, but never so many.
    if sum(map(data.count, _CONTAINER_OPCODES)) > MAX_CONTAINER_OPCODES:
        raise NotRead("it is made of far more lists and dicts than any flight recorder's")
    try:
        program = scan(data)
    except OutOfData:
        raise NotRead("it breaks off in the middle") from None
    except OldProtocol:
        raise NotRead("it is a pickle of protocol 0 or 1, which no flight recorder writes, or none at all") from None
    except CheckpointError:
        raise NotRead("it is no pickle, or one that no flight recorder writes") from None
    if program.globals:
        name = masked(next(iter(program.globals)))[:100]
        raise NotRead(f"it names {name}, which a loader would import: a flight recorder's dump holds plain data only")
    return _Conversion(data).value(program.root, 0)


class _Conversion:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.converted: dict[int, Any] = {}
        self.open_nodes: set[int] = set()

    def value(self, node: Any, depth: int) -> Any:
        if node is None or isinstance(node, (bool, int, float)):
            return node
        if isinstance(node, Text):
            return node.value
        if id(node) in self.converted:
            return self.converted[id(node)]
        if id(node) in self.open_nodes:
            raise NotRead("it holds something that holds itself")
        if depth == MAX_DEPTH:
            raise NotRead(f"it is nested more than {MAX_DEPTH} levels deep")
        self.open_nodes.add(id(node))
        value = self.converted[id(node)] = self._container(node, depth + 1)
        self.open_nodes.discard(id(node))
        return value

    def _container(self, node: Any, depth: int) -> Any:
        if isinstance(node, Bytes):
            return self.data[node.start : node.start + node.length]
        if isinstance(node, Tuple):
            return tuple(self.value(item, depth) for item in node.items)
        if isinstance(node, ContainerNode) and node.kind == "list" and not node.pairs:
            return [self.value(item, depth) for item in node.items]
        if isinstance(node, ContainerNode) and node.kind == "dict" and not node.items:
            return {self._key(pair.key, depth): self.value(pair.value, depth) for pair in node.pairs}
        raise NotRead("it holds more than dicts, lists, tuples, texts and numbers")

    def _key(self, node: Any, depth: int) -> Any:
        key = self.value(node, depth)
        if not isinstance(key, _KEY_TYPES):
            raise NotRead("it has a dict whose keys are neither texts nor numbers")
        return key
