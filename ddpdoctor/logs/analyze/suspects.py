"""The illnesses that a failure may come from, the likeliest first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import reduce
from typing import Final

import msgspec

from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import SignMatch
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.failures import Failure, FailureKind
from ddpdoctor.logs.analyze.illness_traits import is_certain, is_grave
from ddpdoctor.logs.analyze.timeline import Timeline

MAX_SUSPECTS: Final = 3
"""Suspects that are named."""


class EvidencePosition(IntEnum):
    """The place of an illness's best sign, the most telling first."""

    IN_THE_FAILURE = 0
    SHORTLY_BEFORE = 1
    HINT_CONFIRMED = 2
    SAME_MOMENT = 3
    HINT_IN_THE_FAILURE = 4
    LATER = 5
    HINT_NEAR = 6
    HINT_ELSEWHERE = 7
    OUTLIVED = 8


WHYS: Final = {
    EvidencePosition.IN_THE_FAILURE: "its own words stand in the first failure",
    EvidencePosition.SHORTLY_BEFORE: "its own words stand just before or behind the first failure, of the same rank",
    EvidencePosition.HINT_CONFIRMED: "the first failure fits it, and its own words stand elsewhere in the log",
    EvidencePosition.SAME_MOMENT: "another rank says its own words before the first failure, or just about then",
    EvidencePosition.HINT_IN_THE_FAILURE: "the words of the first failure fit it, and others as well",
    EvidencePosition.LATER: "its own words come after the first failure",
    EvidencePosition.HINT_NEAR: "words just before the first failure fit it, and others as well",
    EvidencePosition.HINT_ELSEWHERE: "words elsewhere in the log fit it, and others as well",
    EvidencePosition.OUTLIVED: "its words were said long before, and the run went on",
}
SURE: Final = EvidencePosition.HINT_CONFIRMED


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """An illness that the log speaks of. sure: its own sign was seen where the run first failed; else it is one hypothesis of several.
    why: why it stands at this place in the order, in a sentence. compared: that sentence is what a comparison of the ranks found."""

    slug: str
    sure: bool
    sightings: tuple[SignMatch, ...]
    why: str = ""
    compared: bool = False


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """An illness with the place of its best sign. certain: a sign of it counts only beside another text. grave: it stops a training.
    sums_up: its words only say that something failed."""

    slug: str
    place: EvidencePosition
    sightings: tuple[SignMatch, ...]
    certain: bool
    grave: bool
    sums_up: bool

    @property
    def named(self) -> bool:
        return any(sighting.role is SignRole.NAMES for sighting in self.sightings)

    @property
    def order(self) -> tuple[int, bool, bool, bool, int, int]:
        """Sort by what tells a cause, is certain and grave, then by what more and longer signs speak for. Of what only sums up, hints nearby may
        tell the cause."""
        signs = {sighting.sign for sighting in self.sightings}
        longest = max(map(len, signs), default=0)
        yields = self.sums_up and self.place is EvidencePosition.HINT_IN_THE_FAILURE
        place = EvidencePosition.HINT_NEAR if yields else self.place
        return place, self.sums_up, not self.certain, not self.grave, -len(signs), -longest

    def suspect(self, *, sure: bool = False) -> Suspect:
        """Turn it into one of the verdict's."""
        return Suspect(slug=self.slug, sure=sure, sightings=self.sightings, why=WHYS[self.place])


def ranked_suspects(lead: Failure, own: Sequence[Failure], course: Timeline) -> list[Ranked]:
    """Rank all that any failure speaks of, by what it has to do with the one that leads."""
    seen: dict[str, list[tuple[EvidencePosition, SignMatch]]] = {}
    catalogue = course.catalogue
    of_no_illness = (catalogue.slug_for(LogTopic.MISTAKE), catalogue.slug_for(LogTopic.STOPPED))
    for failure in own:
        for sign in failure.signs:
            if sign.slug not in of_no_illness:
                seen.setdefault(sign.slug, []).append((_place(sign, failure, lead, course), sign))
    found = [_ranked(slug, placed, catalogue) for slug, placed in seen.items()]
    return sorted(found, key=lambda candidate: candidate.order)


def _ranked(slug: str, placed: Sequence[tuple[EvidencePosition, SignMatch]], catalogue: Catalogue) -> Ranked:
    check = catalogue.get(slug)
    sightings = tuple(sign for _, sign in sorted(placed, key=lambda candidate: candidate[0]))
    return Ranked(
        slug=slug,
        place=reduce(_better, (place for place, _ in placed)),
        sightings=sightings,
        certain=any(is_certain(catalogue, slug, sighting.sign) for sighting in sightings),
        grave=is_grave(catalogue, slug),
        sums_up=check is not None and check.log.sums_up,
    )


def _better(old: EvidencePosition, new: EvidencePosition) -> EvidencePosition:
    elsewhere = {EvidencePosition.LATER, EvidencePosition.SAME_MOMENT}
    if EvidencePosition.HINT_IN_THE_FAILURE in (old, new) and {old, new} & elsewhere:
        return EvidencePosition.HINT_CONFIRMED
    return min(old, new)


def _place(sign: SignMatch, failure: Failure, lead: Failure, course: Timeline) -> EvidencePosition:
    names = sign.role is SignRole.NAMES
    # Several illnesses may share the very words of the failure.
    if failure is lead or any(candidate.sign == sign.sign for candidate in lead.signs):
        return EvidencePosition.IN_THE_FAILURE if names else EvidencePosition.HINT_IN_THE_FAILURE
    if course.outlived(failure):
        return EvidencePosition.OUTLIVED
    if failure.kind is FailureKind.SAID and course.near(failure, lead):
        return EvidencePosition.SHORTLY_BEFORE if names else EvidencePosition.HINT_NEAR
    if not names:
        return EvidencePosition.HINT_ELSEWHERE
    return EvidencePosition.LATER if course.clearly_before(lead, failure) else EvidencePosition.SAME_MOMENT


def chosen(ranked: Sequence[Ranked]) -> tuple[tuple[Suspect, ...], tuple[Suspect, ...]]:
    """The suspects, and what was seen beside. Where one is named by its own sign, hints at others are left out."""
    if not ranked:
        return (), ()
    first = ranked[0]
    if first.place > SURE:
        standing = [candidate for candidate in ranked if candidate.place < EvidencePosition.OUTLIVED] or [first]
        suspects = tuple(candidate.suspect() for candidate in standing[:MAX_SUSPECTS])
    else:
        alike = [
            candidate
            for candidate in ranked[1:]
            if candidate.place <= EvidencePosition.SAME_MOMENT
            and (candidate.named and candidate.grave and not candidate.sums_up)
        ]
        suspects = (first.suspect(sure=True), *(candidate.suspect() for candidate in alike[: MAX_SUSPECTS - 1]))
    # What the failure itself names besides is another side of the same event.
    others = [candidate for candidate in ranked if candidate.place is not EvidencePosition.IN_THE_FAILURE]
    return suspects, beside(others, suspects)


def beside(ranked: Sequence[Ranked], suspects: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """List what is named by signs of its own, and is no suspect."""
    told = {suspect.slug for suspect in suspects}
    return tuple(candidate.suspect() for candidate in ranked if candidate.named and candidate.slug not in told)
