"""The checks that tests ask for by their slug."""

from __future__ import annotations

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.registry import Check


def find_check(slug: str) -> Check:
    """The check of that slug."""
    check = catalogue().get(slug)
    assert check is not None, slug
    return check
