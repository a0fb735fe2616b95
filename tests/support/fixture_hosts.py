"""Reads fixtures/hosts: healthy hosts, and per illness what makes a host sick or nearly so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.checks.catalogue import find_check
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, diagnose
from ddpdoctor.facts.snapshot import Snapshot

HOSTS = Path(__file__).parent.parent.parent / "fixtures" / "hosts"
HEALTHY = HOSTS / "healthy"


class Fixture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host by what sets it apart: `facts` is laid over the healthy host `base` (objects merge, an object laid over a
    list names its items by index or "*", anything else replaces). `origin`: "recorded" or "hand-made"."""

    origin: str
    about: str
    base: str
    facts: dict[str, Any] = {}
    plan: dict[str, Any] = {}


def healthy_names() -> list[str]:
    return sorted(path.stem for path in HEALTHY.iterdir())


def healthy_facts(name: str) -> dict[str, Any]:
    """The snapshot as it stands in the file, with "origin" and "about" beside the facts."""
    facts: dict[str, Any] = json.loads((HEALTHY / f"{name}.json").read_text())
    return facts


def lay_over(below: Any, above: Any) -> Any:
    if isinstance(above, dict) and isinstance(below, list) and above and "type" not in above:
        items = list(below)
        for key, value in above.items():
            for index in range(len(items)) if key == "*" else [int(key)]:
                items[index] = lay_over(items[index], value)
        return items
    if (
        isinstance(above, dict)
        and isinstance(below, dict)
        and above.get("type", below.get("type")) == below.get("type")
    ):
        return {**below, **{key: lay_over(below.get(key), value) for key, value in above.items()}}
    return above


JSON_NAMES = {field.name: field.encode_name for field in msgspec.structs.fields(Snapshot)}
"""What a group of facts is called in a file, by its name in the code."""


def to_snapshot(facts: dict[str, Any]) -> Snapshot:
    """Groups by either name: a test's, or the file's."""
    return msgspec.convert({JSON_NAMES.get(name, name): group for name, group in facts.items()}, Snapshot)


def read_fixture(path: Path) -> Fixture:
    return msgspec.json.decode(path.read_bytes(), type=Fixture)


def fixture_snapshot(fixture: Fixture) -> Snapshot:
    return to_snapshot(lay_over(healthy_facts(fixture.base), fixture.facts))


def judge(path: Path, slug: str) -> Result:
    """What the check of that slug makes of a fixture."""
    fixture = read_fixture(path)
    snapshot = fixture_snapshot(fixture)
    plan = plan_for(snapshot, fixture.plan.get("nproc"))
    return diagnose(snapshot, plan, [find_check(slug)])[0]
