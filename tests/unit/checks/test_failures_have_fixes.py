"""Whoever is told that something fails is told what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, Fix
from ddpdoctor.checks.catalogue import all_checks, catalogue
from ddpdoctor.engine.examination import Examination, examine
from ddpdoctor.facts.fleet import Cell, Fleet, Node, Reach
from ddpdoctor.facts.network import Interface, Network
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.logs.diagnosis import judge_log
from ddpdoctor.network_check.analysis.verdicts import with_fleet
from tests.log_corpus import corpus, log_of
from tests.support.fixture_hosts import HostCase, host_case, host_cases, lay_over, slugs_with_hosts, to_snapshot
from tests.support.registered_checks import find_check


def without_a_fix(examination: Examination) -> list[str]:
    return [check.slug for check, severity, found in examination.findings if severity is FAIL and not found.fixes]


@pytest.mark.parametrize("slug", slugs_with_hosts())
def test_each_failure_of_a_host_has_a_fix(slug: str) -> None:
    for case in host_cases(slug, "sick-"):
        assert not without_a_fix(examine(case.snapshot(), case.nproc, all_checks())), case.id


def test_each_failure_in_a_log_has_a_fix() -> None:
    failed = 0
    for log in corpus():
        examination = judge_log(log_of(log.path), catalogue()).examination
        failed += any(severity is FAIL for _, severity, _ in examination.findings)
        assert not without_a_fix(examination), log.path
    assert failed > 100


ISOLATED: dict[str, Any] = {
    "network": {"default_interface": None, "interface_to_master": "lo", "hosts_lines": ["127.0.1.1 gpu07"]}
}
"""Node 0 of a network for training alone: it meets itself, and no route leads anywhere else."""


def fixes_of(snapshot: Snapshot, slug: str) -> tuple[Fix, ...]:
    ((_, _, finding),) = examine(snapshot, None, [find_check(slug)]).findings
    return finding.fixes


def test_on_an_isolated_network_the_peers_tell_the_address() -> None:
    sick = host_case("hostname-resolves-loopback/sick-gloo-over-two-nodes").snapshot()
    alone = to_snapshot(lay_over(msgspec.to_builtins(sick), ISOLATED))
    assert isinstance(alone.network, Network)
    interfaces = (
        Interface(name="lo", loopback=True, up=True, running=True, addresses=("127.0.0.1/8",)),
        Interface(name="eno1", up=True, running=True, addresses=("192.168.7.4/24",)),
        Interface(name="ens5", up=True, running=True, addresses=("10.77.0.4/24",)),
    )
    network = msgspec.structs.replace(alone.network, interfaces=interfaces)
    alone = msgspec.structs.replace(alone, network=network)
    assert not any(
        "10.77.0.4" in command for fix in fixes_of(alone, "hostname-resolves-loopback") for command in fix.commands
    )
    ok = Cell.OK.value
    fleet = Fleet(
        expected=2,
        nodes=(Node(rank=0, host="gpu07", address="10.77.0.4"), Node(rank=1, host="gpu08", address="10.77.0.5")),
        reach=(
            Reach(kind="route", addresses=("10.77.0.4", "10.77.0.5"), ports=(4, 4), rows=(f"-{ok}", f"{ok}-")),
            Reach(kind="gloo", addresses=("127.0.1.1", ""), ports=(4, 0), rows=("--", "r-")),
        ),
    )
    met = with_fleet(alone, fleet, 0)
    assert isinstance(met.network, Network)
    assert met.network.met_at == "10.77.0.4"
    commands = [command for fix in fixes_of(met, "hostname-resolves-loopback") for command in fix.commands]
    assert any("10.77.0.4" in command and "/etc/hosts" in command for command in commands)
    assert "export GLOO_SOCKET_IFNAME=ens5" in commands


def test_what_no_peer_reached_tells_nothing() -> None:
    snapshot = host_case("hostname-resolves-loopback/sick-gloo-over-two-nodes").snapshot()
    fleet = Fleet(
        nodes=(Node(rank=0, host="a", address="10.77.0.4"), Node(rank=1, host="b", address="10.77.0.5")),
        reach=(Reach(kind="route", addresses=("10.77.0.4", "10.77.0.5"), ports=(4, 4), rows=("-t", "t-")),),
    )
    network = with_fleet(snapshot, fleet, 0).network
    assert isinstance(network, Network)
    assert network.met_at == ""


def apex_fixes(case: HostCase, torch: dict[str, Any]) -> list[str]:
    snapshot = to_snapshot(lay_over(msgspec.to_builtins(case.snapshot()), {"torch": torch}))
    found = examine(snapshot, case.nproc, [find_check(case.slug)]).findings
    return [
        fix.text
        for _, _, finding in found
        for fix in finding.fixes
        if any("explain apex" in command for command in fix.commands)
    ]


@pytest.mark.parametrize("slug", ["apex-wrong-package", "apex-build-isolation"])
def test_no_build_of_apex_is_promised_that_explain_apex_denies(slug: str) -> None:
    case = host_cases(slug, "sick-")[0]
    without_cuda = apex_fixes(case, {"version": "2.13.0+cpu", "cuda": None, "hip": None})
    assert without_cuda
    assert all("which needs a torch with CUDA" in one for one in without_cuda)
    for_rocm = apex_fixes(case, {"version": "2.13.0+rocm7.0", "cuda": None, "hip": "7.0"})
    assert for_rocm
    assert all("AMD's fork" in one for one in for_rocm)
