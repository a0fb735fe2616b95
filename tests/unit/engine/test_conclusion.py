"""Nothing good is said of a host of which too little could be tested; and a healthy one stays healthy, whoever looks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import all_checks, select
from ddpdoctor.engine.examination import Examination, Verdict, conclusion, examine
from ddpdoctor.engine.snapshots import write_snapshot
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.torch import NOT_IMPORTED
from ddpdoctor.report.examined_hosts import check_verdict
from tests.support.command import ddpdoctor
from tests.support.fixture_hosts import healthy_facts, healthy_names, to_snapshot

HANGS = Unknown("no answer within 40 s")
BLIND = ("environment", "target_python")
"""Groups that many checks need."""


def healthy(name: str, **groups: object) -> Snapshot:
    return msgspec.structs.replace(to_snapshot(healthy_facts(name)), **groups)


def examined(snapshot: Snapshot) -> Examination:
    return examine(snapshot, None, all_checks())


@pytest.mark.parametrize("name", healthy_names())
def test_a_healthy_host_stays_healthy_without_importing_torch(name: str) -> None:
    host = healthy(name)
    assert not isinstance(host.torch, Unknown)
    torch = msgspec.structs.replace(host.torch, import_state="not-tried")
    for one in (host, msgspec.structs.replace(host, torch=torch, libraries=NOT_IMPORTED)):
        assert examined(one).conclusion is Verdict.OK


@pytest.mark.parametrize("name", healthy_names())
def test_nothing_is_said_where_too_much_had_no_answer(name: str) -> None:
    blind = examined(healthy(name, **dict.fromkeys(BLIND, HANGS)))
    assert blind.conclusion is Verdict.UNKNOWN
    assert conclusion([blind]).exit_code(strict=False) == 2
    document = check_verdict([blind])
    assert document.verdict is Verdict.UNKNOWN
    assert document.outcome.startswith("No verdict: ")
    assert "Nothing wrong" not in document.outcome + document.counts


def test_what_fails_all_the_same_is_a_failure() -> None:
    ill = examined(healthy("cloud-cpu", **dict.fromkeys(BLIND, HANGS)))
    shm = msgspec.structs.replace(ill.snapshot.shared_memory, exists=False)
    failing = examined(msgspec.structs.replace(ill.snapshot, shared_memory=shm))
    assert failing.conclusion is failing.verdict is Verdict.FAIL


def test_of_two_chosen_checks_one_may_be_unknown() -> None:
    checks = select(["missing-set-device", "no-nvidia-driver"])
    host = healthy("h100x8-slurm", processes=HANGS)
    few = examine(host, None, checks)
    assert few.unanswered == (1, 2)
    assert few.conclusion is Verdict.OK


def test_the_command_says_so_and_ends_with_2(tmp_path: Path) -> None:
    write_snapshot(healthy("cloud-cpu", **dict.fromkeys(BLIND, HANGS)), tmp_path / "blind.json")
    done = ddpdoctor("check", "--snapshot", tmp_path / "blind.json")
    assert done.returncode == 2
    assert "UNKNOWN  No verdict" in done.stdout
    as_json = ddpdoctor("check", "--snapshot", tmp_path / "blind.json", "--json")
    assert as_json.returncode == 2
    assert '"verdict": "unknown"' in as_json.stdout
