"""Signs that turn out to be about something else, or got over: what elsewhere in the log speaks against them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Final

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LoggedException, LogLine, SignMatch
from ddpdoctor.logs.analyze.rules import LogRule

SCALE: Final = "reducing loss scale to"
_LOSS: Final = compile_lazily(r"(?i)\bloss\w*[\"']?\W{1,4}\d")


@cache
def good_news(catalogue: Catalogue) -> frozenset[str]:
    """Collect texts of signs that refute others: they need no word that they are harmless."""
    return frozenset(sign.text for check in catalogue.checks for sign in catalogue.signs_of(check) if sign.refutes)


class SightingContext:
    """What a sighting is held against. seen: those that are left, it among them."""

    def __init__(self, seen: Sequence[SignMatch], log: Log, catalogue: Catalogue) -> None:
        self.seen = seen
        self.log = log
        self.catalogue = catalogue

    @cached_property
    def last_words(self) -> dict[int | None, str]:
        """What each rank said last."""
        return {words.rank: words.line.text for words in self.log.last}

    @cached_property
    def is_done(self) -> bool:
        """Whether somebody came to the end, and the others only miss the store."""
        done = any(_DONE.search(text) for text in self.last_words.values())
        return done and all(match.sign == SHOULD_DUMP for match in self.seen)

    @cached_property
    def recovered(self) -> list[LoggedException]:
        """Exceptions of which their own checks say that the log shows them to have been got over."""
        own = grouped(self.log.sightings, lambda sighting: sighting.slug)
        known = ((self.catalogue.get(slug), seen) for slug, seen in own.items())
        return [
            raised
            for check, seen in known
            if check and check.log.recovered
            for raised in check.log.recovered(seen, self.log)
        ]


def real_sightings(log: Log, catalogue: Catalogue) -> SightingContext:
    """Keep the sightings that nothing speaks against, as each check revises those that holds its own against the others."""
    real = [sighting for sighting in log.sightings if not sighting.quoted and sighting.role is not SignRole.NOISE]
    for rule in REFUTATIONS:
        context = SightingContext(real, log, catalogue)
        real = [match for match in real if not rule(match, context)]
    for check in catalogue.checks:
        if check.log.revises:
            real = check.log.revises(real, log, check.slug)
    return SightingContext(real, log, catalogue)


def _is_misread(match: SignMatch, context: SightingContext) -> bool:
    check = context.catalogue.get(match.slug)
    return check is not None and check.log.refuted is not None and check.log.refuted(match, context.log)


def _is_got_over(match: SignMatch, context: SightingContext) -> bool:
    return any(match.line.order == raised.line.order for raised in context.recovered)


def _is_contradicted(match: SignMatch, context: SightingContext) -> bool:
    check = context.catalogue.get(match.slug)
    refuting = [sign for sign in context.catalogue.signs_of(check) if match.sign in sign.refutes] if check else []
    return any(
        other.sign == sign.text
        and other.slug == match.slug
        and may_be_of_one(other.line, match.line)
        and (not sign.refutes_earlier or other.line.order > match.line.order)
        for sign in refuting
        for other in context.log.sightings
    )


def trains_behind(line: LogLine, log: Log) -> bool:
    """Whether steps follow whose loss is a number."""
    steps = log.steps
    if steps is None or SCALE in steps.text or not _LOSS.search(steps.text):
        return False
    return steps.file == line.file and steps.order > line.order


def may_be_of_one(one: LogLine, other: LogLine) -> bool:
    """Whether nothing says that they are of two ranks or hosts."""
    ranks, hosts = {one.rank, other.rank} - {None}, {one.host, other.host} - {""}
    return one.file == other.file and len(ranks) < 2 and len(hosts) < 2


# --- what is said over and over while a rank waits ----------------------------------------------------------------------


SHOULD_DUMP: Final = 'Failed to check the "should dump" flag on TCPStore'
_DONE: Final = compile_lazily(
    r"(?i)\b(?:(?:training|run|job|all) (?:is |was )?"
    r"(?:finished|done|completed?)|final (?:model|weights)|exits? successfully|finished training|done training)\b"
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


def _is_wait_that_ended(match: SignMatch, context: SightingContext) -> bool:
    """Whether it is a wait, and not the last words of who waited."""
    if match.sign not in STILL_WAITING:
        return False
    end = context.last_words.get(match.line.rank, "")
    return context.is_done or match.sign not in end or match.times < STILL_WAITING[match.sign]


REFUTATIONS: Final = (
    LogRule("misread", "ckpt-world-size-mismatch/near-miss-nobody-has-it.log", _is_misread),
    LogRule("wait-that-ended", "healthy/dump-flag-after-the-end.log", _is_wait_that_ended),
    LogRule("contradicted", "apex-build-failed/near-miss-second-try.log", _is_contradicted),
    LogRule("got-over", "apex-build-isolation/near-miss-second-try.log", _is_got_over),
)
"""What drops a sighting; each is asked of those that the ones before it left."""
