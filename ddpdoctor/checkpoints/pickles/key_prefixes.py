"""Stripping a wrapper's name ("module.", "_orig_mod.") from the keys of the state dicts in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from ddpdoctor.base.text import listed, plural
from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.pickles.machine import Program
from ddpdoctor.checkpoints.pickles.nodes import Call, Pair, Text
from ddpdoctor.checkpoints.pickles.splices import Wording
from ddpdoctor.checkpoints.pickles.tensors import Found, is_extra_state_name, is_state_dict, pairs, walk


def has_prefix(state_dict: Any, prefix: str) -> bool:
    """Whether every key begins with it, and has more behind it."""
    return all(pair.key.value.startswith(prefix) and pair.key.value != prefix for pair in pairs(state_dict))


class Renamings(NamedTuple):
    """The edits: of the state dicts' keys, and of the modules' names in their metadata.

    notes: in sentences, which state dicts keep a prefix that others lost.
    """

    keys: list[Wording]
    modules: list[Wording]
    notes: list[str]

    def __bool__(self) -> bool:
        return bool(self.keys)


def strip(program: Program, prefixes: tuple[str, ...]) -> Renamings:
    """The edits that take the prefixes, one after the other, from every state dict where each key has them; none where
    no key has any.

    Refused is raised where some keys of a state dict have the prefix and others don't, or two keys would become one.
    """
    # Not what looks like one within a module's extra state.
    dicts = [
        found
        for found in (walk(program.root) if prefixes else ())
        if is_state_dict(found.node) and not any(map(is_extra_state_name, found.path))
    ]
    stripped = {id(found.node): "" for found in dicts}
    renamings = Renamings([], [], [])
    for prefix in prefixes:
        having = [found for found in dicts if has_prefix(found.node, stripped[id(found.node)] + prefix)]
        partly = list(_partly(dicts, stripped, prefix))
        if partly and not having:
            _refuse_partial(partly, prefix)
        for where, count, total in partly:
            if count == total:
                why = f": of the key that is {prefix!r} itself nothing would be left."
            else:
                why = f", which only {count} of its {plural(total, 'key')} have before them."
            renamings.notes.append(f"{where} keeps {prefix!r}{why}")
        for found in having:
            stripped[id(found.node)] += prefix
    for found in dicts:
        _rename(found, stripped[id(found.node)], renamings)
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


def _partly(dicts: list[Found], stripped: dict[int, str], prefix: str) -> Iterator[tuple[str, int, int]]:
    """State dicts of whose keys some begin with the prefix, but not all with more behind it.

    Yields:
        Where it stands, how many keys begin so, and how many there are.
    """
    for found in dicts:
        whole = stripped[id(found.node)] + prefix
        having = sum(pair.key.value.startswith(whole) for pair in pairs(found.node))
        if having and not has_prefix(found.node, whole):
            yield found.where or "the top level", having, len(pairs(found.node))


def _refuse_partial(partly: list[tuple[str, int, int]], prefix: str) -> NoReturn:
    if all(having == count for _, having, count in partly):
        raise Refused(
            f"{prefix!r} can't be stripped from {listed((where for where, _, _ in partly), most=4)}: one key is "
            f"{prefix!r} itself, and nothing would be left of it",
            f"Load it, take that key out or rename it, and save it again, if {prefix!r} is a wrapper's at all",
        )
    counts = [f"{where}: {having} of {plural(count, 'key')}" for where, having, count in partly]
    raise Refused(
        f"No state dict in it has {prefix!r} before every key ({listed(counts, most=4)})",
        "Strip it from all keys or from none: a model that was wrapped only in part has to be unwrapped in your code",
    )
