"""NVSentinel's event of each outcome, read by protobuf itself."""

from __future__ import annotations

from typing import Any

import pytest

from ddpdoctor.base.findings import FAIL, WARN, Owner
from ddpdoctor.gating.grpc_calls import encode, unix_target
from ddpdoctor.gating.nvsentinel_event import encode_event
from ddpdoctor.gating.outcome import Concern, GateOutcome, weigh_concerns

grpc_messages: Any = pytest.importorskip("tests.support.grpc_messages")
MESSAGES = grpc_messages.message_classes()


def outcome(*concerns: Concern) -> GateOutcome:
    return weigh_concerns(concerns, passed=3, why_unknown="")


def concern(slug: str, severity: Any, *commands: str) -> Concern:
    return Concern(slug=slug, severity=severity, owner=Owner.NODE, summary="ä is gone", commands=commands)


def event(result: GateOutcome) -> Any:
    (told,) = MESSAGES["HealthEvents"].FromString(encode_event(result, "n1", 1, 1.5)).events
    return told


def test_a_closed_gate_is_fatal_with_the_action_that_mends_it() -> None:
    told = event(outcome(concern("xid-error", FAIL, "sudo reboot"), concern("disk-full", FAIL)))
    assert (told.isFatal, told.isHealthy, told.recommendedAction) == (True, False, 24)
    assert list(told.errorCode) == ["xid-error", "disk-full"]
    assert told.message == "node: xid-error, disk-full: ä is gone"
    assert (told.generatedTimestamp.seconds, told.generatedTimestamp.nanos) == (1, 500_000_000)
    assert event(outcome(concern("disk-full", FAIL))).recommendedAction == 5


def test_a_warning_is_neither_fatal_nor_healthy_and_nothing_found_is_healthy() -> None:
    warned = event(outcome(concern("clock-skew", WARN, "sudo reboot")))
    assert (warned.isFatal, warned.isHealthy, warned.recommendedAction) == (False, False, 0)
    assert list(warned.errorCode) == ["clock-skew"]
    well = event(outcome())
    assert (well.isFatal, well.isHealthy, list(well.errorCode)) == (False, True, [])


@pytest.mark.parametrize("code", [0, 1, 127, 128, 300, -9, 2**31 - 1])
def test_numbers_are_written_as_protobuf_reads_them(code: int) -> None:
    told = MESSAGES["HealthCheckResponse"].FromString(encode(((1, True), (2, code), (3, "x" * 200))))
    assert (told.success, told.exit_code, len(told.output)) == (True, code, 200)


@pytest.mark.parametrize("given", ["/run/x.sock", "unix:/run/x.sock", "unix:///run/x.sock"])
def test_a_socket_is_named_as_grpc_does(given: str) -> None:
    assert unix_target(given) == "unix:/run/x.sock"
