"""What a rank says over and over while it waits: only at its log's end does it tell of a failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ddpdoctor.facts.log import LastWords, SignMatch

SHOULD_DUMP: Final = 'Failed to check the "should dump" flag on TCPStore'
_DONE: Final = re.compile(
    r"(?i)\b(?:(?:training|run|job|all) (?:is |was )?"
    r"(?:finished|done|completed?)|final (?:model|weights)|finished training|done training)\b"
    r"(?!.{0,300}\b(?:epoch|step|iter|iteration|eval\w*|checkpoint)\b)"
)
"""The last words of one who came to the end: whoever is a little slower then finds no store any more."""
STILL_WAITING: Final[dict[str, int]] = {
    "Waiting in store based barrier to initialize process group for": 1,
    "has failed to send a keep-alive heartbeat to the rendezvous": 3,
    SHOULD_DUMP: 4,
}
"""Texts of signs, and how often it must have been said to count. A healthy run in which a rank comes late says them, too, and goes on; or
one whose first node, or rank, is done before the others, once or for each of the others, or each second until they are."""


def without_waits_that_ended(seen: Iterable[SignMatch], last: Iterable[LastWords]) -> list[SignMatch]:
    """The sightings without waits that are not the last words of who waited."""
    every, words = list(seen), list(last)
    ends = {word.rank: word.line.text for word in words}
    if all(match.sign == SHOULD_DUMP for match in every) and any(_DONE.search(word.line.text) for word in words):
        return []
    return [
        match
        for match in every
        if match.sign not in STILL_WAITING
        or (match.sign in ends.get(match.line.rank, "") and match.times >= STILL_WAITING[match.sign])
    ]
