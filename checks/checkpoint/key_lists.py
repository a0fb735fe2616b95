"""What the lists of missing and unexpected keys of a checkpoint tell when they are held against each other. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.facts.log import Log, SignMatch

LIST_WORDS: Final = ("missing", "unexpected")
"""Words of the signs that hold a list of keys."""
MAX_LINES_APART: Final = 3
"""Lines in which both lists of one message stand."""
PREFIX_WORDS: Final = ("model_prefix", "saved_prefix")
"""Words of a sighting: what stands before the model's keys, and before the saved ones."""
HOLDERS: Final = (
    "state_dict", "model_state_dict", "model", "model_state", "module", "net", "net_state_dict", "network", "params_ema",
    "model_ema", "state_dict_ema", "teacher", "student", "generator",
)  # fmt: skip
"""Under which a checkpoint keeps the state of a model, beside its epoch and the optimizer's. A parameter may be called weights or params."""
_KEY: Final = compile_lazily(r'"(?P<key>[^"]*)"')
_WHOLE: Final = compile_lazily(r'"[^"]*"(?:, "[^"]*")*\.?\s*$')
_WRAPPED: Final = compile_lazily(
    r"Error\(s\) in loading state_dict for (?:(?:Distributed)?DataParallel|OptimizedModule):"
)
"""Of a model with the prefix: where only one of the lists is there, all other keys fit."""
_WRAPPERS: Final = compile_lazily(r"^(?:module\.|_orig_mod\.|_forward_module\.|_fsdp_wrapped_module\.)+")
_HELD: Final = compile_lazily(r"(?:(?:module|model|net|network|_orig_mod|_forward_module|_fsdp_wrapped_module)\.)+$")
MIN_KEYS_OF_A_PART: Final = 8
"""Keys of one part of a model that are as good as keys of several parts: a part alone may have moved within the model."""
KEYS_TRIED: Final = 3
"""Keys, of the first ones of a list, before which a prefix is looked for."""


def with_lists_compared(seen: Sequence[SignMatch], log: Log, slug: str) -> list[SignMatch]:
    """The sightings with the prefix named where one list of a message has it and the other one has the same keys without it, whatever
    it is, and a wrapper's left out where both have it, or the keys are others anyway. A single list may be of a part that a wrapped
    model has and its checkpoint lacks. The model is named where the checkpoint was never opened up. slug: of the check that tells of prefixes."""
    lists = [match for match in seen if any(name in match.words for name in LIST_WORDS)]
    prefixed = [match for match in seen if match.slug == slug]
    compared = []
    for match in seen:
        if "unexpected" in match.words and holder([match]):
            compared.append(msgspec.structs.replace(match, role=SignRole.NAMES))
        elif match.slug != slug:
            compared.append(match)
        elif not any(candidate.sign != match.sign and _of_one_message(candidate, match) for candidate in prefixed):
            others = [
                candidate
                for candidate in lists
                if not match.sign.startswith(candidate.sign) and _of_one_message(candidate, match)
            ]
            if (
                not others
                and _is_alone(match)
                and any(
                    _WRAPPED.search(candidate.line.text) and _of_one_message(candidate, match) for candidate in seen
                )
            ):
                continue
            if (role := _role(match, others)) is not None:
                compared.append(msgspec.structs.replace(match, role=role))
    return _with_prefixes(compared, slug)


def _with_prefixes(compared: Sequence[SignMatch], slug: str) -> list[SignMatch]:
    """Add what stands before the keys as words."""
    unexpected: dict[object, list[SignMatch]] = {}
    for match in compared:
        if "unexpected" in match.words:
            unexpected.setdefault(match.line.stream, []).append(match)
    told: dict[object, list[SignMatch]] = {}
    for match in compared:
        if "missing" not in match.words:
            continue
        for other in unexpected.get(match.line.stream, ()):
            if _of_one_message(match, other) and (prefixes := prefixes_of(match, other)):
                words = {name: prefix for name, prefix in zip(PREFIX_WORDS, prefixes, strict=True) if prefix}
                prefixed = other if prefixes[1] else match
                named = msgspec.structs.replace(prefixed, slug=slug, role=SignRole.NAMES, words=words)
                told.setdefault(match.line.stream, []).append(named)
    left = [
        match
        for match in compared
        if match.slug != slug
        or not any(_of_one_message(match, candidate) for candidate in told.get(match.line.stream, ()))
    ]
    return sorted(
        [*left, *(match for matches in told.values() for match in matches)], key=lambda match: match.line.order
    )


def prefixes_of(missing: SignMatch, unexpected: SignMatch) -> tuple[str, str] | None:
    """Find what stands before the model's keys and before the saved ones, where they are the same behind it."""
    (wanted, whole), (saved, whole_too) = _as_listed(missing), _as_listed(unexpected)
    model, file = _wrapper(wanted), _wrapper(saved)
    if model != file and _without(model, wanted) & _without(file, saved):
        return model, file
    if before := _prefix(wanted, saved, cut=not (whole and whole_too)):
        return before, ""
    before = _prefix(saved, wanted, cut=not (whole and whole_too))
    return ("", before) if before else None


def _wrapper(keys: Collection[str]) -> str:
    """Find what most of the keys begin with."""
    found = Counter(match[0] if (match := _WRAPPERS.match(key)) else "" for key in keys)
    return found.most_common(1)[0][0] if found else ""


def _without(prefix: str, keys: Iterable[str]) -> set[str]:
    return {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}


def _prefix(long: Sequence[str], short: Sequence[str], *, cut: bool) -> str:
    """Find what stands before most keys of the one list, and not before the same ones of the other; else ""."""
    least = (min if cut else max)(len(long), len(short)) // 2
    parts = [(key, match.end()) for key in islice(long, KEYS_TRIED) for match in re.finditer(r"\.", key)]
    for prefix in dict.fromkeys(key[:end] for key, end in parts if key[end:] in short):
        same = _without(prefix, long) & set(short)
        several = len({key.partition(".")[0] for key in same}) > 1
        # All keys of both lists: the model, however small, held as model or net, and no part of it that has moved.
        held = not cut and len(same) == len(long) == len(short) > 1 and _HELD.match(prefix)
        if held or (len(same) > least and (several or len(same) >= MIN_KEYS_OF_A_PART)):
            return prefix
    return ""


def holder(seen: Iterable[SignMatch]) -> str:
    """Find the key under which the model's state lies, where the whole checkpoint was loaded; else ""."""
    for match in seen:
        if "unexpected" in match.words:
            keys, _ = _keys(match)
            if not any("." in key for key in keys):
                return next((key for key in HOLDERS if key in keys), "")
    return ""


def _is_alone(prefixed: SignMatch) -> bool:
    """Whether no other list of its message was cut off: missing keys come first, and the others on the next line."""
    return not prefixed.sign.startswith("Missing") or _keys(prefixed)[1]


def _role(prefixed: SignMatch, others: Sequence[SignMatch]) -> SignRole | None:
    """Rate the prefix on one list beside the other one; None where the lists have nothing in common."""
    if not others:
        return prefixed.role
    own, whole = _keys(prefixed)
    for match in others:
        keys, whole_too = _keys(match)
        if own & keys:
            return SignRole.NAMES
        if not (whole and whole_too) and {key.partition(".")[0] for key in own} & {
            key.partition(".")[0] for key in keys
        }:
            return SignRole.NAMES
    return None


def _keys(listed: SignMatch) -> tuple[frozenset[str], bool]:
    """List the keys of a list without a wrapper's prefix, and whether they are all of them."""
    keys, whole = _as_listed(listed)
    return frozenset(_WRAPPERS.sub("", key) for key in keys), whole


def _as_listed(listed: SignMatch) -> tuple[tuple[str, ...], bool]:
    """Read the keys of a list, and whether they are all of them: a long line is cut short, and so are pastes."""
    sign = listed.sign.partition('"')[0]
    text = listed.line.text.partition(sign)[2]
    text = re.split(r"\b(?:Missing|Unexpected) key\(s\)", text)[0]
    return tuple(found["key"] for found in _KEY.finditer(text)), bool(_WHOLE.match(text))


def _of_one_message(one: SignMatch, other: SignMatch) -> bool:
    return one.line.stream == other.line.stream and abs(one.line.number - other.line.number) <= MAX_LINES_APART
