"""What a package requires of others, as its metadata says it (Requires-Dist)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@cache
def requirement_in(text: str) -> tuple[str, Requirement] | None:
    """A line of Requires-Dist: the other package's name, normalised, and what is required of it; None if it can't be read."""
    # Here and not above: it takes as long to load as a tenth of a look at a host, and on many there is nothing to read.
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return canonicalize_name(requirement.name), requirement
