"""The lists of keys that don't fit a checkpoint, held against each other."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.log import LogLine, Sighting
from ddpdoctor.knowledge.log_key_lists import MODEL, PREFIX, holder, with_lists_compared
from ddpdoctor.log_signs import Role

CUT = "..."
MISSING, UNEXPECTED = "Missing key(s) in state_dict: ", "Unexpected key(s) in state_dict: "


def listed(sign: str, keys: str, number: int, rank: int | None = None) -> list[Sighting]:
    """What the signs of both illnesses find in such a line."""
    key, *more = keys.split()
    names = ", ".join(f'"{one}"' for one in (key, *more) if one != CUT)
    line = LogLine(file=0, number=number, text=f"{sign}{names}" + ("..." if CUT in more else ". "), rank=rank)
    words = {"missing" if sign == MISSING else "unexpected": key}
    found = [Sighting(slug=MODEL, sign=sign, role=Role.HINTS, line=line, words=words)]
    if key.startswith("module."):
        found.append(Sighting(slug=PREFIX, sign=f'{sign}"module.', role=Role.HINTS, line=line))
    return found


def prefix_is(*lists: list[Sighting]) -> list[Role]:
    return [one.role for one in with_lists_compared([one for each in lists for one in each]) if one.slug == PREFIX]


@pytest.mark.parametrize(("missing", "unexpected"), [("module.a", "a"), ("a", "module.a")])
def test_the_prefix_in_one_list_of_two_is_a_wrappers(missing: str, unexpected: str) -> None:
    assert prefix_is(listed(MISSING, missing, 8), listed(UNEXPECTED, unexpected, 9)) == [Role.NAMES]


def test_the_prefix_in_both_lists_is_none() -> None:
    assert prefix_is(listed(MISSING, "module.a", 8), listed(UNEXPECTED, "module.b", 9)) == []


def test_a_single_list_only_hints() -> None:
    assert prefix_is(listed(MISSING, "module.a", 8)) == [Role.HINTS]


def headline(model: str, number: int) -> list[Sighting]:
    text = f"RuntimeError: Error(s) in loading state_dict for {model}:"
    line = LogLine(file=0, number=number, text=text)
    return [Sighting(slug=MODEL, sign="Error(s) in loading state_dict for", role=Role.HINTS, line=line)]


@pytest.mark.parametrize(
    ("model", "sign", "keys", "roles"),
    [
        ("DistributedDataParallel", UNEXPECTED, "module.a", []),
        ("DataParallel", UNEXPECTED, "module.a ...", []),
        ("DistributedDataParallel", MISSING, "module.a", []),
        ("DistributedDataParallel", MISSING, "module.a ...", [Role.HINTS]),
        ("Net", UNEXPECTED, "module.a", [Role.HINTS]),
    ],
)
def test_of_a_wrapped_model_a_single_list_has_the_prefix_anyway(
    model: str, sign: str, keys: str, roles: list[Role]
) -> None:
    assert prefix_is(headline(model, 7), listed(sign, keys, 8)) == roles


def test_lists_of_different_messages_and_ranks_are_not_compared() -> None:
    assert prefix_is(listed(MISSING, "module.a", 8), listed(UNEXPECTED, "a", 90)) == [Role.HINTS]
    assert prefix_is(listed(MISSING, "module.a", 8, rank=0), listed(UNEXPECTED, "a", 9, rank=1)) == [Role.HINTS]


@pytest.mark.parametrize(
    ("missing", "unexpected"), [("module.a.w", "b.w"), ("module.a.w", "state_dict"), ("a", "module.b c")]
)
def test_the_prefix_on_keys_that_the_other_list_has_not_is_no_wrappers(missing: str, unexpected: str) -> None:
    assert prefix_is(listed(MISSING, missing, 8), listed(UNEXPECTED, unexpected, 9)) == []


def test_of_lists_that_are_cut_short_the_same_part_of_the_model_will_do() -> None:
    assert prefix_is(listed(MISSING, "module.a.w ...", 8), listed(UNEXPECTED, "a.b ...", 9)) == [Role.NAMES]
    assert prefix_is(listed(MISSING, "module.a.w ...", 8), listed(UNEXPECTED, "epoch state_dict", 9)) == []


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
    roles = [one.role for one in with_lists_compared(found) if one.slug == MODEL]
    assert roles == [Role.HINTS, Role.NAMES if under else Role.HINTS]
