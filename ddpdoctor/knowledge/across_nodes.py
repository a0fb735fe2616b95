"""Which settings a job's nodes must agree on, and what comes of it where they don't."""

from __future__ import annotations

from ddpdoctor.knowledge.known_settings import known_settings


def concerns_other_nodes(name: str) -> bool:
    """Whether the value on one node matters to the others: it is to be equal, or has to be right on each."""
    known = known_settings().get(name)
    return known is not None and known.across != ""


def must_agree(name: str) -> bool:
    """Whether all nodes should have the same value."""
    known = known_settings().get(name)
    return known is not None and known.across == "equal"
