"""Cutting a checkpoint down: dropping top-level keys, or leaving the model's tensors and nothing else.

Works on the pickle's opcodes, and unpickles nothing. Bytes in, bytes out: other edits are made to what comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from ddpdoctor.base.text import human, listed
from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.comparison import Expected, are_alike
from ddpdoctor.checkpoints.pickles.gc_paused import without_collection
from ddpdoctor.checkpoints.pickles.machine import Program, scan
from ddpdoctor.checkpoints.pickles.model_search import Model, candidates_named, find_model
from ddpdoctor.checkpoints.pickles.nodes import Pair, Storage
from ddpdoctor.checkpoints.pickles.opcode_spans import Spans
from ddpdoctor.checkpoints.pickles.tensors import (
    VIEWS,
    describe,
    element_size,
    is_dict,
    is_extra_state_name,
    name_of,
    pairs,
    storages_of,
    view,
)

_NOTED_BYTES = 1 << 14
"""That nobody would mind below this."""


class Remainder(NamedTuple):
    """A dropped key, some of whose storages stay, because what was kept is made of them, too.

    keys: the top-level keys that were kept with them. bytes: of those storages.
    """

    name: str
    storages: int
    bytes: int
    keys: tuple[str, ...]


class CutPickle(NamedTuple):
    """A pickle that was cut down.

    storages: the keys of those that it still refers to. dropped: the names of what went, in the file's order.
    left_out: of the model's state dict what is no tensor, in words; it is among the dropped, too.
    chosen: with params_only, where the model's state dict stood: ("model",), or () for the top level.
    unused: bytes of the storages that no tensor shows, at least; storages are kept or dropped whole.
    """

    pickle: bytes
    storages: frozenset[str]
    dropped: tuple[str, ...]
    chosen: tuple[str, ...]
    remainders: tuple[Remainder, ...]
    left_out: tuple[str, ...]
    unused: int

    @property
    def notes(self) -> list[str]:
        """Sentences on what the user should know of it."""
        notes = [f"The model's parameters are what was under {'.'.join(self.chosen)}."] if self.chosen else []
        if self.left_out:
            what = "it is no tensor" if len(self.left_out) == 1 else "they are no tensors"
            notes.append(f"Left out, since {what}: {listed(self.left_out, most=8)}.")
        if any(is_extra_state_name(entry.partition(" (")[0]) for entry in self.left_out):
            notes.append("Without its extra state the model loads only with load_state_dict(..., strict=False).")
        notes += (
            f"{human(remainder.bytes)} of what was under {remainder.name} stay: they belong to {listed(remainder.keys)}, too."
            for remainder in self.remainders
        )
        if self.unused >= _NOTED_BYTES:
            notes.append(
                f"{human(self.unused)} in it are part of no tensor: a tensor that is a piece of a larger one keeps all of that. "
                "A safetensors file leaves them out: --params-only --to-safetensors."
            )
        return notes


@without_collection()
def cut(
    data: bytes,
    keep: Collection[str] = (),
    drop: Collection[str] = (),
    *,
    params_only: bool = False,
    tensors_only: bool = False,
) -> CutPickle:
    """Cut a pickle down to some keys of the dict at its top.

    Unclear is raised if several state dicts are left, or one that may be something else; Damaged if the pickle makes no sense.

    keep: the keys that stay, all if none are given; several may be named in one, with commas. With `params_only` also a
    state dict that stands further down: model.ema. drop: the keys that go, likewise. params_only: of what is left so, the
    model's state dict alone. tensors_only: without its modules' extra state, too.

    Raises:
        Refused: the top isn't a dict, has no such key, nothing would be left, there is no state dict, or the result would
            not say the same as the original.
    """
    program = scan(data)
    root = program.root
    entries = pairs(root)
    if not entries and not is_dict(root):
        raise Refused(f"Its top level is {describe(root)}, not a dict, so there are no keys to choose from")
    names = [name_of(pair.key) for pair in entries]
    keep, drop = list(_meant(keep, names)), list(_meant(drop, names))
    deeper = {*keep}.difference(names) if params_only else set()
    named = {candidate.name: candidate for candidate in candidates_named(entries, deeper)} if deeper else {}
    tops = [named[name].path[0] if name in named else name for name in keep]
    if missing := [name for name in (*tops, *drop) if name not in names]:
        deep = [name for name in missing if name.partition(".")[0] in names]
        why = f"; only whole top-level keys can be kept or dropped, and {deep[0]} isn't one" if deep else ""
        there = f"there are {listed(names, most=20)}" if names else "it is empty"
        raise Refused(f"The top level has no key {listed(missing)}: {there}{why}")
    leaving = [name in drop or bool(tops and name not in tops) for name in names]
    if entries and all(leaving):
        raise Refused(f"Nothing would be left of the top level, which has {listed(names, most=8)}")
    model = Model(None, ())
    if params_only:
        staying = [pair for pair, leaves in zip(entries, leaving, strict=True) if not leaves]
        model = find_model(root, staying, list(named.values()), chosen=bool(keep), tensors_only=tensors_only)

    spans = Spans(data)
    out = {id(pair) for pair in model.left_out}
    if model.candidate is None:
        path: tuple[str, ...] = ()
        kept = root
        leaving = [leaves or id(pair) in out for pair, leaves in zip(entries, leaving, strict=True)]
        result = spans.emit(spans.root.start, spans.root.end, _dropped(spans, entries, leaving))
        kept.pairs = [pair for pair, leaves in zip(entries, leaving, strict=True) if not leaves]
    else:
        path, entry = model.candidate
        kept = entry.value
        inner = pairs(kept)
        dropped = _dropped(spans, inner, [id(pair) in out for pair in inner]) if out else {}
        result = spans.emit(spans.at(entry.value_start), spans.at(entry.end), dropped)
        kept.pairs = [pair for pair in inner if id(pair) not in out]
    left = scan(result)
    if not are_alike(program._replace(root=kept), data, left, result, Expected({}, {})):
        raise Refused("What is to be kept could not be cut out without a change, so nothing was written")
    done = _summary(result, left, entries, leaving, path, model.left_out)
    return done._replace(unused=0) if tensors_only else done


def _meant(values: Collection[str], names: Collection[str]) -> Iterator[str]:
    """The names that the values mean: a value is a key as it is, or several with commas; a number may be a key that is one."""
    for value in values:
        for key in [value] if value in names else filter(None, map(str.strip, value.split(","))):
            number = f"[the int {key}]"
            yield number if key not in names and number in names else key


def _dropped(spans: Spans, entries: Sequence[Pair], leaving: list[bool]) -> dict[int, int]:
    """The numbers of the opcodes with which entries that leave begin, and with which the pickle goes on behind them.

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
        if all(leaves for _, _, leaves in batch):
            dropped[begin if code in b"sa" else spans.mark_before(batch[0][0])] = end + 1
        else:
            dropped.update({begin: end for begin, end, leaves in batch if leaves})
        batch = []
    return dropped


def _entry(spans: Spans, pair: Pair) -> tuple[int, int]:
    """The opcodes with which an entry begins and ends. One that Python 2 wrote is a list of two, within its brackets."""
    begin, end = spans.at(pair.key_start), spans.at(pair.end)
    if spans.code(end) == ord("e"):
        return spans.list_before(spans.mark_before(begin)), end + 1
    return begin, end


def _summary(
    result: bytes,
    left: Program,
    entries: Sequence[Pair],
    leaving: list[bool],
    path: tuple[str, ...],
    left_out: Sequence[Pair],
) -> CutPickle:
    gone: list[tuple[str, Any]] = []
    kept: list[tuple[str, Any]] = []
    for pair, leaves in zip(entries, leaving, strict=True):
        name = name_of(pair.key)
        if leaves or (path and name != path[0]):
            gone.append((name, pair.value))
        elif path:
            inner, value = _beside(pair.value, path)
            gone += inner
            gone += ((".".join((*path, name_of(pair.key))), pair.value) for pair in left_out)
            kept.append((".".join(path), value))
        else:
            kept.append((name, pair.value))
    storages = frozenset(storage.key for storage in left.storages)
    return CutPickle(
        pickle=result,
        storages=storages,
        dropped=tuple(name for name, _ in gone),
        chosen=path,
        remainders=tuple(_remainders(gone, kept, storages)),
        left_out=tuple(f"{'.'.join((*path, name_of(pair.key)))} ({describe(pair.value)})" for pair in left_out),
        unused=_unused(left),
    )


def _unused(program: Program) -> int:
    """Bytes of storages that no tensor shows, at least: torch.save writes a storage whole, whatever is seen of it."""
    sizes: dict[str, int] = {}
    shown: dict[str, int] = {}
    for call in program.calls:
        if call.name in VIEWS and isinstance(storage := call.first_argument, Storage):
            sizes[storage.key] = storage.count * element_size(storage)
            found = view(call)
            # What isn't plainly laid out may need all of it, and what elements untyped bytes are is for others to say.
            plain = found if storage.kind != "UntypedStorage" else None
            bytes_shown = prod(plain.size) * element_size(storage) if plain else sizes[storage.key]
            shown[storage.key] = shown.get(storage.key, 0) + bytes_shown
    return sum(max(0, size - shown[key]) for key, size in sizes.items())


def _beside(node: Any, path: tuple[str, ...]) -> tuple[list[tuple[str, Any]], Any]:
    """The nodes beside the path from path[0] to its end, by dotted name, and the one at its end."""
    beside = []
    for depth, step in enumerate(path[1:], 1):
        following = node
        for pair in pairs(node):
            if name_of(pair.key) == step:
                following = pair.value
            else:
                beside.append((".".join((*path[:depth], name_of(pair.key))), pair.value))
        node = following
    return beside, node


def _remainders(
    gone: list[tuple[str, Any]], kept: list[tuple[str, Any]], storages: frozenset[str]
) -> Iterator[Remainder]:
    reached: list[tuple[str, dict[str, int]]] | None = None
    for name, node in gone:
        stay = {key: size for key, size in storages_of(node).items() if key in storages}
        if stay:
            reached = reached or [(key, storages_of(value)) for key, value in kept]
            keys = tuple(key for key, storages_there in reached if not storages_there.keys().isdisjoint(stay))
            yield Remainder(name, len(stay), sum(stay.values()), keys)
