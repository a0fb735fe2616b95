"""The JSON of `zombies` keeps the contract of every command that judges."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.gpus import GpuHolder
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.processes.leftovers.all_kinds import leftovers_of
from ddpdoctor.processes.leftovers.ending import Endings
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.processes.render_zombies import zombies_report
from ddpdoctor.report.contract import to_json
from ddpdoctor.report.reported_leftovers import Fate, LeftoverKind
from tests.support.process_trees import SOMEBODY, Host
from tests.support.registered_checks import find_check
from tests.support.report_schema import json_schema
from tests.unit.processes.test_leftovers import segments


def report(
    found: tuple[Leftover, ...], verdict: Verdict = Verdict.FAIL, ending: Endings | None = None
) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(to_json(zombies_report(found, (), (), ending, verdict, catalogue())))
    return told


def host_with_all_kinds() -> tuple[Leftover, ...]:
    host = Host(Random(1))
    host.rank(0, 1)
    host.rank(0, 1, extra={"MASTER_PORT": "29700"}, uid=SOMEBODY, user="bob")
    host.worker()
    parent = host.add(age=50_000.0)
    host.add(state="Z", parent=parent.pid)
    host.hold(host.add(age=900.0, command="python serve.py"), 1)
    host.holders[2].append(GpuHolder(pid=99_999, memory=9 << 30))
    return leftovers_of(*host.facts(), segments(1000, 0))


def test_whatever_is_left_over_is_a_finding_with_a_fix() -> None:
    found = host_with_all_kinds()
    assert {one.kind for one in found} >= set(LeftoverKind) - {LeftoverKind.HELPER}
    told = report(found)
    assert told["verdict"] == "fail"
    assert len(told["findings"]) == len(found) == len(told["leftovers"])
    for one in told["findings"]:
        assert one["severity"] == "fail"
        assert one["family"] == find_check(one["slug"]).family
        assert one["summary"]
        assert one["cause"]
        assert one["evidence"]
        assert one["fixes"]
    assert [finding["slug"] for finding in told["findings"]] == [catalogue().slug_for(one.kind) for one in found]


def test_nothing_left_is_no_finding() -> None:
    told = report((), Verdict.OK)
    assert (told["verdict"], told["findings"]) == ("ok", [])


@pytest.mark.parametrize(("fate", "findings"), [(Fate.ENDED, 0), (Fate.GONE, 0), (Fate.LEFT, 1), (Fate.STAYS, 1)])
def test_what_was_ended_is_no_finding_any_more(fate: Fate, findings: int) -> None:
    host = Host(Random(1))
    host.rank(0, 1)
    found = leftovers_of(*host.facts(), SharedMemory(size=1, free=1))
    ending = Endings()
    ending.add(found[0], fate)
    assert len(report(found, ending=ending)["findings"]) == findings


def test_its_own_fields_are_described() -> None:
    schema = json_schema()["$defs"]
    assert all(f"`{name}`" in schema["Report"]["description"] for name in ("leftovers", "not_seen", "freed"))
    reported = schema["ReportedLeftover"]
    assert not [name for name in reported["properties"] if not re.search(rf"\b{name}\b", reported["description"])]
