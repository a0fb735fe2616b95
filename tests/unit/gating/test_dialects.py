"""Each row of the table of callers: exit codes, what goes where, and in how many bytes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from ddpdoctor.base.findings import FAIL, WARN, Owner, Severity
from ddpdoctor.gating.dialects import DIALECTS, GateAnswer, cut
from ddpdoctor.gating.outcome import Concern, GateOutcome, no_verdict, weigh_concerns


def concern(slug: str, severity: Severity = FAIL, owner: Owner = Owner.NODE, summary: str = "it is so") -> Concern:
    return Concern(slug=slug, severity=severity, owner=owner, summary=summary, commands=("sudo reboot",))


SICK = weigh_concerns(
    [
        concern("gpu-fell-off-bus", summary="GPU 3 is gone"),
        concern("xid-error"),
        concern("omp-threads", WARN, Owner.USER),
    ],
    passed=30,
    why_unknown="",
)
WARNED = weigh_concerns([concern("clock-skew", WARN, summary="2 s ahead")], passed=31, why_unknown="")
WELL = weigh_concerns([], passed=34, why_unknown="")
BLIND = no_verdict("90 of 100 checks could not be tested")
REPORT = {"schema": 1, "command": "gate", "passed": []}

CODES = {
    "slurm-prolog": (0, 0, 1, 0),
    "slurm-epilog": (0, 0, 1, 0),
    "slurm-healthcheck": (0, 0, 0, 0),
    "nhc": (0, 0, 1, 0),
    "soperator": (0, 0, 1, 0),
    "npd": (0, 0, 1, 2),
    "nvsentinel": (0, 0, 1, 2),
    "nagios": (0, 1, 2, 3),
    "gcm": (0, 1, 2, 3),
    "gpud": (0, 0, 1, 0),
    "nvrx": (0, 0, 1, 0),
    "k8s-init": (0, 0, 1, 0),
}


def answer(name: str, outcome: GateOutcome = SICK) -> GateAnswer:
    return DIALECTS[name].answer(outcome, REPORT)


def test_all_callers_are_tested() -> None:
    assert list(DIALECTS) == list(CODES)


@pytest.mark.parametrize("name", CODES)
def test_exit_codes(name: str) -> None:
    assert tuple(answer(name, outcome).code for outcome in (WELL, WARNED, SICK, BLIND)) == CODES[name]


@pytest.mark.parametrize("name", CODES)
def test_a_blind_pass_is_never_all_is_well(name: str) -> None:
    blind = answer(name, BLIND)
    assert blind.stderr == "ddpdoctor: no verdict: 90 of 100 checks could not be tested\n"
    assert blind.stdout != answer(name, WELL).stdout or name == "slurm-prolog"
    assert "checks passed" not in blind.stdout


@pytest.mark.parametrize("name", CODES)
def test_the_reason_names_the_owner_and_the_worst_first(name: str) -> None:
    sick = answer(name)
    if name == "nvrx":
        assert json.loads(sick.stdout)["failed_checks"] == ["gpu-fell-off-bus", "xid-error"]
        return
    assert "node: gpu-fell-off-bus" in sick.stdout.splitlines()[0]
    assert "not counted, user: omp-threads" in sick.stderr


def test_node_problem_detector_gets_one_line_of_80_bytes() -> None:
    long = weigh_concerns([concern("xid-error", summary="ü" * 100)], passed=1, why_unknown="")
    line = answer("npd", long).stdout
    assert line.count("\n") == 1
    assert line.startswith("node: xid-error: üü")
    assert 76 < len(line.rstrip("\n").encode()) <= 80
    assert answer("npd").stdout == "node: gpu-fell-off-bus, xid-error: GPU 3 is gone\n"
    assert DIALECTS["npd"].seconds < 5


def test_nagios_reads_a_word_and_no_figures() -> None:
    assert answer("nagios", WELL).stdout == "OK - ddpdoctor. 34 checks passed\n"
    assert answer("nagios", WARNED).stdout == "WARNING - ddpdoctor. node: clock-skew: 2 s ahead\n"
    assert answer("nagios", BLIND).stdout.startswith("UNKNOWN - ddpdoctor. no verdict: ")
    piped = weigh_concerns([concern("xid-error", summary="a | b")], passed=0, why_unknown="")
    assert answer("nagios", piped).stdout == answer("gcm", piped).stdout
    assert answer("nagios", piped).stdout == "CRITICAL - ddpdoctor. node: xid-error: a / b\n"


def test_nhc_can_eval_the_line_as_it_does() -> None:
    """It hands what a check says to `eval`, between single quotes."""
    evil = weigh_concerns(
        [concern("xid-error", summary="x'; touch /tmp/gate-was-here; echo ' $(id) `id` \"")], passed=0, why_unknown=""
    )
    line = answer("nhc", evil).stdout.rstrip("\n")
    shell = f"eval printf %s \"'{line}'\""
    assert subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout == line
    assert line.startswith("ERROR - node: xid-error: x_")
    # By `-m '!/^ERROR/'`, and by `-m '/^OK/'`, too: a pass without a verdict takes no node offline.
    assert [answer("nhc", outcome).stdout[:2] for outcome in (WELL, WARNED, BLIND)] == ["OK"] * 3


def test_soperator_reads_descriptor_3() -> None:
    assert answer("soperator").details == "node: gpu-fell-off-bus, xid-error: GPU 3 is gone\n"
    assert not answer("soperator", WELL).details
    assert not answer("soperator", BLIND).details
    assert [name for name in CODES if answer(name).details] == ["soperator"]


def test_slurm_prints_into_the_jobs_output() -> None:
    assert answer("slurm-prolog").stdout.splitlines() == [
        "print ddpdoctor: node: gpu-fell-off-bus: GPU 3 is gone",
        "print ddpdoctor: node: xid-error: it is so",
    ]
    assert not answer("slurm-prolog", WELL).stdout


@pytest.mark.parametrize("name", ["k8s-init", "nvsentinel"])
def test_a_pods_log_has_the_findings_with_their_commands(name: str) -> None:
    assert answer(name).stdout.splitlines() == [
        "ddpdoctor: node: gpu-fell-off-bus, xid-error: GPU 3 is gone",
        "fail: node: gpu-fell-off-bus: GPU 3 is gone",
        "  sudo reboot",
        "fail: node: xid-error: it is so",
        "  sudo reboot",
    ]


def test_gpud_reads_one_object() -> None:
    def told(outcome: GateOutcome) -> dict[str, Any]:
        (line,) = answer("gpud", outcome).stdout.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found

    assert told(SICK) == {
        "name": "ddpdoctor",
        "result": "fail",
        "error": "node: gpu-fell-off-bus, xid-error: GPU 3 is gone",
        "passed": False,
        "action": "REBOOT_SYSTEM",
        "suggestion": "ddpdoctor explain gpu-fell-off-bus",
        "commands": ["sudo reboot"],
        "report": REPORT,
    }
    assert [told(outcome)["passed"] for outcome in (WELL, WARNED, BLIND)] == [True, True, None]
    assert told(BLIND)["error"]


def test_nvrx_counts_failed_checks() -> None:
    told = [json.loads(answer("nvrx", outcome).stdout) for outcome in (WELL, WARNED, SICK, BLIND)]
    assert [one["fail_count"] for one in told] == [0, 0, 2, 0]
    assert all(isinstance(one["failed_checks"], list) for one in told)


def test_only_the_nodes_own_failures_count() -> None:
    mine, fabric = concern("disk-full", owner=Owner.USER), concern("mtu-mismatch", owner=Owner.FABRIC)
    unknown = concern("memory-low", owner=Owner.UNKNOWN)
    assert weigh_concerns([mine, fabric], passed=5, why_unknown="").verdict == "ok"
    assert weigh_concerns([mine, fabric, unknown], passed=5, why_unknown="").verdict == "warn"
    asked = weigh_concerns([mine, fabric], passed=5, why_unknown="", owners=(Owner.NODE, Owner.FABRIC))
    assert (asked.verdict, asked.slugs, [one.slug for one in asked.others]) == (
        "fail",
        ("mtu-mismatch",),
        ["disk-full"],
    )


def test_the_line_names_the_checks_of_the_owner_that_it_names() -> None:
    mixed = weigh_concerns(
        [concern("xid-error"), concern("mtu-mismatch", owner=Owner.FABRIC), concern("disk-full")],
        passed=5,
        why_unknown="",
        owners=(Owner.NODE, Owner.FABRIC),
    )
    assert mixed.line == "node: xid-error, disk-full: it is so"


def test_what_was_seen_to_fail_fails_however_little_was_seen() -> None:
    assert (
        weigh_concerns([concern("xid-error")], passed=0, why_unknown="80 of 90 checks could not be tested").verdict
        == "fail"
    )
    assert weigh_concerns([concern("xid-error", WARN)], passed=1, why_unknown="80 of 90 checks").verdict == "unknown"
    assert weigh_concerns([concern("disk-full", owner=Owner.USER)], passed=0, why_unknown="").verdict == "unknown"


def test_a_time_limit_that_is_too_short_or_that_the_caller_does_not_wait_for_is_refused() -> None:
    healthcheck = DIALECTS["slurm-healthcheck"]
    assert healthcheck.seconds_for(None) == 40
    assert healthcheck.seconds_for(1) == 1
    assert healthcheck.seconds_for(50) == 50
    for seconds in (0, -1, 0.99, 50.01, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be from 1 to 50 seconds for this caller, and is "):
            healthcheck.seconds_for(seconds)


def test_cut_keeps_whole_characters() -> None:
    assert cut("äöü", 6) == "äöü"
    assert cut("äöüä", 7) == "äö..."
    assert cut("abc", 0) == "abc"
