"""Stripping a wrapper's name ("module.", "_orig_mod.") from the keys of the state dicts in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.machine import Program
from ddpdoctor.checkpoints.pickles.nodes import Call, Pair, Text
from ddpdoctor.checkpoints.pickles.splices import Wording
from ddpdoctor.checkpoints.pickles.tensors import Found, is_state_dict, pairs, walk
from ddpdoctor.wording import listed, plural

WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.")
"""What DistributedDataParallel and DataParallel, torch.compile, Lightning's Fabric and FSDP put before every key."""


def state_dicts(program: Program) -> list[Found]:
    return [found for found in walk(program.root) if is_state_dict(found.node)]


def has_prefix(state_dict: Any, prefix: str) -> bool:
    """Whether every key begins with it, and has more behind it."""
    return all(pair.key.value.startswith(prefix) and pair.key.value != prefix for pair in pairs(state_dict))


class Renamings(NamedTuple):
    """The edits: of the state dicts' keys, and of the modules' names in their metadata."""

    keys: list[Wording]
    modules: list[Wording]

    def __bool__(self) -> bool:
        return bool(self.keys)


def strip(program: Program, prefixes: tuple[str, ...]) -> Renamings:
    """The edits that take the prefixes, one after the other, from every state dict where each key has them; none where
    no key has any.

    Raises:
        Refused: some keys of a state dict have the prefix and others don't, or two keys would become one.
    """
    dicts = state_dicts(program) if prefixes else []
    stripped = {id(one.node): "" for one in dicts}
    for prefix in prefixes:
        having = [one for one in dicts if has_prefix(one.node, stripped[id(one.node)] + prefix)]
        if not having:
            _refuse_partial(dicts, stripped, prefix)
        for one in having:
            stripped[id(one.node)] += prefix
    renamings = Renamings([], [])
    for one in dicts:
        _rename(one, stripped[id(one.node)], renamings)
    return renamings


def _rename(found: Found, prefix: str, renamings: Renamings) -> None:
    if not prefix:
        return
    keys = pairs(found.node)
    names = [pair.key.value[len(prefix) :] for pair in keys]
    if len({*names}) != len({pair.key.value for pair in keys}):
        raise Refused(f"Without {prefix!r} two keys of {found.where or 'the state dict'} would be the same")
    renamings.keys.extend(Wording(pair.key, pair.key_start, name) for pair, name in zip(keys, names, strict=True))
    # load_state_dict looks versions up by the modules' names, so these must follow. A wrapper's own entry ("module" of
    # "module.module.") gives way to the model's, which comes behind it.
    for pair in _metadata(found.node):
        key = pair.key.value if isinstance(pair.key, Text) else ""
        if f"{key}.".startswith(prefix) or prefix.startswith(f"{key}."):
            renamings.modules.append(Wording(pair.key, pair.key_start, key[len(prefix) :]))


def _metadata(state_dict: Any) -> Sequence[Pair]:
    if isinstance(state_dict, Call):
        for pair in pairs(state_dict.state):
            if isinstance(pair.key, Text) and pair.key.value == "_metadata":
                return pairs(pair.value)
    return ()


def _refuse_partial(dicts: list[Found], stripped: dict[int, str], prefix: str) -> None:
    counts = []
    for one in dicts:
        keys = [pair.key.value[len(stripped[id(one.node)]) :] for pair in pairs(one.node)]
        having = sum(key.startswith(prefix) for key in keys)
        if having:
            counts.append(f"{one.where or 'the top level'}: {having} of {plural(len(keys), 'key')}")
    if counts:
        raise Refused(
            f"No state dict in it has {prefix!r} before every key ({listed(counts, most=4)})",
            "Strip it from all keys or from none: a model that was wrapped only in part has to be unwrapped in your code",
        )
