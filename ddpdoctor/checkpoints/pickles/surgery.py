"""Cutting a checkpoint down: dropping top-level keys, or leaving the model's tensors and nothing else.

Works on the pickle's opcodes, and unpickles nothing. Bytes in, bytes out: other edits are made to what comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.comparison import Expected, same
from ddpdoctor.checkpoints.pickles.garbage import without_collection
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.checkpoints.pickles.nodes import Bytes, Call, Container, Global, Pair, Reference, Storage, Text, Tuple
from ddpdoctor.checkpoints.pickles.spans import Spans
from ddpdoctor.checkpoints.pickles.tensors import element_size, is_state_dict, is_tensor, pairs, view
from ddpdoctor.wording import listed, plural

WELL_KNOWN = (
    "model",
    "state_dict",
    "model_state_dict",
    "model_state",
    "net",
    "network",
    "module",
    "weights",
    "params",
    "ema",
    "model_ema",
    "ema_state_dict",
)
"""What a model's state dict is called where it doesn't stand at the top, but in a dict with the rest of its model."""

_DICTS = ("collections.OrderedDict", "collections.defaultdict")


class Remainder(NamedTuple):
    """A dropped key, some of whose storages stay, because what was kept is made of them, too.

    keys: the top-level keys that were kept with them. bytes: of those storages.
    """

    name: str
    storages: int
    bytes: int
    keys: tuple[str, ...]


class Cut(NamedTuple):
    """A pickle that was cut down.

    storages: the keys of those that it still refers to. dropped: the names of what went, in the file's order.
    chosen: with params_only, where the model's state dict stood: ("model",), or () for the top level.
    """

    pickle: bytes
    storages: frozenset[str]
    dropped: tuple[str, ...]
    chosen: tuple[str, ...]
    remainders: tuple[Remainder, ...]


class Candidate(NamedTuple):
    """A dict of tensors that may be the model's: the value of `entry`, which `path` leads to."""

    path: tuple[str, ...]
    entry: Pair

    @property
    def name(self) -> str:
        """What `keep` calls it."""
        return ".".join(self.path)

    @property
    def tensors(self) -> int:
        return sum(is_tensor(pair.value) for pair in pairs(self.entry.value))


class Unclear(Refused):
    """Several dicts of tensors may be the model. choices: their names, of which `keep` takes one."""

    def __init__(self, candidates: list[Candidate]) -> None:
        names = [f"{one.name} ({plural(one.tensors, 'tensor')})" for one in candidates]
        super().__init__(
            f"It isn't clear which of these is the model: {listed(names, most=8)}",
            f"Name it, for instance --params-only --keep {candidates[0].name}",
        )
        self.choices = tuple(one.name for one in candidates)


def cut(data: bytes, keep: Collection[str] = (), drop: Collection[str] = (), *, params_only: bool = False) -> Cut:
    """The pickle in `data` with, of the dict at its top, only the keys in `keep` (if any are given) and none in `drop`.

    With `params_only`, of what is left so, the model's state dict alone; `keep` may then name one that stands further
    down: model.ema.

    Raises:
        Refused: the top isn't a dict, has no such key, nothing would be left, there is no state dict, something in it
            is no tensor, or the result would not say the same as the original.
        Unclear: several state dicts are left.
        Damaged: the pickle makes no sense.
    """
    with without_collection():
        return _cut(data, keep, drop, params_only)


def _cut(data: bytes, keep: Collection[str], drop: Collection[str], params_only: bool) -> Cut:
    program = scan(data)
    entries = pairs(program.root)
    if not entries and not is_dict(program.root):
        raise Refused(f"Its top level is {describe(program.root)}, not a dict, so there are no keys to choose from")
    names = [_name(pair.key) for pair in entries]
    deeper = {*keep}.difference(names) if params_only else set()
    named = {one.name: one for one in _candidates(entries) if one.name in deeper} if deeper else {}
    tops = [named[name].path[0] if name in named else name for name in keep]
    _check_names((*tops, *drop), names)
    leaving = [name in drop or bool(tops and name not in tops) for name in names]
    if entries and all(leaving):
        raise Refused(f"Nothing would be left of the top level, which has {listed(names, most=8)}")
    staying = [pair for pair, leaves in zip(entries, leaving, strict=True) if not leaves]
    model = _model(program.root, staying, list(named.values())) if params_only else None

    spans = Spans(data)
    if model is None:
        result = spans.emit(spans.root.start, spans.root.end, _dropped(spans, entries, leaving))
        program.root.pairs = staying
        expected = program
    else:
        result = spans.emit(spans.at(model.entry.value_start), spans.at(model.entry.end), {})
        expected = program._replace(root=model.entry.value)
    left = scan(result)
    if not same(expected, data, left, result, Expected({}, {})):
        raise Refused("What is to be kept could not be cut out without a change, so nothing was written")
    storages = frozenset(one.key for one in left.storages)
    return _summary(result, storages, entries, leaving, model.path if model else ())


def is_dict(node: Any) -> bool:
    """A dict, an OrderedDict or a defaultdict, empty ones, too."""
    return (isinstance(node, Container) and node.kind == "dict") or (isinstance(node, Call) and node.name in _DICTS)


def describe(node: Any) -> str:
    """What a node is, in plain words: "a list of 3 items", "an object of the class net.Net"."""
    if is_tensor(node):
        return "a tensor"
    if is_dict(node):
        return f"a dict of {plural(len(pairs(node)), 'key')}"
    if isinstance(node, Tuple):
        return f"a tuple of {plural(len(node.items), 'item')}"
    if isinstance(node, Container):
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


def _check_names(wanted: Collection[str], names: list[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if not missing:
        return
    inner = [name for name in missing if name.partition(".")[0] in names]
    why = f"; only whole top-level keys can be kept or dropped, and {inner[0]} isn't one" if inner else ""
    there = f"there are {listed(names, most=20)}" if names else "it is empty"
    raise Refused(f"The top level has no key {listed(missing)}: {there}{why}")


def _dropped(spans: Spans, entries: Sequence[Pair], leaving: list[bool]) -> dict[int, int]:
    """Where the opcodes of the entries that leave begin, and where the pickle goes on behind them, by number.

    Entries are set one at a time (key, value, SETITEM) or many (MARK, keys and values, SETITEMS); by Python 2 they are
    appended to a list, likewise.
    """
    dropped = {}
    batch: list[tuple[int, int, bool]] = []
    for pair, leaves in zip(entries, leaving, strict=True):
        begin, end = _entry(spans, pair)
        batch.append((begin, end, leaves))
        code = spans.code(end)
        if code not in b"suae":
            continue
        if all(one[2] for one in batch):
            dropped[begin if code in b"sa" else spans.mark_before(batch[0][0])] = end + 1
        else:
            dropped.update({begin: end for begin, end, leaves in batch if leaves})
        batch = []
    return dropped


def _entry(spans: Spans, pair: Pair) -> tuple[int, int]:
    """Where an entry's opcodes begin and end. One that Python 2 wrote is a list of two, within its brackets."""
    begin, end = spans.at(pair.key_start), spans.at(pair.end)
    if spans.code(end) == ord("e"):
        return spans.list_before(spans.mark_before(begin)), end + 1
    return begin, end


def _summary(
    result: bytes, storages: frozenset[str], entries: Sequence[Pair], leaving: list[bool], path: tuple[str, ...]
) -> Cut:
    gone: list[tuple[str, Any]] = []
    kept: list[tuple[str, Any]] = []
    for pair, leaves in zip(entries, leaving, strict=True):
        name = _name(pair.key)
        if leaves or (path and name != path[0]):
            gone.append((name, pair.value))
        elif path:
            inner, value = _beside(pair.value, path)
            gone += inner
            kept.append((".".join(path), value))
        else:
            kept.append((name, pair.value))
    return Cut(result, storages, tuple(name for name, _ in gone), path, tuple(_remainders(gone, kept, storages)))


def _beside(node: Any, path: tuple[str, ...]) -> tuple[list[tuple[str, Any]], Any]:
    """What stands beside the path from path[0] to its end, by dotted name, and what stands at its end."""
    beside = []
    for depth, step in enumerate(path[1:], 1):
        following = node
        for pair in pairs(node):
            if _name(pair.key) == step:
                following = pair.value
            else:
                beside.append((".".join((*path[:depth], _name(pair.key))), pair.value))
        node = following
    return beside, node


def _remainders(
    gone: list[tuple[str, Any]], kept: list[tuple[str, Any]], storages: frozenset[str]
) -> Iterator[Remainder]:
    reached: list[tuple[str, dict[str, int]]] | None = None
    for name, node in gone:
        stay = {key: size for key, size in _storages(node).items() if key in storages}
        if stay:
            reached = reached or [(one, _storages(value)) for one, value in kept]
            keys = tuple(one for one, held in reached if not held.keys().isdisjoint(stay))
            yield Remainder(name, len(stay), sum(stay.values()), keys)


def _storages(node: Any) -> dict[str, int]:
    """The bytes of every storage that something is made of, by key."""
    found = {}
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Storage):
            found[node.key] = node.count * element_size(node)
        elif isinstance(node, Reference):
            waiting.append(node.identity)
        elif isinstance(node, (Container, Call, Tuple)) and id(node) not in seen:
            seen.add(id(node))
            waiting += node.items if not isinstance(node, Call) else [*node.items, node.arguments, node.state]
            for pair in pairs(node):
                waiting += (pair.key, pair.value)
    return found


def _model(root: Any, entries: Sequence[Pair], named: list[Candidate]) -> Candidate | None:
    """The model's state dict: among those that were named, if some were; None if it is the top level itself."""
    if not named and is_dict(root) and _only_tensors(entries):
        _check_extra_state(entries)
        return None
    found = named or list(_candidates(entries))
    if len(found) > 1:
        # What a random number generator remembers are bytes.
        found = [one for one in found if not all(_is_bytes(pair.value) for pair in pairs(one.entry.value))] or found
    if len(found) > 1:
        raise Unclear(found)
    if not found:
        raise _no_model(root, entries)
    _check_extra_state(pairs(found[0].entry.value))
    return found[0]


def _candidates(entries: Sequence[Pair]) -> Iterator[Candidate]:
    """Dicts of nothing but tensors among these entries, or under a well-known name further down; each once."""
    seen: set[int] = set()
    waiting = [Candidate((_name(pair.key),), pair) for pair in reversed(entries)]
    while waiting:
        path, entry = one = waiting.pop()
        if id(entry.value) in seen or not is_dict(entry.value):
            continue
        seen.add(id(entry.value))
        inner = pairs(entry.value)
        if _only_tensors(inner):
            yield one
        else:
            deeper = [(_name(pair.key), pair) for pair in reversed(inner)]
            waiting += [Candidate((*path, name), pair) for name, pair in deeper if name in WELL_KNOWN]


def _only_tensors(entries: Sequence[Pair]) -> bool:
    """Whether these are a state dict's entries. What a module keeps as its extra state may be anything."""
    return (
        any(is_tensor(pair.value) for pair in entries)
        and all(isinstance(pair.key, Text) for pair in entries)
        and all(is_tensor(pair.value) or _is_extra_state(pair) for pair in entries)
    )


def _is_extra_state(pair: Pair) -> bool:
    return isinstance(pair.key, Text) and pair.key.value.rpartition(".")[2] == "_extra_state"


def _is_bytes(node: Any) -> bool:
    layout = view(node)
    return layout is not None and layout.dtype in ("Byte", "uint8")


def _check_extra_state(entries: Sequence[Pair]) -> None:
    others = [_name(pair.key) for pair in entries if not is_tensor(pair.value)]
    if others:
        raise Refused(
            f"The model's state dict holds extra state that is no tensor: {listed(others)}",
            "Without it load_state_dict would fail, so keep the whole dict, with --keep in place of --params-only",
        )


def _no_model(root: Any, entries: Sequence[Pair]) -> Refused:
    for name, node, inner in [("", root, entries), *((_name(one.key), one.value, pairs(one.value)) for one in entries)]:
        if is_dict(node) and is_state_dict(node):
            others = [_name(one.key) for one in inner if not is_tensor(one.value)]
            return Refused(
                f"{name or 'The top level'} holds tensors, but also what is none: {listed(others)}",
                f"Drop it as well: --drop {','.join(others)}" if not name else f"Keep it whole: --keep {name}",
            )
    there = listed((f"{_name(one.key)} ({describe(one.value)})" for one in entries), most=8)
    return Refused(f"There is no dict of tensors at the top level, only {there}")


def _name(key: Any) -> str:
    return key.value if isinstance(key, Text) else f"[{describe(key)}]"
