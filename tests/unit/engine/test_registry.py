"""The engine: selection, what a check is given, what becomes of one that crashes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args, get_type_hints

import pytest

from ddpdoctor.api.check_pages import find_pages
from ddpdoctor.api.errors import UsageError
from ddpdoctor.base.findings import FAIL, Finding
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.catalogue import all_checks, all_prescriptions, select
from ddpdoctor.engine import registry
from ddpdoctor.engine.registry import Check, SkipReason, UnknownSelection, diagnose, requires
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.facts.snapshot import Snapshot

PLAN = Plan(1, "--nproc")


def judged(predicate: registry.Predicate, snapshot: Snapshot) -> registry.Result:
    return diagnose(snapshot, PLAN, [Check("made-up", FAIL, predicate)])[0]


def test_a_check_whose_facts_are_unknown_is_not_tested() -> None:
    def predicate(shared_memory: SharedMemory) -> Iterator[Finding]:
        yield Finding(f"never reached: {shared_memory.exists}")

    result = judged(predicate, Snapshot(shared_memory=Unknown("/dev/shm: Permission denied")))
    assert result.not_tested is not None
    assert result.not_tested.why is SkipReason.UNKNOWN
    assert result.not_tested.reason == "/dev/shm: Permission denied"
    assert not result.findings
    assert not result.passed


def test_a_check_that_takes_unknown_is_given_it() -> None:
    seen = []

    def predicate(shared_memory: Maybe[SharedMemory]) -> Iterator[Finding]:
        seen.append(shared_memory)
        yield from ()

    assert judged(predicate, Snapshot(shared_memory=Unknown("no"))).passed
    assert seen == [Unknown("no")]


def test_an_unknown_field_ends_the_check_and_keeps_what_it_found_before() -> None:
    def predicate(shared_memory: SharedMemory) -> Iterator[Finding]:
        yield Finding("found before")
        known(shared_memory.size)

    result = judged(predicate, Snapshot(shared_memory=SharedMemory(size=Unknown("no size"), free=1)))
    assert [finding.summary for finding in result.findings] == ["found before"]
    assert result.not_tested is not None
    assert result.not_tested.reason == "no size"


def test_a_check_with_nothing_to_look_at_is_not_called_fine() -> None:
    def predicate(plan: Plan) -> Iterator[Finding]:
        requires(plan.nproc > 1, "one rank only")
        yield from ()

    result = judged(predicate, Snapshot())
    assert not result.passed
    assert result.not_tested is not None
    assert result.not_tested.why is SkipReason.NOT_APPLICABLE


def test_a_crash_is_the_result_of_that_check_alone() -> None:
    def crashes(plan: Plan) -> Iterator[Finding]:
        yield Finding(str(1 // (plan.nproc - 1)))

    def finds(plan: Plan) -> Iterator[Finding]:
        yield Finding("found")

    first, second = diagnose(Snapshot(), PLAN, [Check("a", FAIL, crashes), Check("b", FAIL, finds)])
    assert first.not_tested is not None
    assert first.not_tested.why is SkipReason.CRASHED
    assert "ZeroDivisionError" in first.not_tested.reason
    assert not first.passed
    assert second.findings


def test_the_order_is_the_same_whichever_file_was_imported_first() -> None:
    ask = "from ddpdoctor.checks.catalogue import all_checks; print(*(check.slug for check in all_checks()))"
    orders = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for program in (ask, f"import ddpdoctor.checks.launch.accelerate; {ask}")
    }
    assert len(orders) == 1


def test_selection_by_slug_and_family() -> None:
    assert [one.slug for one in select(["shm-too-small"])] == ["shm-too-small"]
    family = select(["host"])
    assert {one.family for one in family} == {"host"}
    assert "shm-too-small" not in [one.slug for one in select(["host"], ["shm-too-small"])]
    assert len(select()) == len(all_checks())


@pytest.mark.parametrize(
    ("name", "nearest"), [("shm-to-small", "shm-too-small"), ("shm", "shm-too-small"), ("hots", "host")]
)
def test_a_misspelt_name_gets_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownSelection) as raised:
        select([name])
    assert nearest in raised.value.nearest


@pytest.mark.parametrize("name", ["shm_too_small", "Shm-Too-Small", "SHM_TOO_SMALL"])
def test_names_may_be_written_as_people_do(name: str) -> None:
    (page,) = find_pages(name)
    assert page.docs == "docs/checks/shm-too-small.md"
    assert [one.slug for one in select([name])] == ["shm-too-small"]
    assert "shm-too-small" not in [one.slug for one in select(["HOST"], [name])]


def test_a_name_like_no_other_leads_to_the_list() -> None:
    with pytest.raises(UsageError, match="ddpdoctor list"):
        find_pages("zzzzzzzzzz")
    with pytest.raises(UnknownSelection, match="ddpdoctor list"):
        select(["zzzzzzzzzz"])


def test_pages_are_found_by_topic_and_by_family() -> None:
    (topic,) = find_pages("apex")
    assert topic.topic is not None
    assert topic.topic.slug == "apex"
    assert [page.docs for page in find_pages("host")] == [check.docs for check in select(["host"])]


def test_what_a_check_needs_is_what_its_annotations_mean() -> None:
    for check in (*all_checks(), *all_prescriptions()):
        hints = {name: hint for name, hint in get_type_hints(check.predicate).items() if name != "return"}
        needs = {name: None if Unknown in get_args(hint) else hint for name, hint in hints.items()}
        assert check.needs == needs, check.slug
        assert list(check.needs) == list(inspect.signature(check.predicate).parameters), check.slug


def test_a_family_is_chosen_by_its_former_name_too() -> None:
    assert select(["patient"]) == select(["python"])
    assert {one.family for one in select(["patient"])} == {"python"}
