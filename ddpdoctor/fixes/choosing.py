"""Which remedies are to be applied: as the user says, or the first of each finding; never two that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ddpdoctor.base.text import listed
from ddpdoctor.fixes.remedies import AppliableFix, Case


class FixChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for a case. remedy: None where it is left to the user; reason: why."""

    case: Case
    remedy: AppliableFix | None = None
    reason: str = ""


class Asker(Protocol):
    """Asks the user."""

    def which(self, case: Case, number: int, total: int) -> int | None:
        """The place of the chosen remedy; None: none of them."""

    def instead(self, remedy: AppliableFix, earlier: FixChoice) -> bool:
        """Whether this remedy is to be applied in place of that of the earlier choice, which contradicts it."""


def all_of(cases: Sequence[Case]) -> list[FixChoice]:
    """The first remedy of each case, but of those that contradict each other none: nobody is there to be asked."""
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
    """As the user says, one after the other."""
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
        if earlier.remedy is None or not contradictory(new.remedy, earlier.remedy):
            continue
        if not asker.instead(new.remedy, earlier):
            return [*found, FixChoice(case=new.case, reason=f"you kept the fix of {earlier.case.slug}")]
        found[place] = FixChoice(case=earlier.case, reason=f"you took the fix of {new.case.slug} instead")
    return [*found, new]


def contradictory(one: AppliableFix, other: AppliableFix) -> bool:
    """Whether both set the same variable, or limit, to something else."""
    return bool(_clash(one, other))


def _clash(one: AppliableFix, other: AppliableFix) -> str:
    """ "unset X against export X=1", "" where there is none."""
    theirs = {line.key: line for line in other.lines}
    clashes = ((line, theirs.get(line.key, line)) for line in one.lines)
    return next((f"`{mine.text}` against `{other.text}`" for mine, other in clashes if mine != other), "")
