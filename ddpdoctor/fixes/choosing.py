"""Chooses the fixes to apply: as the user says, or the first of each finding; never two that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ddpdoctor.base.text import listed
from ddpdoctor.fixes.appliable_fixes import AppliableFix, Case


class FixChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a case; remedy: None where it is left to the user; reason: why."""

    case: Case
    remedy: AppliableFix | None = None
    reason: str = ""


class Asker(Protocol):
    """Asks the user."""

    def which(self, case: Case, number: int, total: int) -> int | None:
        """Ask which remedy to apply. Returns its place; None: none of them."""

    def instead(self, remedy: AppliableFix, earlier: FixChoice) -> bool:
        """Ask whether this remedy is to be applied in place of that of the earlier choice, which contradicts it."""


def choose_first_of_each(cases: Sequence[Case]) -> list[FixChoice]:
    """Choose the first remedy of each case, but none of those that contradict each other: the user can't be asked."""
    found = []
    for case in cases:
        if not case.remedies:
            found.append(FixChoice(case=case, reason=case.reason))
            continue
        first = case.remedies[0]
        clashes = {
            other.slug: clash
            for other in cases
            if other is not case and other.remedies and (clash := _clash(first, other.remedies[0]))
        }
        if clashes:
            text = f"it contradicts the fix of {listed(clashes)}: {next(iter(clashes.values()))}"
            found.append(FixChoice(case=case, reason=text))
        else:
            found.append(FixChoice(case=case, remedy=first))
    return found


def ask_for_each(cases: Sequence[Case], asker: Asker) -> list[FixChoice]:
    """Ask the user case by case."""
    total = sum(bool(case.remedies) for case in cases)
    found: list[FixChoice] = []
    number = 0
    for case in cases:
        if not case.remedies:
            found.append(FixChoice(case=case, reason=case.reason))
            continue
        number += 1
        place = asker.which(case, number, total)
        if place is None:
            found.append(FixChoice(case=case, reason="you said no"))
        else:
            found = _with(found, FixChoice(case=case, remedy=case.remedies[place]), asker)
    return found


def _with(found: list[FixChoice], new: FixChoice, asker: Asker) -> list[FixChoice]:
    assert new.remedy is not None
    for place, earlier in enumerate(found):
        if earlier.remedy is None or not _clash(new.remedy, earlier.remedy):
            continue
        if not asker.instead(new.remedy, earlier):
            return [*found, FixChoice(case=new.case, reason=f"you kept the fix of {earlier.case.slug}")]
        found[place] = FixChoice(case=earlier.case, reason=f"you took the fix of {new.case.slug} instead")
    return [*found, new]


def _clash(first: AppliableFix, second: AppliableFix) -> str:
    """The first variable, or limit, that both set to something else: "unset X against export X=1"; "" where there is none."""
    lines = {line.key: line for line in second.lines}
    pairs = ((line, lines.get(line.key, line)) for line in first.lines)
    return next((f"`{line.text}` against `{against.text}`" for line, against in pairs if line != against), "")
