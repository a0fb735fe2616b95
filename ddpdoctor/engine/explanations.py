"""What in a training script may have brought about the illness that a run of it has shown."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.engine.registry import Check


class Illness(msgspec.Struct, frozen=True):
    """An illness that a run has shown.

    Args:
        slug: of its check.
        lines: files and lines of code, in one of which it lies; None: what brings it about may stand anywhere.
    """

    slug: str
    lines: tuple[tuple[str, int], ...] | None = None


class Explanation(msgspec.Struct, frozen=True):
    """A finding in the script, and the slugs of the illnesses that may come of it."""

    check: Check
    severity: Severity
    finding: Finding
    slugs: tuple[str, ...]
