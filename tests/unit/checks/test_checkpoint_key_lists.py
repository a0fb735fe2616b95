"""The lists of keys that don't fit a checkpoint, held against each other."""

from __future__ import annotations

import pytest

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.checks.checkpoint.key_lists import holder, with_lists_compared
from ddpdoctor.facts.log import Log, LogLine, SignMatch

PREFIX = "ckpt-module-prefix"
MODEL = "ckpt-arch-mismatch"
CUT = "..."
MISSING, UNEXPECTED = "Missing key(s) in state_dict: ", "Unexpected key(s) in state_dict: "


def listed(sign: str, keys: str, number: int, rank: int | None = None) -> list[SignMatch]:
    """What the signs of both illnesses find in such a line."""
    key, *more = keys.split()
    names = ", ".join(f'"{one}"' for one in (key, *more) if one != CUT)
    line = LogLine(file=0, number=number, text=f"{sign}{names}" + ("..." if CUT in more else ". "), rank=rank)
    words = {"missing" if sign == MISSING else "unexpected": key}
    found = [SignMatch(slug=MODEL, sign=sign, role=SignRole.HINTS, line=line, words=words)]
    found += [
        SignMatch(slug=PREFIX, sign=f'{sign}"{prefix}', role=SignRole.HINTS, line=line)
        for prefix in ("module.", "_orig_mod.")
        if key.startswith(prefix)
    ]
    return found


def prefix_is(*lists: list[SignMatch]) -> list[SignRole]:
    return [
        one.role
        for one in with_lists_compared([one for each in lists for one in each], Log(), PREFIX)
        if one.slug == PREFIX
    ]


@pytest.mark.parametrize(("missing", "unexpected"), [("module.a", "a"), ("a", "module.a")])
def test_the_prefix_in_one_list_of_two_is_a_wrappers(missing: str, unexpected: str) -> None:
    assert prefix_is(listed(MISSING, missing, 8), listed(UNEXPECTED, unexpected, 9)) == [SignRole.NAMES]


def test_the_prefix_in_both_lists_is_none() -> None:
    assert prefix_is(listed(MISSING, "module.a", 8), listed(UNEXPECTED, "module.b", 9)) == []


def test_a_single_list_only_hints() -> None:
    assert prefix_is(listed(MISSING, "module.a", 8)) == [SignRole.HINTS]


def headline(model: str, number: int) -> list[SignMatch]:
    text = f"RuntimeError: Error(s) in loading state_dict for {model}:"
    line = LogLine(file=0, number=number, text=text)
    return [SignMatch(slug=MODEL, sign="Error(s) in loading state_dict for", role=SignRole.HINTS, line=line)]


@pytest.mark.parametrize(
    ("model", "sign", "keys", "roles"),
    [
        ("DistributedDataParallel", UNEXPECTED, "module.a", []),
        ("DataParallel", UNEXPECTED, "module.a ...", []),
        ("DistributedDataParallel", MISSING, "module.a", []),
        ("DistributedDataParallel", MISSING, "module.a ...", [SignRole.HINTS]),
        ("Net", UNEXPECTED, "module.a", [SignRole.HINTS]),
        ("Net", UNEXPECTED, "_orig_mod.a", [SignRole.HINTS]),
        ("OptimizedModule", MISSING, "_orig_mod.a", []),
    ],
)
def test_of_a_wrapped_model_a_single_list_has_the_prefix_anyway(
    model: str, sign: str, keys: str, roles: list[SignRole]
) -> None:
    assert prefix_is(headline(model, 7), listed(sign, keys, 8)) == roles


def test_lists_of_different_messages_and_ranks_are_not_compared() -> None:
    assert prefix_is(listed(MISSING, "module.a", 8), listed(UNEXPECTED, "a", 90)) == [SignRole.HINTS]
    assert prefix_is(listed(MISSING, "module.a", 8, rank=0), listed(UNEXPECTED, "a", 9, rank=1)) == [SignRole.HINTS]


@pytest.mark.parametrize(
    ("missing", "unexpected"), [("module.a.w", "b.w"), ("module.a.w", "state_dict"), ("a", "module.b c")]
)
def test_the_prefix_on_keys_that_the_other_list_has_not_is_no_wrappers(missing: str, unexpected: str) -> None:
    assert prefix_is(listed(MISSING, missing, 8), listed(UNEXPECTED, unexpected, 9)) == []


def test_of_lists_that_are_cut_short_the_same_part_of_the_model_will_do() -> None:
    assert prefix_is(listed(MISSING, "module.a.w ...", 8), listed(UNEXPECTED, "a.b ...", 9)) == [SignRole.NAMES]
    assert prefix_is(listed(MISSING, "module.a.w ...", 8), listed(UNEXPECTED, "epoch state_dict", 9)) == []


OF_A_MODEL = "encoder.weight encoder.bias norm.weight head.weight"


def before(prefix: str, keys: str = OF_A_MODEL) -> str:
    return " ".join(f"{prefix}{key}" for key in keys.split())


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "model.", "_forward_module.", "_orig_mod.module.", "backbone.body."]
)
@pytest.mark.parametrize("end", ["", f" {CUT}"])
def test_whatever_stands_before_the_same_keys_is_the_prefix(prefix: str, end: str) -> None:
    plain, prefixed = OF_A_MODEL + end, before(prefix) + end
    for missing, unexpected, name in ((plain, prefixed, "saved_prefix"), (prefixed, plain, "model_prefix")):
        found = with_lists_compared([*listed(MISSING, missing, 8), *listed(UNEXPECTED, unexpected, 9)], Log(), PREFIX)
        (told,) = [one for one in found if one.slug == PREFIX]
        assert told.role is SignRole.NAMES
        assert told.words == {name: prefix}


@pytest.mark.parametrize("prefix", ["model.", "net.", "module.model."])
def test_a_small_model_that_another_holds_has_its_prefix(prefix: str) -> None:
    """As Lightning's module holds it: all keys of both lists, and not a part that has moved."""
    keys = "layer.weight layer.bias"
    found = with_lists_compared(
        [*listed(MISSING, keys, 8), *listed(UNEXPECTED, before(prefix, keys), 9)], Log(), PREFIX
    )
    (told,) = [one for one in found if one.slug == PREFIX]
    assert told.words == {"saved_prefix": prefix}


def test_wrappers_in_another_order_are_told_both() -> None:
    lists = listed(MISSING, before("_orig_mod.module."), 8), listed(UNEXPECTED, before("module._orig_mod."), 9)
    (told,) = [
        one for one in with_lists_compared([one for each in lists for one in each], Log(), PREFIX) if one.slug == PREFIX
    ]
    assert told.words == {"model_prefix": "_orig_mod.module.", "saved_prefix": "module._orig_mod."}


@pytest.mark.parametrize(
    ("missing", "unexpected"),
    [
        ("decoder.norm.weight decoder.norm.bias", "norm.weight norm.bias"),  # A part has moved, and all else fits.
        ("model.weight", "weight"),
        (before("model."), "encoder.weight neck.weight neck.bias other.weight"),
        (OF_A_MODEL, OF_A_MODEL),
        ("1.weight 1.bias", "0.weight 0.bias"),
    ],
)
def test_of_a_few_keys_or_of_others_there_is_no_prefix(missing: str, unexpected: str) -> None:
    assert prefix_is(listed(MISSING, missing, 8), listed(UNEXPECTED, unexpected, 9)) == []


def test_a_part_that_the_other_lacks_leaves_the_prefix_of_all_the_rest() -> None:
    lists = listed(MISSING, OF_A_MODEL, 8), listed(UNEXPECTED, before("bert.") + " cls.weight", 9)
    assert prefix_is(*lists) == [SignRole.NAMES]


@pytest.mark.parametrize(
    ("unexpected", "under"),
    [
        ("state_dict", "state_dict"),
        ("epoch model optimizer", "model"),
        ("epoch", ""),
        ("model.a model", ""),
        ("a.w", ""),
    ],
)
def test_a_checkpoint_that_was_never_opened_up_is_told_by_its_keys(unexpected: str, under: str) -> None:
    found = [*listed(MISSING, "module.a.w", 8), *listed(UNEXPECTED, unexpected, 9)]
    assert holder(found) == under
    roles = [match.role for match in with_lists_compared(found, Log(), PREFIX) if match.slug == MODEL]
    assert roles == [SignRole.HINTS, SignRole.NAMES if under else SignRole.HINTS]
