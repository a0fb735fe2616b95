"""What Slurm says of a node, and of whom its reason is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ddpdoctor.base.findings import FAIL, WARN, Owner, Severity
from ddpdoctor.gating.outcome import Concern, GateOutcome, no_verdict, weigh_concerns
from ddpdoctor.gating.slurm_node import (
    MAX_REASON_BYTES,
    NodeState,
    job_skips_checks,
    mark_node,
    read_node_state,
    reason_for,
)
from tests.support.scontrol import SHOWN, Scontrol

SICK = weigh_concerns(
    [Concern(slug="xid-error", severity=FAIL, owner=Owner.NODE, summary="Xid 79: GPU 3 [0000:3b:00] fell off")],
    passed=1,
    why_unknown="",
)
WELL = weigh_concerns([], passed=5, why_unknown="")
OURS = "ddpdoctor: node: xid-error: Xid 79: GPU 3 [0000:3b:00] fell off"
SOON = 1e12


def found(*slugs: str, severity: Severity = FAIL, owner: Owner = Owner.NODE) -> GateOutcome:
    """What comes of a pass in which these checks found something."""
    concerns = [Concern(slug=slug, severity=severity, owner=owner, summary="it is so") for slug in slugs]
    return weigh_concerns(concerns, passed=5, why_unknown="", owners=(Owner.NODE, Owner.FABRIC))


def test_the_state_of_a_node_is_read() -> None:
    assert read_node_state(SHOWN.format(state="IDLE+DRAIN", reason="a [b] c")) == NodeState(
        ("IDLE", "DRAIN"), "a [b] c"
    )
    assert read_node_state("NodeName=n1\n   State=MIXED*+CLOUD+POWERED_DOWN Threads=1\n") == NodeState(
        ("MIXED", "CLOUD", "POWERED_DOWN"), ""
    )
    assert read_node_state("Node n9 not found") is None


def test_our_own_reason_is_known_to_the_letter() -> None:
    assert reason_for(SICK) == OURS
    drained = NodeState(("IDLE", "DRAIN"), OURS)
    assert drained.drained_for == ("xid-error",)
    several = "ddpdoctor: node: a-b, c-d and 2 more: it is so"
    assert NodeState(("DRAIN",), several).drained_for == ("a-b", "c-d")
    fabric = "ddpdoctor: node, fabric: a-b, c-d: it is so"
    assert NodeState(("DRAIN",), fabric).drained_for == ("a-b", "c-d")
    for reason in ("ddpdoctor: RMA 4711, leave it out", "NHC: ddpdoctor: node: a: b", "Prolog error", ""):
        assert NodeState(("DRAIN",), reason).drained_for == ()


def test_a_sick_node_is_drained(tmp_path: Path) -> None:
    slurm = Scontrol(tmp_path, "IDLE", "")
    assert mark_node(SICK, slurm.environ, not_judged=(), until=SOON) == ("n2 was drained",)
    assert slurm.changes == ["update", "NodeName=n2", "State=DRAIN", f"Reason={OURS}"]


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("IDLE+DRAIN", "disk swap, ask ann", "its reason is somebody else's: disk swap, ask ann"),
        ("IDLE", "a note", "its reason is somebody else's"),
        ("DOWN", "Not responding", "its reason is somebody else's"),
        ("IDLE+DRAIN", "", "it is IDLE+DRAIN already"),
        ("IDLE+REBOOT_REQUESTED", "", "REBOOT_REQUESTED already"),
        ("IDLE+POWERED_DOWN", "", "POWERED_DOWN already"),
        ("IDLE+DRAIN", OURS, "is drained already"),
    ],
)
def test_what_somebody_else_has_done_stays(tmp_path: Path, state: str, reason: str, words: str) -> None:
    slurm = Scontrol(tmp_path, state, reason)
    (told,) = mark_node(SICK, slurm.environ, not_judged=(), until=SOON)
    assert words in told
    assert slurm.changes == []


def test_another_illness_gets_a_new_reason(tmp_path: Path) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", "ddpdoctor: node: local-firewall: it drops")
    assert mark_node(SICK, slurm.environ, not_judged=(), until=SOON) == ("n2 was drained",)
    assert slurm.changes[-1] == f"Reason={OURS}"


def test_a_cloud_node_is_drained_as_all_others(tmp_path: Path) -> None:
    slurm = Scontrol(tmp_path, "IDLE+CLOUD", "")
    assert mark_node(SICK, slurm.environ, not_judged=(), until=SOON) == ("n2 was drained",)
    assert slurm.changes


def test_a_new_reason_forgets_no_check_that_has_not_healed(tmp_path: Path) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", "ddpdoctor: node: local-firewall, clock-skew, disk-full: it drops")
    sick = weigh_concerns([*SICK.failures, *found("clock-skew", severity=WARN).warnings], passed=1, why_unknown="")
    assert mark_node(sick, slurm.environ, not_judged={"local-firewall"}, until=SOON) == ("n2 was drained",)
    (reason,) = [change for change in slurm.changes if change.startswith("Reason=")]
    assert reason.startswith("Reason=ddpdoctor: node: xid-error, local-firewall, clock-skew: Xid 79")


def test_a_reason_names_all_checks_while_it_has_room(tmp_path: Path) -> None:
    sick = found("a-b", "c-d", "e-f", "g-h", "i-j", "k-l", "m-n")
    assert reason_for(sick) == "ddpdoctor: node: a-b, c-d, e-f, g-h, i-j, k-l, m-n: it is so"
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", reason_for(sick))
    assert mark_node(sick, slurm.environ, not_judged=(), until=SOON) == ("n2 is drained already",)
    assert slurm.changes == []


def test_a_reason_without_room_for_all_checks_holds_the_node(tmp_path: Path) -> None:
    sick = found(*(f"check-number-{number}" for number in range(30)))
    reason = reason_for(sick)
    assert len(reason) <= MAX_REASON_BYTES
    state = NodeState(("DRAIN",), reason)
    assert state.hides_checks
    assert f" and {30 - len(state.drained_for)} more: it is so" in reason
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", reason)
    for outcome in (sick, SICK):
        assert mark_node(outcome, slurm.environ, not_judged=(), until=SOON) == ("n2 is drained already",)
    (told,) = mark_node(WELL, slurm.environ, not_judged=(), until=SOON)
    assert told.startswith("n2 stays drained: its reason doesn't name all checks")
    assert slurm.changes == []


@pytest.mark.parametrize(
    "outcome",
    [
        found("xid-error", severity=WARN),
        found("xid-error", owner=Owner.USER),
        found("xid-error", severity=WARN, owner=Owner.UNKNOWN),
    ],
    ids=["warning", "user", "unknown"],
)
def test_what_is_still_found_stays_drained(tmp_path: Path, outcome: GateOutcome) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", OURS)
    (told,) = mark_node(outcome, slurm.environ, not_judged=(), until=SOON)
    assert told == "n2 stays drained: this pass still finds xid-error"
    assert slurm.changes == []


def test_a_node_in_slurms_hands_is_not_undrained(tmp_path: Path) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN+REBOOT_ISSUED", OURS)
    (told,) = mark_node(WELL, slurm.environ, not_judged=(), until=SOON)
    assert told == "n2 stays drained: it is IDLE+DRAIN+REBOOT_ISSUED"
    assert slurm.changes == []


def test_a_healed_node_is_undrained_if_we_had_drained_it(tmp_path: Path) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", OURS)
    assert mark_node(WELL, slurm.environ, not_judged={"local-firewall"}, until=SOON) == ("n2 was undrained",)
    assert slurm.changes == ["update", "NodeName=n2", "State=UNDRAIN"]


@pytest.mark.parametrize("reason", ["disk swap, ask ann", "ddpdoctor: RMA 4711, leave it out", "Prolog error", ""])
def test_another_reason_stays_when_all_is_well(tmp_path: Path, reason: str) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", reason)
    (told,) = mark_node(WELL, slurm.environ, not_judged=(), until=SOON)
    assert "stays drained" in told
    assert slurm.changes == []


def test_what_this_pass_did_not_see_stays_drained(tmp_path: Path) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", OURS)
    assert mark_node(WELL, slurm.environ, not_judged={"xid-error"}, until=SOON) == (
        "n2 stays drained: this pass says nothing of xid-error",
    )
    assert mark_node(no_verdict("blind"), slurm.environ, not_judged=(), until=SOON) == ()
    assert slurm.changes == []


@pytest.mark.parametrize("name", ["", "ALL", "all", "n[1-9]", "n1,n2", "-n", "n1 State=DOWN"])
def test_nothing_is_drained_but_one_node(tmp_path: Path, name: str) -> None:
    slurm = Scontrol(tmp_path, "IDLE", "")
    environ = {**slurm.environ, "SLURMD_NODENAME": name}
    assert "SLURMD_NODENAME" in mark_node(SICK, environ, not_judged=(), until=SOON)[0]
    assert slurm.changes == []


def test_a_scontrol_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURMD_NODENAME": "n2"}
    (told,) = mark_node(SICK, environ, not_judged=(), until=time.monotonic() + 2)
    assert told == "nothing was drained or undrained: scontrol doesn't tell the state of n2: no answer within 2 s"


def test_a_jobs_comment_skips_by_a_word_of_its_own(tmp_path: Path) -> None:
    def skips(comment: str) -> bool:
        return job_skips_checks({"SLURM_JOB_COMMENT": comment}, SOON)

    assert skips("skip_checks")
    assert skips("ours,skip_checks;x")
    assert not skips("no_skip_checks")
    assert not skips("")
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nprintf 'JobId=%s\\n   Comment=skip_checks \\n' $3\n")
    program.chmod(0o755)
    assert job_skips_checks({"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:/usr/bin:/bin"}, SOON)
    assert not job_skips_checks({"PATH": f"{tmp_path}:/usr/bin:/bin"}, SOON)
