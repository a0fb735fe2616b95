"""NCCL's own diagnosis within a smoke training: when it is switched on, and what its report comes to.

There is no GPU here: the lines are of the form that NCCL 2.31's sources print, made by hand; see fixtures/logs/*/cases.toml.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.facts.environment import Environment, Setting, UnreadableFile
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.smoke import SWITCHED_ON, RankEnding, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.nccl_diagnosis import SETTINGS, why_not_switched_on
from ddpdoctor.smoke_training.analysis.verdict import (
    add_host_findings,
    host_findings,
    judge_training,
    own_findings,
    verdict_of,
)
from ddpdoctor.smoke_training.local.nccl_report import MAX_REPORT_BYTES, NcclReport
from ddpdoctor.smoke_training.local.training import settings_of_ranks
from ddpdoctor.smoke_training.plan import SmokePlan, plan_training
from ddpdoctor.smoke_training.render_words import nccl_text
from tests.support.command import ROOT
from tests.support.fixture_hosts import healthy_facts, to_snapshot
from tests.support.smokes import rank_run, smoke_of_ranks

LOGS = ROOT / "fixtures" / "logs"
BARE = Environment(settings=())


def of_version(version: Maybe[str | None]) -> Nccl:
    return Nccl(library="/opt/libnccl.so.2", version=version)


@pytest.mark.parametrize("version", ["2.31", "2.31.1", "2.40.2", "3.0.1"])
def test_it_is_switched_on_since_its_release(version: str) -> None:
    assert why_not_switched_on(of_version(version), BARE) == ""


@pytest.mark.parametrize("version", ["2.30.7", "2.4.8", "2.9.31", "1.31.0", "odd", ""])
def test_it_is_not_before(version: str) -> None:
    assert why_not_switched_on(of_version(version), BARE) != ""


@pytest.mark.parametrize("nccl", [Unknown("not installed"), of_version(Unknown("it hung")), of_version(None)])
def test_it_is_not_where_the_release_is_not_known(nccl: Maybe[Nccl]) -> None:
    assert "isn't known" in why_not_switched_on(nccl, BARE)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("value", ["0", "1", ""])
@pytest.mark.parametrize("origin", ["environment", "/etc/nccl.conf"])
def test_no_setting_of_the_users_is_overruled(name: str, value: str, origin: str) -> None:
    """Also none of a configuration file, which the environment would overrule."""
    chosen = Environment(settings=(Setting(name=name, value=value, origin=origin),))
    assert name in why_not_switched_on(of_version("2.31.1"), chosen)


def test_where_it_is_not_known_what_the_user_has_set_it_is_not_switched_on() -> None:
    hidden = Environment(settings=(), unreadable_files=(UnreadableFile("/etc/nccl.conf", "Permission denied"),))
    assert "/etc/nccl.conf" in why_not_switched_on(of_version("2.31.1"), hidden)
    assert why_not_switched_on(of_version("2.31.1"), Unknown("not looked at")) != ""


def test_a_plan_on_gpus_switches_it_on_and_one_on_the_cpu_does_not() -> None:
    host = msgspec.structs.replace(to_snapshot(healthy_facts("h100x8-bare-metal")), nccl=of_version("2.31.1"))
    on_gpus = plan_training(host, None, "nccl")
    assert on_gpus.diagnoses
    assert settings_of_ranks(on_gpus, {"PATH": "/bin"}) == {"PATH": "/bin", **SETTINGS}
    on_cpu = plan_training(host, None, "gloo")
    assert not on_cpu.diagnoses
    assert settings_of_ranks(on_cpu, {"PATH": "/bin"}) == {"PATH": "/bin"}
    older = plan_training(msgspec.structs.replace(host, nccl=of_version("2.27.5")), None, "nccl")
    assert not older.diagnoses
    assert "2.27.5" in older.nccl_diagnosis


# --- its report -------------------------------------------------------------------------------------------------------


def report_of(log: str) -> tuple[str, ...]:
    return tuple(line for line in Path(LOGS / log).read_text().splitlines() if "NCCL DIAG" in line)


def trained(log: str, **more: object) -> Smoke:
    return smoke_of_ranks(2, nccl_report=report_of(log), backend="nccl", **more)


@pytest.mark.parametrize(
    ("log", "slug"),
    [
        ("nccl-ranks-differ/sick-setting.log", "nccl-ranks-differ"),
        ("nccl-ranks-differ/sick-count-and-model.log", "nccl-ranks-differ"),
        ("nccl-ranks-differ/sick-driver.log", "nccl-ranks-differ"),
        ("gpu-ecc-error/sick-nccl-diagnostics.log", "gpu-ecc-error"),
        ("nvlink-error/sick-nccl-diagnostics.log", "nvlink-error"),
        ("xid-error/sick-nccl-diagnostics.log", "xid-error"),
        ("gpu-fell-off-bus/sick-nccl-diagnostics.log", "gpu-fell-off-bus"),
        ("p2p-acs-iommu/sick-nccl-diagnostics.log", "p2p-acs-iommu"),
    ],
)
def test_what_it_says_is_a_finding_of_the_training(log: str, slug: str) -> None:
    examination = judge_training(Snapshot(host="node07"), trained(log), catalogue())
    assert slug in {check.slug for check, _, _ in own_findings(examination)}
    assert verdict_of(examination) in (Verdict.WARN, Verdict.FAIL)
    assert host_findings(examination) == []


def test_ranks_and_values_are_named() -> None:
    ran = trained("nccl-ranks-differ/sick-setting.log")
    [(_, _, finding)] = own_findings(judge_training(Snapshot(host="node07"), ran, catalogue()))
    assert "NCCL_ALGO" in finding.summary
    assert any("rank 15" in evidence.text for evidence in finding.evidence)
    assert nccl_text(ran) == "its own diagnosis ran: 6 looks found nothing, and it made 4 remarks"


@pytest.mark.parametrize("log", ["healthy/nccl-diagnostics.log", "nccl-ranks-differ/near-miss-incomplete.log"])
def test_a_report_that_found_nothing_is_silent(log: str) -> None:
    examination = judge_training(Snapshot(host="node07"), trained(log), catalogue())
    assert own_findings(examination) == []
    assert verdict_of(examination) is Verdict.OK


def test_it_stays_where_the_training_failed_and_the_host_is_looked_at() -> None:
    ran = smoke_of_ranks(
        2,
        {1: rank_run(1, RankEnding.KILLED, "training", exit_code=-9)},
        nccl_report=report_of("nccl-ranks-differ/sick-setting.log"),
    )
    before = judge_training(Snapshot(host="node07"), ran, catalogue())
    after = add_host_findings(before, to_snapshot(healthy_facts("cloud-cpu")), catalogue())
    assert {"nccl-ranks-differ", "smoke-rank-failed"} <= {check.slug for check, _, _ in own_findings(after)}


def test_why_there_is_none_is_told() -> None:
    ran = smoke_of_ranks(2, backend="nccl", nccl_diagnosis=SWITCHED_ON)
    assert nccl_text(ran) == "its own diagnosis was switched on, and printed nothing"
    older = msgspec.structs.replace(ran, nccl_diagnosis="NCCL 2.27.5 has none; 2.31 and later do")
    assert "2.27.5 has none" in nccl_text(older)
    assert nccl_text(smoke_of_ranks(2)) == ""
    assert not SmokePlan(nproc=2, backend="gloo", chosen="").diagnoses


@given(cuts=st.lists(st.integers(0, 2000), max_size=30))
def test_however_its_text_is_cut_its_lines_are_whole(cuts: list[int]) -> None:
    lines = report_of("nccl-ranks-differ/sick-setting.log")
    text = "".join(f"{line}\nstep 1 | loss 2.5\n" for line in lines).encode()
    report = NcclReport()
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for begin, end in pairwise(edges):
        report.add_output(0, text[begin:end])
        report.add_output(1, b"another rank's words\n")
    assert report.lines == list(lines)


def test_a_rank_that_prints_without_end_takes_no_memory() -> None:
    report = NcclReport()
    for _ in range(200):
        report.add_output(0, b"node07:12 NCCL DIAG [INFO] " + b"x" * 5000 + b"\n")
        report.add_output(1, b"y" * 70000)
    assert sum(map(len, report.lines)) <= MAX_REPORT_BYTES + 1000
    assert max(map(len, report.lines)) <= 1000
