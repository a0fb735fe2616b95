"""Many snapshots in a row are read and judged as each is by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, Finding
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.examination import Examination, examine
from ddpdoctor.engine.registry import Check, Result
from ddpdoctor.engine.snapshot_series import SnapshotSeries
from ddpdoctor.engine.snapshots import SnapshotError, decode_snapshot, encode_snapshot
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.fleet_sweep.comparable import COMPARED_GROUPS, OwnWords, comparable_facts
from ddpdoctor.fleet_sweep.judging import FleetJudge
from tests.support.fixture_hosts import HEALTHY, healthy_names, host_cases
from tests.unit.engine.test_snapshots import WRONG

FILES = {name: (HEALTHY / f"{name}.json").read_bytes() for name in healthy_names()}


def sick_files() -> dict[str, bytes]:
    """One sick host of every illness."""
    cases = {case.slug: case for case in host_cases(kind="sick-")}
    return {case.id: encode_snapshot(case.snapshot()) for case in cases.values()}


def untimed(examination: Examination) -> list[Result]:
    """Its results, without how long judging took."""
    return [msgspec.structs.replace(result, seconds=0.0) for result in examination.results]


def test_each_host_is_judged_as_it_is_alone() -> None:
    series = SnapshotSeries(all_checks())
    # Twice, so that what is remembered is used.
    for name, content in [*FILES.items(), *sick_files().items(), *FILES.items()]:
        host = series.read(content, name)
        alone = decode_snapshot(content, name)
        assert msgspec.to_builtins(host.snapshot) == msgspec.to_builtins(alone), name
        assert untimed(series.examine(host)) == untimed(examine(alone, None, all_checks())), name


def with_a_change(facts: Any, random: Random) -> Any:
    """The same JSON, in which one value is another: of many hosts hardly two differ in the same."""
    if isinstance(facts, dict | list) and facts:
        changed = facts.copy()
        place = random.choice(list(facts) if isinstance(facts, dict) else range(len(facts)))
        if isinstance(facts, list) and random.random() < 0.1:
            return changed[:place] if random.random() < 0.5 else [*changed, changed[place]]
        changed[place] = facts[place] if place == "type" else with_a_change(facts[place], random)
        return changed
    if isinstance(facts, bool) or facts is None:
        return not facts
    if isinstance(facts, int | float):
        return random.choice((facts + 1, 0, facts * 2))
    return random.choice((f"{facts}1", "", "x" * 17, facts.upper())) if isinstance(facts, str) else facts


def changed_hosts(name: str, count: int) -> Iterator[tuple[bytes, Snapshot]]:
    """Hosts like that one, each with one to six values of its own, and those of one before it."""
    random = Random(name)
    template = json.loads(FILES[name])
    groups = [group for group, facts in template.items() if isinstance(facts, dict)]
    earlier = [template]
    while len(earlier) <= count:
        facts = dict(random.choice(earlier))
        for group in random.choices(groups, k=random.randint(1, 6)):
            facts[group] = with_a_change(facts[group], random)
        content = json.dumps(facts).encode()
        # Not every value may be any other.
        with suppress(SnapshotError):
            alone = decode_snapshot(content, name)
            earlier.append(facts)
            yield content, alone


def compare_one_by_one(name: str, count: int) -> None:
    series = SnapshotSeries(all_checks())
    judge = FleetJudge(())
    for content, alone in changed_hosts(name, count):
        host = series.read(content, name)
        assert msgspec.to_builtins(host.snapshot) == msgspec.to_builtins(alone)
        assert untimed(series.examine(host)) == untimed(examine(alone, None, all_checks())), content
        judge.judge(content, name)
        own = OwnWords(alone)
        pairs = {
            pair for group in COMPARED_GROUPS for pair in own.replaced(comparable_facts(group, getattr(alone, group)))
        }
        assert {*judge.sweep.facts_of(judge.sweep.hosts[alone.host])} - pairs == {
            ("tool_version", json.dumps(alone.tool_version))
        }


def test_hosts_that_differ_in_some_values_are_judged_as_each_is_alone() -> None:
    compare_one_by_one("h100x8-training", 40)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_many_hosts_that_differ_in_some_values_are_judged_as_each_is_alone(name: str) -> None:
    compare_one_by_one(name, 100)


def test_a_check_is_asked_again_only_where_it_sees_a_difference() -> None:
    asked: list[object] = []

    def predicate(machine: Machine, gpus: Maybe[Gpus]) -> Iterator[Finding]:
        """A page."""
        asked.append(machine.usable_cores)
        if machine.usable_cores == 200 and not isinstance(gpus, Unknown):
            yield Finding(f"{[device.temperature for device in gpus.devices]}")

    predicate.__annotations__ = {"machine": "Machine", "gpus": "Maybe[Gpus]"}
    series = SnapshotSeries([Check("made-up", FAIL, predicate)])
    template = json.loads(FILES["h100x8-slurm"])

    def summaries(cores: int, number: int) -> list[str]:
        template["machine"] |= {"usable_cores": cores, "memory_available": number}
        for device in template["gpus"]["devices"]:
            device["temperature"] = number
        examination = series.examine(series.read(json.dumps(template).encode(), "x"))
        return [finding.summary for _, _, finding in examination.findings]

    for number in range(30):
        assert summaries(8, number) == []
    learned = len(asked)
    assert learned < 10
    assert [summaries(200, number) for number in range(30, 34)] == [[f"{[number] * 8}"] for number in range(30, 34)]
    assert [summaries(8, 30) for _ in range(30)] == [[]] * 30
    assert len(asked) < learned + 10


def test_another_number_of_ranks_is_another_judgement() -> None:
    (name, content), *_ = FILES.items()
    for nproc in (1, 8):
        series = SnapshotSeries(all_checks(), nproc)
        host = series.read(content, name)
        assert untimed(series.examine(host)) == untimed(examine(host.snapshot, nproc, all_checks()))


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_snapshot_is_refused_in_the_same_words(kind: str) -> None:
    content, words = WRONG[kind]
    with pytest.raises(SnapshotError, match=words):
        SnapshotSeries(()).read(content, "host.json")


def test_facts_that_cannot_be_are_not_taken() -> None:
    content = json.loads(FILES["h100x8-slurm"])
    content["driver"]["libcuda_path"] = "-rf /; reboot"
    content["host"] = "\x1b[31mnode"
    host = SnapshotSeries(()).read(json.dumps(content).encode(), "host.json")
    assert "not taken" in str(host.snapshot.driver)
    assert host.snapshot.host == ""


def test_hosts_of_which_nothing_is_alike_are_forgotten_again() -> None:
    series = SnapshotSeries(())
    for number in range(500):
        series.read(encode_snapshot(Snapshot(host=f"n{number}")), "x")
    assert series.read(encode_snapshot(Snapshot(host="n1")), "x").snapshot.host == "n1"
