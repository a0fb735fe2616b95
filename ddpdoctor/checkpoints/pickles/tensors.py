"""The tensors in the tree of nodes: which nodes are tensors, where they stand, what they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ddpdoctor.base.text import plural
from ddpdoctor.checkpoints.pickles.nodes import (
    Bytes,
    Call,
    ContainerNode,
    Global,
    HolderNode,
    Pair,
    Reference,
    Storage,
    Text,
    Tuple,
)

VIEWS = frozenset(
    {
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_qtensor",
    }
)
"""Functions that lay a tensor over a storage: (storage, offset, size, stride, ...)."""

TENSORS = VIEWS | {
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_sparse_csr_tensor",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch._utils._rebuild_xla_tensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._utils._rebuild_wrapper_subclass",
    "torch._tensor._rebuild_from_type",
    "torch._tensor._rebuild_from_type_v2",
}
"""Functions whose result is a tensor."""


class ElementType(NamedTuple):
    """A type of elements.

    storage: the class of its storages without "Storage", dtype: torch's name, safetensors: the name there; "" where there is
    none. size: bytes of an element. unit: bytes of what has a byte order: half a complex number.
    """

    storage: str
    dtype: str
    size: int
    safetensors: str = ""
    unit: int = 1


ELEMENT_TYPES = (
    ElementType("Double", "float64", 8, "F64", 8),
    ElementType("Float", "float32", 4, "F32", 4),
    ElementType("Half", "float16", 2, "F16", 2),
    ElementType("BFloat16", "bfloat16", 2, "BF16", 2),
    ElementType("ComplexDouble", "complex128", 16, "", 8),
    ElementType("ComplexFloat", "complex64", 8, "C64", 4),
    ElementType("Long", "int64", 8, "I64", 8),
    ElementType("Int", "int32", 4, "I32", 4),
    ElementType("Short", "int16", 2, "I16", 2),
    ElementType("Char", "int8", 1, "I8"),
    ElementType("", "uint64", 8, "U64", 8),
    ElementType("", "uint32", 4, "U32", 4),
    ElementType("", "uint16", 2, "U16", 2),
    ElementType("Byte", "uint8", 1, "U8"),
    ElementType("Bool", "bool", 1, "BOOL"),
    ElementType("", "float8_e4m3fn", 1, "F8_E4M3"),
    ElementType("", "float8_e4m3fnuz", 1, "F8_E4M3FNUZ"),
    ElementType("", "float8_e5m2", 1, "F8_E5M2"),
    ElementType("", "float8_e5m2fnuz", 1, "F8_E5M2FNUZ"),
    ElementType("", "float8_e8m0fnu", 1, "F8_E8M0"),
    ElementType("", "float4_e2m1fn_x2", 1, "F4"),
    ElementType("QUInt8", "", 1),
    ElementType("QInt8", "", 1),
    ElementType("QInt32", "", 4),
    ElementType("QUInt4x2", "", 1),
    ElementType("QUInt2x4", "", 1),
    ElementType("Untyped", "", 1),
)

STORAGE_SIZES = {f"{kind.storage}Storage": kind.size for kind in ELEMENT_TYPES if kind.storage}
"""Bytes an element, by the class of the storage."""

_DICTS = ("collections.OrderedDict", "collections.defaultdict")


def is_tensor(node: Any) -> bool:
    return isinstance(node, Call) and node.name in TENSORS


def element_size(storage: Storage) -> int:
    """Bytes of an element; 1 for a class that we don't know, whose storage then counts too little rather than too much."""
    return STORAGE_SIZES.get(storage.kind, 1)


class TensorView(NamedTuple):
    """A strided tensor: offset and stride in elements.

    dtype: "float32" from the pickle where it says so (_rebuild_tensor_v3), else the storage's class without "Storage":
    "Float".
    """

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


def view(node: Any) -> TensorView | None:
    """The strided tensor that a node is, alone or as a parameter; None for any other (sparse, quantized, nested ...)."""
    while isinstance(node, Call) and node.name.startswith("torch._utils._rebuild_parameter"):
        node = node.first_argument
    if not isinstance(node, Call) or node.name not in VIEWS or node.name.endswith("_rebuild_qtensor"):
        return None
    items = node.arguments.items if isinstance(node.arguments, Tuple) else []
    if len(items) < 4 or not isinstance(items[0], Storage) or type(items[1]) is not int:
        return None
    size, stride = _numbers(items[2]), _numbers(items[3])
    if size is None or stride is None or len(size) != len(stride):
        return None
    dtype = items[0].kind.removesuffix("Storage")
    if node.name.endswith("_v3"):
        if len(items) < 7 or not isinstance(items[6], Global):
            return None
        dtype = items[6].name
    return TensorView(items[0], items[1], size, stride, dtype)


def _numbers(node: Any) -> tuple[int, ...] | None:
    if node.__class__ is Call and node.name == "torch.Size" and isinstance(node.arguments, Tuple):
        node = node.arguments.items[0] if node.arguments.items else None
    if not isinstance(node, Tuple) or any(type(item) is not int for item in node.items):
        return None
    return tuple(node.items)


def pairs(node: Any) -> Sequence[Pair]:
    """The entries of a dict, an OrderedDict or the like; none for anything else."""
    return node.pairs if isinstance(node, HolderNode) else ()


def is_dict(node: Any) -> bool:
    """A dict, an OrderedDict or a defaultdict, empty ones, too."""
    return (isinstance(node, ContainerNode) and node.kind == "dict") or (isinstance(node, Call) and node.name in _DICTS)


def describe(node: Any) -> str:
    """Say in plain words what a node is: "a list of 3 items", "an object of the class net.Net"."""
    if is_tensor(node):
        return "a tensor"
    if is_dict(node):
        return f"a dict of {plural(len(pairs(node)), 'key')}"
    if isinstance(node, Tuple):
        return f"a tuple of {plural(len(node.items), 'item')}"
    if isinstance(node, ContainerNode):
        return f"a {node.kind} of {plural(len(node.items), 'item')}"
    if isinstance(node, Call):
        made = node.function
        if node.name == "copyreg._reconstructor" and isinstance(node.arguments, Tuple) and node.arguments.items:
            made = node.arguments.items[0]
        return f"an object of the class {made.full_name}" if isinstance(made, Global) else "an object"
    kinds = {Text: "a text", Bytes: "bytes", Global: "a class or function", Storage: "a storage", type(None): "None"}
    if isinstance(node, int) and node.bit_length() > 64:
        # Python refuses to write out integers of thousands of digits.
        return "a huge int"
    return kinds.get(type(node), f"the {type(node).__name__} {node}" if isinstance(node, (int, float)) else "an object")


def name_of(key: Any) -> str:
    """A key in words: itself, if it is text."""
    return key.value if isinstance(key, Text) else f"[{describe(key)}]"


def is_state_dict(node: Any) -> bool:
    """A dict with text keys that holds tensors, and nothing that holds others in its turn but a module's extra state."""
    return _names_tensors(node) and not any(
        _names_tensors(pair.value) for pair in pairs(node) if not is_extra_state(pair)
    )


def is_extra_state(pair: Pair) -> bool:
    """Whether an entry is what a module's get_extra_state gave, which may be anything."""
    return isinstance(pair.key, Text) and is_extra_state_name(pair.key.value)


def is_extra_state_name(name: str) -> bool:
    return name.rpartition(".")[2] == "_extra_state"


def _names_tensors(node: Any) -> bool:
    entries = pairs(node)
    return (
        bool(entries)
        and all(isinstance(pair.key, Text) for pair in entries)
        and any(is_tensor(pair.value) for pair in entries)
    )


def storages_of(node: Any) -> dict[str, int]:
    """The bytes of every storage that something is made of, by key."""
    found = {}
    visited: set[int] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Storage):
            found[node.key] = node.count * element_size(node)
        elif isinstance(node, Reference):
            waiting.append(node.identity)
        elif isinstance(node, (ContainerNode, Call, Tuple)) and id(node) not in visited:
            visited.add(id(node))
            waiting += node.items if not isinstance(node, Call) else [*node.items, node.arguments, node.state]
            for pair in pairs(node):
                waiting += (pair.key, pair.value)
    return found


_MAX_DEPTH = 100
"""Steps in the path to a node; what lies deeper is said to lie there."""


class Found(NamedTuple):
    """A node and where it stands: ("model", "conv.weight"), ("optimizer", "param_groups", "[0]", "lr")."""

    path: tuple[str, ...]
    node: Any

    @property
    def where(self) -> str:
        return ".".join(self.path).replace(".[", "[")


def walk(root: Any) -> Iterator[Found]:
    """Every node that a user would reach from the loaded object, each once, without what tensors are made of."""
    visited: set[int] = set()
    waiting = [Found((), root)]
    while waiting:
        found = waiting.pop()
        node = found.node
        if isinstance(node, (HolderNode, Tuple)):
            if id(node) in visited:
                continue
            visited.add(id(node))
        yield found
        if not is_tensor(node) and not (node.__class__ is Call and node.name == "torch.device"):
            waiting.extend(reversed(list(_children(found))))


def _children(found: Found) -> Iterator[Found]:
    path, node = found
    if isinstance(node, HolderNode):
        for pair in node.pairs:
            yield Found(_longer(path, _name(pair.key)), pair.value)
    if isinstance(node, (HolderNode, Tuple)):
        for index, item in enumerate(node.items):
            yield Found(_longer(path, f"[{index}]"), item)
    if isinstance(node, Call):
        # What an object keeps reads as its attributes; what it was called with stands at its own place.
        yield Found(path, node.state)
        yield Found(path, node.arguments)


def _longer(path: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Add a step to a path, unless it is deeper down than anyone looks: nesting costs a pickle a byte a level."""
    return (*path, name) if len(path) < _MAX_DEPTH else path


def _name(key: Any) -> str:
    if isinstance(key, Text):
        return key.value
    # Python refuses to write out integers of thousands of digits.
    short = isinstance(key, float) or (isinstance(key, int) and key.bit_length() <= 64)
    return f"[{key}]" if short else "[...]"
