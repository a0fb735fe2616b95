"""Random pickles, and what Python's own unpickler makes of a pickle when nothing in it is looked up or called."""

from __future__ import annotations

import copyreg
import io
import pickle
import random
from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.pickles.nodes import Bytes, Call, ContainerNode, Global, Reference, Storage, Text, Tuple


class Plain:
    """State in __dict__."""


class Slotted:
    __slots__ = ("left", "right")


class Row(list[Any]):
    """A list with a __dict__."""


class Table(dict[Any, Any]):
    """A dict with a __dict__."""


class Point(NamedTuple):
    x: Any
    y: Any


class Keyword:
    """Made by __new__ with keyword arguments: NEWOBJ_EX from protocol 4 on."""

    def __new__(cls, *, value: Any) -> Keyword:
        made = super().__new__(cls)
        made.value = value
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"value": None}


class Elsewhere:
    """Pickled by a persistent id."""

    def __init__(self, identity: Any) -> None:
        self.identity = identity


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return obj.identity if isinstance(obj, Elsewhere) else None


def dumps(value: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol).dump(value)
    return file.getvalue()


def random_value(dice: random.Random, size: int = 30) -> Any:
    """Something with about `size` parts, some of them shared, some within themselves."""
    known: list[Any] = []

    def scalar() -> Any:
        return dice.choice(_SCALARS)(dice)

    def hashable(budget: int) -> Any:
        if budget > 2 and dice.random() < 0.3:
            parts = [hashable(budget // 3) for _ in range(dice.randrange(4))]
            return dice.choice((tuple, frozenset))(parts)
        return scalar()

    def value(budget: int) -> Any:
        if known and dice.random() < 0.15:
            return dice.choice(known)
        if budget < 2 or dice.random() < 0.2:
            return scalar()
        made = dice.choice(_HOLDERS)
        share = budget // 4
        some = dice.randrange(5)
        if made is tuple:
            return tuple(value(share) for _ in range(some))
        if made in (set, frozenset):
            return made(hashable(share) for _ in range(some))
        if made is Elsewhere:
            storage = ("storage", Plain, str(dice.randrange(9)), "cuda:1", dice.randrange(999), value(share))
            return Elsewhere(dice.choice((storage, storage[:5], ("module", Plain, value(share)), "else", 7)))
        if made is Point:
            return Point(value(share), value(share))
        if made is Keyword:
            return Keyword(value=value(share))
        if made is defaultdict:
            return defaultdict(list, {hashable(1): value(share) for _ in range(some)})
        holder = made()
        known.append(holder)
        if isinstance(holder, (list, deque)):
            holder.extend(value(share) for _ in range(some))
        elif isinstance(holder, dict):
            holder.update((hashable(share), value(share)) for _ in range(some))
        if isinstance(holder, Slotted):
            holder.left, holder.right = value(share), value(share)
        elif not isinstance(holder, (deque,)) and hasattr(holder, "__dict__"):
            for _ in range(dice.randrange(3)):
                setattr(holder, dice.choice("abcdef"), value(share))
        return holder

    return value(size)


_HOLDERS: tuple[Any, ...] = (
    *(tuple, list, dict, list, dict, set, frozenset, Plain, Slotted, Row, Table, OrderedDict, deque, defaultdict),
    *(Elsewhere, Point, Keyword),
)
_SCALARS = (
    lambda dice: None,
    lambda dice: dice.random() < 0.5,
    lambda dice: dice.choice((0, 1, -1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1)),
    lambda dice: dice.getrandbits(dice.choice((8, 16, 31, 64, 2100))) * dice.choice((1, -1)),
    lambda dice: dice.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), 1e-320)),
    lambda dice: complex(dice.random(), 1),
    lambda dice: "".join(dice.choices("abcé字\U0001f600\ud800\n\x00", k=dice.randrange(6))),
    lambda dice: "weight" * dice.randrange(100),
    lambda dice: dice.choice(("cuda:0", "cpu", "storage", "module.weight")),
    lambda dice: dice.randbytes(dice.choice((0, 1, 5, 300))),
    lambda dice: dice.choice((Plain, len, OrderedDict, copyreg._reconstructor)),
)


class Stub:
    """Stands for whatever a class or function would have made."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        made = object.__new__(cls)
        made.function = cls
        made.arguments = (arguments, keywords) if keywords else arguments
        made.state = None
        made.items = []
        made.pairs = []
        return made

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> Stub:
        made: Stub = Stub(*arguments)
        made.function = self
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs.append((key, value))


class _Harmless:
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)  # type: ignore[call-arg]
        self.names: dict[str, Any] = {}
        self.identities: list[Any] = []

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self.names:
            self.names[full] = type(full, (Stub,), {})
        return self.names[full]

    def persistent_load(self, identity: Any) -> Any:
        self.identities.append(identity)
        return Elsewhere(identity)


class InC(_Harmless, pickle.Unpickler):
    """Python's fast unpickler, which torch.load uses."""


class InPython(_Harmless, pickle._Unpickler):  # type: ignore[name-defined]
    """Its counterpart in Python, whose memo can't be made to fill the memory."""


class Reading(NamedTuple):
    """What an unpickler did. names: what it looked up, in order; identities: persistent ids; end: after STOP."""

    value: Any
    names: list[str]
    identities: list[Any]
    end: int


def read(data: bytes, unpickler: type[_Harmless] = InC) -> Reading:
    file = io.BytesIO(data)
    reader = unpickler(file)
    value = reader.load()  # type: ignore[attr-defined]
    return Reading(value, list(reader.names), reader.identities, file.tell())


def canonical(value: Any, data: bytes = b"") -> Any:
    """A form of an object, or of a node of the machine, in which both can be compared: what is one and the same object
    has a number, and is a reference to that number where it comes again."""
    numbers: dict[int, int] = {}
    alive: list[Any] = []

    def again(one: Any) -> Any:
        if id(one) in numbers:
            return ("again", numbers[id(one)])
        numbers[id(one)] = len(numbers)
        alive.append(one)
        return None

    def form(one: Any) -> Any:
        kind = type(one)
        if isinstance(one, Text):
            return ("str", one.value)
        if kind is str:
            return ("str", one)
        if isinstance(one, Bytes):
            return ("bytes", data[one.start : one.start + one.length])
        if kind in (bytes, bytearray):
            return ("bytes", bytes(one))
        if one is None or kind in (bool, int, float):
            return (kind.__name__, repr(one) if kind is float else one)
        if isinstance(one, Global):
            return ("global", one.full_name)
        if isinstance(one, type):
            return ("global", one.__name__)
        if isinstance(one, Tuple):
            return ("tuple", *map(form, one.items))
        if kind is tuple:
            return ("tuple", *map(form, one))
        if isinstance(one, ContainerNode) and one.kind in ("set", "frozenset"):
            return (one.kind, *sorted({*map(_unordered, one.items)}))
        if kind in (set, frozenset):
            return (kind.__name__, *sorted({*map(_unordered, one)}))
        if (seen := again(one)) is not None:
            return seen
        if isinstance(one, ContainerNode):
            return (one.kind, [form(item) for item in one.items], [(form(p.key), form(p.value)) for p in one.pairs])
        if kind is list:
            return ("list", [form(item) for item in one], [])
        if kind is dict:
            return ("dict", [], [(form(key), form(item)) for key, item in one.items()])
        if isinstance(one, Call):
            pairs = [(form(pair.key), form(pair.value)) for pair in one.pairs]
            return ("call", form(one.function), form(one.arguments), form(one.state), list(map(form, one.items)), pairs)
        if isinstance(one, Stub):
            pairs = [(form(key), form(item)) for key, item in one.pairs]
            return ("call", form(one.function), form(one.arguments), form(one.state), list(map(form, one.items)), pairs)
        if isinstance(one, Storage):
            return ("storage", one.kind, one.key, one.location.value, one.count, form(one.view))
        if isinstance(one, Elsewhere) and _is_storage(one.identity):
            _, cls, key, location, count, *rest = one.identity
            return ("storage", cls.__name__.rpartition(".")[2], key, location, count, form(rest[0] if rest else None))
        if isinstance(one, (Reference, Elsewhere)):
            return ("elsewhere", form(one.identity))
        raise TypeError(kind)

    def _unordered(one: Any) -> str:
        return repr(canonical(one, data))

    return form(value)


def _is_storage(identity: Any) -> bool:
    if type(identity) is not tuple or len(identity) < 5 or identity[0] != "storage":
        return False
    _, cls, key, location, count, *_ = identity
    return isinstance(cls, type) and type(key) is str and type(location) is str and type(count) is int
