"""What a check declares of how the analysis of logs is to treat its signs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.findings import Fix
from ddpdoctor.facts.log import Log, LoggedException, SignMatch


class Particulars(NamedTuple):
    """In place of the page's title, of its section on fixes, and of that on the reason; empty where that one will do."""

    summary: str = ""
    fixes: tuple[Fix, ...] = ()
    cause: str = ""
    of_everybody: bool = False
    """The summary holds wherever it is asked, so that it isn't told who says it."""
    decided: bool = False
    """One of the fixes shows what it is like now: no further command is to."""


class LogTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Pure functions and data; what is left out means that nothing is special. Functions are given the check's slug, or only its own
    sightings.

    Args:
        refuted: whether other lines show that a sighting of the check is about something else.
        revises: the sightings of all checks, as they are when those of this check were held against the others.
        recovered: exceptions with signs of the check, noise among them, that the log shows to have been got over.
        particulars: what the log itself tells, beyond the check's page.
        setting: the environment variable whose value the word `name` of its signs is.
        sums_up: its signs only say that something failed; beside them in the same failure may stand why.
    """

    refuted: Callable[[SignMatch, Log], bool] | None = None
    revises: Callable[[Sequence[SignMatch], Log, str], list[SignMatch]] | None = None
    recovered: Callable[[Sequence[SignMatch], Log], list[LoggedException]] | None = None
    particulars: Callable[[Sequence[SignMatch], Log], Particulars] | None = None
    setting: str = ""
    sums_up: bool = False


PLAIN_SIGNS: Final = LogTraits()
"""Nothing is special."""
