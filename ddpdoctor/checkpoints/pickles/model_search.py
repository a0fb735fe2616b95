"""The search for the model's dict in a checkpoint: found by its shape, and asked about where that isn't clear."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from ddpdoctor.base.text import listed, plural
from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.nodes import Pair, Text
from ddpdoctor.checkpoints.pickles.tensors import (
    describe,
    is_dict,
    is_extra_state,
    is_state_dict,
    is_tensor,
    name_of,
    pairs,
    storages_of,
    view,
)

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
    "params_ema",
)
"""What a model's state dict is called where it doesn't stand at the top; its averages, which may stand for it, come last."""


class CandidateModel(NamedTuple):
    """A dict that may be the model's: the value of `entry`, which `path` leads to."""

    path: tuple[str, ...]
    entry: Pair

    @property
    def name(self) -> str:
        """The name that `keep` has for it."""
        return ".".join(self.path)

    @property
    def tensors(self) -> int:
        return sum(is_tensor(pair.value) for pair in pairs(self.entry.value))

    @property
    def rank(self) -> int:
        """The lower, the better is its name known for a model's."""
        return WELL_KNOWN.index(self.path[-1]) if self.path[-1] in WELL_KNOWN else len(WELL_KNOWN)


class Unclear(Refused):
    """One or several dicts of tensors may be the model. choices: their names, of which `keep` takes one."""

    def __init__(self, candidates: Sequence[CandidateModel], why: str = "") -> None:
        names = listed(
            (f"{candidate.name} ({plural(candidate.tensors, 'tensor')})" for candidate in candidates), most=8
        )
        options = f"--params-only --keep {candidates[0].name}"
        if len(candidates) > 1:
            text, advice = f"which of these is the model: {names}", f"Name it, for instance {options}"
        else:
            text, advice = f"whether {names} is the model: {why}", f"If it is, name it: {options}"
        super().__init__(f"It isn't clear {text}", advice)
        self.choices = tuple(candidate.name for candidate in candidates)


class Model(NamedTuple):
    """The model's state dict, and what of it is left out. candidate: None if it is the top level itself."""

    candidate: CandidateModel | None
    left_out: Sequence[Pair]


class _Search(NamedTuple):
    """The dicts that were found.

    pure: of nothing but tensors. mixed: state dicts that hold other things, too, and not only bytes. others: what has a
    well-known name, and tensors somewhere in it, and is neither a dict of tensors nor holds one that was found.
    """

    pure: list[CandidateModel]
    mixed: list[CandidateModel]
    others: list[CandidateModel]


def candidates_named(entries: Sequence[Pair], names: Collection[str]) -> list[CandidateModel]:
    """The candidates that stand somewhere below these entries under one of these dotted names."""
    found = _search(entries)
    return [candidate for candidate in (*found.pure, *found.mixed) if candidate.name in names]


def find_model(
    root: Any, entries: Sequence[Pair], named: list[CandidateModel], *, chosen: bool, tensors_only: bool
) -> Model:
    """The model's state dict: among those that were named, if some were, else among these entries of the top level.

    What is left out of it holds no tensors, unless the user chose the dict. Refused is raised if there is none.
    chosen: the user said which entries these are to be. tensors_only: a module's extra state is left out, too, unless it is a
    tensor.

    Raises:
        Unclear: there are several, or a single one that may well be something else.
    """
    if not named and is_dict(root) and _only_tensors(entries):
        return Model(None, _no_tensors(entries, tensors_only))
    found = _search(entries)
    # What a random number generator remembers are bytes.
    models = [candidate for candidate in found.pure if not _is_bytes(candidate.entry.value)]
    if chosen:
        models = named or models + found.mixed or found.pure
    elif len(models) == 1:
        # The only dict of tensors needn't be the model: its name has to say so, and no better name stand beside it.
        better = [candidate for candidate in found.others if candidate.rank < models[0].rank]
        if better:
            raise Unclear(models, f"{better[0].name} is {_shortcoming(better[0].entry.value)}")
        if models[0].path[-1] not in WELL_KNOWN:
            raise Unclear(models, "its name doesn't say so")
    if len(models) > 1:
        raise Unclear(models)
    if models:
        return Model(models[0], _no_tensors(pairs(models[0].entry.value), tensors_only))
    if is_dict(root) and _is_flat(entries):
        return Model(None, _no_tensors(entries, tensors_only))
    return _refuse_without_model(entries, found)


def _search(entries: Sequence[Pair]) -> _Search:
    """Look among these entries, and under well-known names further down; each node once."""
    found = _Search([], [], [])
    others: list[CandidateModel] = []
    visited: set[int] = set()
    waiting = [CandidateModel((name_of(pair.key),), pair) for pair in reversed(entries)]
    while waiting:
        path, entry = candidate = waiting.pop()
        if id(entry.value) in visited:
            continue
        visited.add(id(entry.value))
        if is_dict(entry.value):
            inner = pairs(entry.value)
            if _only_tensors(inner):
                found.pure.append(candidate)
                continue
            if is_state_dict(entry.value) and not _is_bytes(entry.value):
                found.mixed.append(candidate)
            deeper = [(name_of(pair.key), pair) for pair in reversed(inner)]
            waiting += [CandidateModel((*path, name), pair) for name, pair in deeper if name in WELL_KNOWN]
        if path[-1] in WELL_KNOWN:
            others.append(candidate)
    for candidate in others:
        within = any(pure.path[: len(candidate.path)] == candidate.path for pure in found.pure)
        if not within and not is_tensor(candidate.entry.value) and storages_of(candidate.entry.value):
            found.others.append(candidate)
    return found


def _shortcoming(node: Any) -> str:
    """Why something isn't taken for a model's state dict."""
    others = [name_of(pair.key) for pair in pairs(node) if not is_tensor(pair.value)] if is_state_dict(node) else []
    if others:
        return f"a dict of tensors, but also of what is none ({listed(others, most=4)})"
    return f"{describe(node)}, not a dict of tensors"


def _only_tensors(entries: Sequence[Pair]) -> bool:
    """Whether these are a state dict's entries. What a module keeps as its extra state may be anything."""
    return (
        any(is_tensor(pair.value) for pair in entries)
        and all(isinstance(pair.key, Text) for pair in entries)
        and all(is_tensor(pair.value) or is_extra_state(pair) for pair in entries)
    )


def _is_flat(entries: Sequence[Pair]) -> bool:
    """Whether these are tensors, and things that hold none."""
    return (
        any(is_tensor(pair.value) for pair in entries)
        and all(isinstance(pair.key, Text) for pair in entries)
        and not list(_holders(entries))
    )


def _holders(entries: Sequence[Pair]) -> Iterator[Pair]:
    """The entries that are no tensors and hold some."""
    for pair in entries:
        if not is_tensor(pair.value) and not is_extra_state(pair) and storages_of(pair.value):
            yield pair


def _no_tensors(entries: Sequence[Pair], tensors_only: bool) -> Sequence[Pair]:
    return [pair for pair in entries if not is_tensor(pair.value) and (tensors_only or not is_extra_state(pair))]


def _is_bytes(node: Any) -> bool:
    """Whether a dict's tensors are all of bytes."""
    views = [view(pair.value) for pair in pairs(node) if is_tensor(pair.value)]
    return all(tensor is not None and tensor.dtype in ("Byte", "uint8") for tensor in views)


def _refuse_without_model(entries: Sequence[Pair], found: _Search) -> NoReturn:
    if found.mixed:
        name = found.mixed[0].name
        others = [name_of(pair.key) for pair in pairs(found.mixed[0].entry.value) if not is_tensor(pair.value)]
        raise Refused(
            f"{name} holds tensors, but also what is none: {listed(others, most=8)}",
            f"If it is the model, name it, and these are left out: --params-only --keep {name}",
        )
    holders = [name_of(pair.key) for pair in _holders(entries)]
    tensors = [name_of(pair.key) for pair in entries if is_tensor(pair.value)]
    if holders and tensors:
        raise Refused(
            f"The top level holds tensors ({listed(tensors, most=4)}), but also what holds others: {listed(holders, most=8)}",
            f"If these tensors are the model, leave the others out: --params-only --drop {','.join(holders)}",
        )
    there = listed((f"{name_of(entry.key)} ({_described(entry.value)})" for entry in entries), most=8)
    raise Refused(f"There is no dict of tensors that could be a model's at the top level, only {there}")


def _described(node: Any) -> str:
    if is_dict(node) and _only_tensors(pairs(node)):
        return f"{plural(len(pairs(node)), 'tensor')} of bytes, as random number generators keep them"
    return describe(node)
