"""What the checks themselves say of an illness that a log names: how bad it is, and what facts decide it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from ddpdoctor.base.findings import FAIL
from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.engine.registry import Catalogue, Check

BETWEEN_RANKS = frozenset({"meeting", "fleet", "hang", "rdma"})
"""Facts of several ranks, or of links with two ends: what a rank says of these may be another's doing."""
MEETING = "join"
"""The family of what keeps the nodes from coming together; what of it a log alone shows is between ranks, too."""


@cache
def is_grave(catalogue: Catalogue, slug: str, sign: str = "") -> bool:
    """Whether it stops a training; sign: whether these words of it are those of one that has ended."""
    known = catalogue.get(slug)
    return known is None or known.severity is FAIL or any(said.fatal for said in _signs_of(catalogue, slug, sign))


def is_about_others(catalogue: Catalogue, slug: str) -> bool:
    """Whether it lies between ranks or hosts, so that each of them may only be the one that notices."""
    known = catalogue.get(slug)
    if known is None or "processes" in known.groups:
        return False
    return known.family == MEETING or bool(known.groups & BETWEEN_RANKS)


def is_of_network(catalogue: Catalogue, slug: str) -> bool:
    """Whether it keeps ranks from reaching each other."""
    known = catalogue.get(slug)
    return known is not None and bool(known.groups & {"network", "meeting"})


NOT_OF_A_HOST: Final = frozenset(
    {"environment", "fleet", "hang", "log", "meeting", "network", "target_python", "processes", "smoke", "torch"}
)
"""Facts of a run, of its settings, of Python's packages, or of several hosts."""


@cache
def is_of_host(catalogue: Catalogue, slug: str) -> bool:
    """Whether the host itself is sick, as by a GPU or a disk, whatever the run makes of it."""
    known = catalogue.get(slug)
    return known is not None and not known.groups & NOT_OF_A_HOST


@cache
def is_certain(catalogue: Catalogue, slug: str, sign: str) -> bool:
    """Whether that sign counts only with another text near it: it says more than the same text by itself."""
    return any(said.near for said in _signs_of(catalogue, slug, sign))


@cache
def names_speaker(catalogue: Catalogue, slug: str, sign: str) -> bool:
    """Whether the word `rank` of that sign is the rank that says it."""
    return any(said.names_speaker for said in _signs_of(catalogue, slug, sign))


def _signs_of(catalogue: Catalogue, slug: str, text: str) -> Iterator[LogSign]:
    known = catalogue.get(slug)
    return (sign for sign in (catalogue.signs_of(known) if known else ()) if sign.text == text)


def by_log_alone(check: Check) -> bool:
    """Whether a log is all that it judges."""
    return check.groups == {"log"}
