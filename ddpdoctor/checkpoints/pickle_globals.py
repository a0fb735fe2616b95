"""The classes and functions that pickles name: which are torch's own, which weights_only allows, what the others are.

Source of the tables: torch 2.13, torch/_weights_only_unpickler.py. An earlier torch allows fewer. Pure.
"""

from __future__ import annotations

from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from sys import stdlib_module_names
from typing import TYPE_CHECKING

from ddpdoctor.checkpoints.global_meanings import BURIED, BURIED_LAST, MEANINGS, PACKAGES

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.machine import Program

_TENSORS = ("Float", "Double", "Half", "BFloat16", "Int", "Long", "Short", "Char", "Byte")
_STORAGES = (*_TENSORS, "Bool", "ComplexDouble", "ComplexFloat")
_QUANTIZED = ("QInt32", "QInt8", "QUInt2x4", "QUInt4x2", "QUInt8")
_DTYPES = (
    *("bfloat16", "bits16", "bits1x8", "bits2x4", "bits4x2", "bits8", "bool", "complex128", "complex32", "complex64"),
    *("float16", "float32", "float4_e2m1fn_x2", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"),
    *("float8_e5m2fnuz", "float8_e8m0fnu", "qint32", "qint8", "quint2x4", "quint4x2", "quint8"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)),
)
_SCHEMES = (
    "per_channel_affine",
    "per_channel_affine_float_qparams",
    "per_channel_symmetric",
    "per_tensor_affine",
    "per_tensor_symmetric",
)
_REBUILDERS = (
    "_rebuild_device_tensor_from_cpu_tensor",
    "_rebuild_device_tensor_from_numpy",
    "_rebuild_meta_tensor_no_storage",
    "_rebuild_nested_tensor",
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_qtensor",
    "_rebuild_sparse_tensor",
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_tensor_v3",
    "_rebuild_wrapper_subclass",
)
_PLAIN = (
    "_codecs.encode",
    "builtins.bytearray",
    "builtins.complex",
    "builtins.set",
    "collections.Counter",
    "collections.OrderedDict",
    "torch.Size",
    "torch.Tensor",
    "torch._tensor._rebuild_from_type_v2",
    "torch.device",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.storage.TypedStorage",
    "torch.storage.UntypedStorage",
)
_ADDED_ON_IMPORT = (
    "torch.distributed._mesh_layout._FlatLayout",
    "torch.distributed._mesh_layout._MeshLayout",
    "torch.nested._internal.nested_tensor.NestedTensor",
    "torch.nested._internal.nested_tensor._rebuild_njt",
)

ALLOWED = frozenset(
    (
        *_PLAIN,
        *_ADDED_ON_IMPORT,
        *(f"torch.{name}" for name in (*_DTYPES, *_SCHEMES)),
        *(f"torch._utils.{name}" for name in _REBUILDERS),
        *(f"torch.{name}Storage" for name in (*_STORAGES, *_QUANTIZED)),
        *(f"torch.cuda.{name}Storage" for name in _STORAGES),
        *(f"{module}.{name}Tensor" for module in ("torch", "torch.cuda") for name in (*_TENSORS, "Bool")),
        *(f"{module}.{name}Tensor" for module in ("torch.sparse", "torch.cuda.sparse") for name in _TENSORS),
    )
)
"""What torch.load(weights_only=True) accepts after `import torch` and nothing else (_get_allowed_globals)."""

NEEDS_IMPORT = {
    "torch._dynamo.decorators._DimRange": "torch._dynamo",
    "torch.distributed._serialization._Entry": "torch.distributed._serialization",
    "torch.distributed.device_mesh.DeviceMesh": "torch.distributed.tensor",
    "torch.distributed.tensor.DTensor": "torch.distributed.tensor",
    "torch.distributed.tensor._dtensor_spec.DTensorSpec": "torch.distributed.tensor",
    "torch.distributed.tensor._dtensor_spec.ShardOrderEntry": "torch.distributed.tensor",
    "torch.distributed.tensor._dtensor_spec.TensorMeta": "torch.distributed.tensor",
    "torch.distributed.tensor.placement_types.Partial": "torch.distributed.tensor",
    "torch.distributed.tensor.placement_types.Replicate": "torch.distributed.tensor",
    "torch.distributed.tensor.placement_types.Shard": "torch.distributed.tensor",
    "torch.distributed.tensor.placement_types._StridedShard": "torch.distributed.tensor",
}
"""Accepted too, once the module named has been imported."""

NEVER_ALLOWED = frozenset({"sys", "os", "posix", "nt"})
"""Modules of which nothing is accepted, not even after add_safe_globals (_blocklisted_modules)."""

_TORCHSCRIPT = tuple(
    f"torch.jit._pickle.{name}"
    for name in (
        "build_boollist",
        "build_doublelist",
        "build_intlist",
        "build_tensor_from_id",
        "build_tensorlist",
        "restore_type_tag",
    )
)
_PYTHON_2 = ("__builtin__.bytearray", "__builtin__.complex", "__builtin__.set")

OWN = ALLOWED | frozenset((*NEEDS_IMPORT, *_TORCHSCRIPT, *_PYTHON_2))
"""What checkpoints are made of. These make tensors and containers: none of them runs, opens or imports anything by itself."""

_RENAMED_MODULES = {
    "StringIO": "io",
    "UserDict": "collections",
    "UserList": "collections",
    "UserString": "collections",
    "__builtin__": "builtins",
    "_abcoll": "collections.abc",
    "cStringIO": "io",
    "copy_reg": "copyreg",
    "Queue": "queue",
    "repr": "reprlib",
    "whichdb": "dbm",
}
_RENAMED = {
    ("UserDict", "IterableUserDict"): ("collections", "UserDict"),
    ("UserDict", "UserDict"): ("collections", "UserDict"),
    ("UserList", "UserList"): ("collections", "UserList"),
    ("UserString", "UserString"): ("collections", "UserString"),
    ("__builtin__", "basestring"): ("builtins", "str"),
    ("__builtin__", "intern"): ("sys", "intern"),
    ("__builtin__", "long"): ("builtins", "int"),
    ("__builtin__", "reduce"): ("functools", "reduce"),
    ("__builtin__", "unichr"): ("builtins", "chr"),
    ("__builtin__", "unicode"): ("builtins", "str"),
    ("__builtin__", "xrange"): ("builtins", "range"),
    ("exceptions", "StandardError"): ("builtins", "Exception"),
    ("itertools", "ifilter"): ("builtins", "filter"),
    ("itertools", "ifilterfalse"): ("itertools", "filterfalse"),
    ("itertools", "imap"): ("builtins", "map"),
    ("itertools", "izip"): ("builtins", "zip"),
    ("itertools", "izip_longest"): ("itertools", "zip_longest"),
}
"""Python 2's names as torch's unpickler translates them (torch/_utils.py: IMPORT_MAPPING, NAME_MAPPING)."""

_KNOWN_OPCODES = frozenset({"EMPTY_SET", "SHORT_BINSTRING"})
"""Of the opcodes that plain protocol 2 doesn't have, those that the weights_only unpickler knows nevertheless."""


def weights_only_blockers(program: Program) -> tuple[str, ...]:
    """Where torch.load(weights_only=True) of torch 2.13 would stop: globals by name, then "the opcode MEMOIZE" ..."""
    named = [translated(global_.module, global_.name) for global_ in program.globals.values()]
    blocking = dict.fromkeys(name for name in named if name not in ALLOWED)
    opcodes = sorted(program.opcodes - _KNOWN_OPCODES)
    return (*blocking, *(f"the opcode {name}" for name in opcodes))


def translated(module: str, name: str) -> str:
    """The full name under which torch's unpickler looks a global up."""
    module, name = _RENAMED.get((module, name)) or (_RENAMED_MODULES.get(module, module), name)
    return f"{module}.{name}"


def meaning(name: str) -> tuple[str, bool]:
    """What a class or function is, by its full name, in a few words, and whether it is known to be dangerous.

    Dangerous: it runs commands or code, or reaches files or the network. False says nothing: a class of anybody's
    package can do all of that. Names that Python 2 used are judged by what Python 3 makes of them, too: below protocol 3
    it translates them while it loads.
    """
    text, dangerous = _meaning(name)
    if not dangerous and (now := _in_python_3(name)) != name:
        return _meaning(now)
    return text, dangerous


def is_dangerous(name: str) -> bool:
    """Whether whoever loads a file that names it may run what the file's author wants."""
    return name not in OWN and meaning(name)[1]


def _in_python_3(name: str) -> str:
    module, _, last = name.rpartition(".")
    module, last = NAME_MAPPING.get((module, last)) or (IMPORT_MAPPING.get(module, module), last)
    return f"{module}.{last}"


def _meaning(name: str) -> tuple[str, bool]:
    parts = name.split(".")
    known = None if _of_a_namesake(parts) else _known(parts)
    if known and known[1]:
        return known
    for part in (
        *(part for part in parts[1:] if part in BURIED),
        *(part for part in parts[-1:] if part in BURIED_LAST),
    ):
        return f"reaches {part} by way of another module", True
    if known:
        return known
    if parts[0] == "__torch__":
        return "a class of the TorchScript code in the file itself", False
    if parts[0] in stdlib_module_names and not _of_a_namesake(parts):
        return f"part of Python's standard library ({parts[0]})", False
    return f"from the package {parts[0]}, which we don't know", False


def _known(parts: list[str]) -> tuple[str, bool] | None:
    """What the tables say of the longest part of the name that stands in them."""
    starts = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((MEANINGS[start] for start in starts if start in MEANINGS), None)


def _of_a_namesake(parts: list[str]) -> bool:
    """Whether it is of somebody's own package that is called as one of Python's modules: code.model.Net, trace.models.Net.

    Of code itself there may be a class's method, code.InteractiveConsole.push, or another module that it imports.
    """
    first, *rest = parts
    if first == "sh" and rest:
        # The package makes a command of any name; none begins with a capital, but its own class Command.
        return rest[0] != "Command" and rest[-1][:1].isupper()
    if len(rest) < 2 or first not in stdlib_module_names or first in PACKAGES:
        return False
    return rest[0].islower() and not rest[0].startswith("_") and rest[0] not in stdlib_module_names
