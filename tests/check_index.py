"""The index of all checks by module: what checks/index.json is to say, so that a module is imported only when its checks are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.registry import Check, CheckListing, SkipReason, judge
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot

INDEX: Final = Path(__file__).parent.parent / "checks" / "index.json"


def listing_of(check: Check) -> CheckListing:
    """What its module says, and what it comes to where nothing is known but that nobody has tried anything."""
    skipped = judge(check, Snapshot(), Plan(1, "the index")).not_tested
    is_idle = skipped is not None and skipped.why is SkipReason.NOT_APPLICABLE
    return CheckListing(
        check.slug, tuple(sorted(check.groups)), skipped.reason if skipped is not None and is_idle else ""
    )


def index() -> str:
    """JSON with a check a line, by module and place in it."""
    catalogue().import_all()
    modules: dict[str, list[str]] = {}
    for check in all_checks():
        line = msgspec.json.encode(listing_of(check)).decode()
        modules.setdefault(check.module.removeprefix("ddpdoctor.checks."), []).append(line)
    listed = (f'"{module}": [\n' + ",\n".join(lines) + "\n]" for module, lines in modules.items())
    return "{\n" + ",\n".join(listed) + "\n}\n"
