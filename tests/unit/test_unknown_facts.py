"""No sick host is called healthy because the fact that gives it away could not be learned."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddpdoctor.facts.planning import plan_for
from ddpdoctor.facts.snapshot import GROUPS, Snapshot
from ddpdoctor.registry import Why, all_checks, diagnose, find_check
from tests.fixture_hosts import HOSTS, fixture_snapshot, judge, lay_over, read_fixture, to_snapshot

FAMILIES = ("torch", "cuda", "loading", "libraries", "driver", "gpu", "container")
SICK = [path for one in all_checks() if one.family in FAMILIES for path in sorted((HOSTS / one.slug).glob("sick-*"))]
UNKNOWN = {"type": "unknown", "reason": "could not be read"}


def with_one_unknown(facts: dict[str, Any], groups: set[str]) -> Iterator[tuple[str, Snapshot]]:
    """The host with each group, each field, and each field of all GPUs and of the last GPU unknown."""
    for group in sorted(groups):
        changes: dict[str, dict[str, Any]] = {group: {group: UNKNOWN}}
        if facts[group]["type"] != "unknown":
            changes |= {f"{group}.{field}": {group: {field: UNKNOWN}} for field in facts[group]}
            gpus = facts[group]["devices"] if group == "gpus" else ()
            for which in ("*", str(len(gpus) - 1)) if gpus else ():
                changes |= {f"gpus.{which}.{one}": {group: {"devices": {which: {one: UNKNOWN}}}} for one in gpus[0]}
        for name, change in changes.items():
            with contextlib.suppress(msgspec.ValidationError):  # a field that is always known
                yield name, to_snapshot(lay_over(facts, change))


@pytest.mark.parametrize("path", SICK, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_sick_host_with_an_unknown_fact_never_passes(path: Path) -> None:
    fixture = read_fixture(path)
    snapshot = fixture_snapshot(fixture)
    plan = plan_for(snapshot, fixture.plan.get("nproc"))
    one = find_check(path.parent.name)
    tried = 0
    for name, changed in with_one_unknown(msgspec.to_builtins(snapshot), one.groups & set(GROUPS)):
        (result,) = diagnose(changed, plan, [one])
        assert not result.passed, f"passes although {name} is unknown"
        if result.not_tested:
            assert result.not_tested.why is not Why.CRASHED, (name, result.not_tested)
            assert result.findings or result.not_tested.why is Why.UNKNOWN, (name, result.not_tested)
        tried += 1
    assert tried >= len(one.groups)


@pytest.mark.parametrize(
    "name",
    [
        "torch-cpu-only/near-miss-bus-unseen",
        "compute-mode-exclusive/near-miss-processes-untold",
        "cuda-compat-unsupported/near-miss-not-asked",
    ],
)
def test_what_decides_and_is_unknown_is_said(name: str) -> None:
    slug = name.partition("/")[0]
    result = judge(HOSTS / f"{name}.json", slug)
    assert result.not_tested
    assert result.not_tested.why is Why.UNKNOWN
