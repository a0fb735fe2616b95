"""Reads fixtures/hosts: healthy hosts, and per illness what makes a host sick or nearly so."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, diagnose
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.registered_checks import find_check

HOSTS = Path(__file__).parent.parent.parent / "fixtures" / "hosts"
"""healthy/NAME.json, and SLUG.json with all cases of an illness by name: sick-..., near-miss-..."""
HEALTHY = HOSTS / "healthy"


class WrittenCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host by what sets it apart: `facts` is laid over the healthy host `base` (objects merge, an object laid over a
    list names its items by index or "*", anything else replaces). `origin`: "recorded" or "hand-made"."""

    origin: str
    about: str
    base: str
    facts: dict[str, Any] = {}
    plan: dict[str, Any] = {}


class HostCase(WrittenCase, frozen=True, kw_only=True):
    """A host that has an illness, or nearly has it."""

    slug: str
    name: str

    @property
    def id(self) -> str:
        return f"{self.slug}/{self.name}"

    @property
    def is_sick(self) -> bool:
        return self.name.startswith("sick-")

    @property
    def nproc(self) -> int | None:
        """Ranks on the host, where the case says how many."""
        return self.plan.get("nproc")

    def snapshot(self) -> Snapshot:
        """Its facts."""
        return to_snapshot(lay_over(healthy_facts(self.base), self.facts))


def slugs_with_hosts() -> list[str]:
    """The illnesses that have cases of hosts."""
    return sorted(path.stem for path in HOSTS.glob("*.json"))


def host_cases(slug: str = "", kind: str = "") -> list[HostCase]:
    """Cases of one illness or of all, by slug and name.

    Args:
        kind: how their names begin: "sick-", "near-miss-".
    """
    slugs = [slug] if slug else slugs_with_hosts()
    return [case for one_slug in slugs for case in _cases_of(one_slug) if case.name.startswith(kind)]


def host_case(name: str) -> HostCase:
    """The case of that name: "shm-too-small/sick-missing"."""
    slug, _, short = name.partition("/")
    (case,) = (case for case in _cases_of(slug) if case.name == short)
    return case


@cache
def _cases_of(slug: str) -> tuple[HostCase, ...]:
    path = HOSTS / f"{slug}.json"
    if not path.exists():
        return ()
    written = msgspec.json.decode(path.read_bytes(), type=dict[str, WrittenCase])
    return tuple(
        HostCase(slug=slug, name=name, **msgspec.structs.asdict(case)) for name, case in sorted(written.items())
    )


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


def judge(case: HostCase) -> Result:
    """What the check of its illness makes of it."""
    snapshot = case.snapshot()
    return diagnose(snapshot, plan_for(snapshot, case.nproc), [find_check(case.slug)])[0]
