"""Files of which each rank has one of its own: what it tells that some ranks lack theirs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.log import SignMatch

PART: Final = "part"
"""The word of a sign that is the number in a file's name."""


def without_parts_that_all_lack(seen: Iterable[SignMatch]) -> list[SignMatch]:
    """The sightings without files that are numbered otherwise than the rank that lacks them; without any where rank 0 lacks its own:
    then the folder isn't there, or another one was meant."""
    every = list(seen)
    nobody_has = any(_number(match) == 0 for match in every)
    return [match for match in every if PART not in match.words or (not nobody_has and _may_be_own(match))]


def _number(one: SignMatch) -> int | None:
    return int(one.words[PART]) if PART in one.words else None


def _may_be_own(one: SignMatch) -> bool:
    return one.line.rank is None or one.line.rank == _number(one)
