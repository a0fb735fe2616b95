"""What the lists of missing and unexpected keys of a checkpoint tell when they are held against each other. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.log import Sighting
from ddpdoctor.log_signs import Role

PREFIX: Final = "ckpt-module-prefix"
MODEL: Final = "ckpt-arch-mismatch"
WITHIN: Final = 3
"""Lines in which both lists of one message stand."""
HOLDERS: Final = (
    "state_dict", "model_state_dict", "model", "model_state", "module", "net", "net_state_dict", "network", "params_ema",
    "model_ema", "state_dict_ema", "teacher", "student", "generator",
)  # fmt: skip
"""Under which a checkpoint keeps the state of a model, beside its epoch and the optimizer's. A parameter may be called weights or params."""
_KEY: Final = re.compile(r'"(?P<key>[^"]*)"')
_WHOLE: Final = re.compile(r'"[^"]*"(?:, "[^"]*")*\.?\s*$')
_WRAPPED: Final = re.compile(r"Error\(s\) in loading state_dict for (?:Distributed)?DataParallel:")
"""Of a model with the prefix: where only one of the lists is there, all other keys fit."""
_WRAPPERS: Final = re.compile(r"^(?:module\.|_orig_mod\.)+")


def with_lists_compared(seen: Sequence[Sighting]) -> list[Sighting]:
    """The sightings with the wrapper's prefix named where one list of a message has it and the other one has the same keys without it,
    and left out where both have it, or the keys are others anyway. A single list may be of a part that a wrapped model has and its
    checkpoint lacks. The model is named where the checkpoint was never opened up."""
    lists = [one for one in seen if one.slug == MODEL and ("missing" in one.words or "unexpected" in one.words)]
    prefixed = [one for one in seen if one.slug == PREFIX]
    compared = []
    for one in seen:
        if one.slug == MODEL and "unexpected" in one.words and holder([one]):
            compared.append(msgspec.structs.replace(one, role=Role.NAMES))
        elif one.slug != PREFIX:
            compared.append(one)
        elif not any(each.sign != one.sign and _of_one_message(each, one) for each in prefixed):
            others = [each for each in lists if not one.sign.startswith(each.sign) and _of_one_message(each, one)]
            if not others and _is_alone(one) and any(_is_wrapped(each) and _of_one_message(each, one) for each in seen):
                continue
            if (role := _role(one, others)) is not None:
                compared.append(msgspec.structs.replace(one, role=role))
    return compared


def holder(seen: Iterable[Sighting]) -> str:
    """The key under which the model's state lies, where load_state_dict() was given the whole checkpoint; else ""."""
    for one in seen:
        if "unexpected" in one.words:
            keys, _ = _keys(one)
            if not any("." in key for key in keys):
                return next((key for key in HOLDERS if key in keys), "")
    return ""


def _is_alone(prefixed: Sighting) -> bool:
    """Whether no other list of its message was cut off: missing keys come first, and the others on the next line."""
    return not prefixed.sign.startswith("Missing") or _keys(prefixed)[1]


def _is_wrapped(headline: Sighting) -> bool:
    return bool(_WRAPPED.search(headline.line.text))


def _role(prefixed: Sighting, others: Sequence[Sighting]) -> Role | None:
    """What the prefix on one list is worth beside the other one; None where the lists have nothing in common."""
    if not others:
        return prefixed.role
    own, whole = _keys(prefixed)
    for other in others:
        keys, whole_too = _keys(other)
        if own & keys:
            return Role.NAMES
        if not (whole and whole_too) and {key.partition(".")[0] for key in own} & {
            key.partition(".")[0] for key in keys
        }:
            return Role.NAMES
    return None


def _keys(listed: Sighting) -> tuple[frozenset[str], bool]:
    """The keys of a list without a wrapper's prefix, and whether they are all of them: a long line is cut short, and so are pastes."""
    sign = listed.sign.partition('"')[0]
    text = listed.line.text.partition(sign)[2]
    text = re.split(r"\b(?:Missing|Unexpected) key\(s\)", text)[0]
    return frozenset(_WRAPPERS.sub("", found["key"]) for found in _KEY.finditer(text)), bool(_WHOLE.match(text))


def _of_one_message(one: Sighting, other: Sighting) -> bool:
    a, b = one.line, other.line
    same = (a.file, a.rank, a.local_rank, a.host) == (b.file, b.rank, b.local_rank, b.host)
    return same and abs(a.number - b.number) <= WITHIN
