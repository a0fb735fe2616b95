"""What other checks know of the words that a finding rests on."""

from __future__ import annotations

import pytest

from ddpdoctor.base.findings import Evidence, Finding, Fix
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.advice import with_advice
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import Check, Result, Skipped, SkipReason
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.registered_checks import find_check

OWN = Fix("See what the stage needs", ("ddpdoctor check",))
PORT_TAKEN = "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500"


def failed() -> Check:
    return find_check("smoke-rank-failed")


def finding(said: str) -> Finding:
    return Finding("rank 0 failed", evidence=(Evidence("it did"),), fixes=(OWN,), said=said)


def fixes(said: str, *others: Result) -> list[tuple[str, tuple[str, ...]]]:
    return [(fix.text, fix.commands) for fix in with_advice(failed(), finding(said), others).fixes]


def test_what_the_words_are_known_by_is_named_last() -> None:
    assert fixes(PORT_TAKEN) == [
        (OWN.text, OWN.commands),
        ("This is what `port-in-use` says", ("ddpdoctor explain port-in-use",)),
    ]


def test_what_was_found_on_this_host_comes_first_with_its_fix() -> None:
    found = Finding(
        "taken", evidence=(Evidence("x"),), fixes=(Fix("take another port", ("export MASTER_PORT=29517",)),)
    )
    (text, commands), known, own = fixes(PORT_TAKEN, Result(find_check("port-in-use"), (found,)))
    assert text == "`port-in-use` was found on this host, and these are its words. Take another port"
    assert commands == ("export MASTER_PORT=29517",)
    assert known[1] == ("ddpdoctor explain port-in-use",)
    assert own == (OWN.text, OWN.commands)


def test_beside_what_was_found_no_guess_is_named() -> None:
    said = "CUDA error: invalid device ordinal"
    found = Result(find_check("nproc-exceeds-gpus"), (Finding("8 ranks, 4 GPUs", fixes=(Fix("start 4"),)),))
    assert len(catalogue().saying(said)) > 1
    assert [commands for _, commands in fixes(said, found)] == [
        (),
        ("ddpdoctor explain nproc-exceeds-gpus",),
        OWN.commands,
    ]


def test_what_has_nothing_to_look_at_here_is_not_named() -> None:
    none = Result(find_check("port-in-use"), not_tested=Skipped(SkipReason.NOT_APPLICABLE, "no port is planned"))
    assert fixes(PORT_TAKEN, none) == [(OWN.text, OWN.commands)]


@pytest.mark.parametrize("said", ["", "RuntimeError: boom", "torch 2.13.0+cpu"])
def test_words_that_no_check_knows(said: str) -> None:
    """A sign as short as "+cpu" stands in too many texts."""
    assert fixes(said) == [(OWN.text, OWN.commands)]


def test_the_longest_sign_is_named_first() -> None:
    assert catalogue().saying("CUDA error: invalid device ordinal")[0].slug in (
        "nproc-exceeds-gpus",
        "launcher-env-inconsistent",
    )


def test_a_finding_is_advised_by_what_the_same_look_found() -> None:
    port = Result(find_check("port-in-use"), (Finding("taken", fixes=(Fix("take another"),)),))
    own = Result(failed(), (finding(PORT_TAKEN),))
    examination = Examination(Snapshot(), Plan(2, "--nproc"), (own, port))
    (_, _, first), _ = examination.findings
    assert first.fixes[0].proven_by == "port-in-use"
