"""What the gate hands to Slurm, and in which order it looks after a job and at the node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.api import node_gate
from ddpdoctor.api.checking import CheckResult
from ddpdoctor.api.errors import UsageError
from ddpdoctor.checks.catalogue import all_checks
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Result, Skipped, SkipReason
from ddpdoctor.facts.processes import ProcessIdentity
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.gating import job_leftovers
from ddpdoctor.processes.leftovers.ending import Endings
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind
from tests.support.scontrol import Scontrol

IDLE = "gpu-fell-off-bus"
"""The check that has nothing to look at here: all GPUs are gone. All others pass."""
WORKER = Leftover(
    kind=LeftoverKind.WORKER,
    certainty=Certainty.PROVEN,
    what="worker (pid 7)",
    why="its rank is gone",
    identity=ProcessIdentity(7, 1),
)


def checked() -> CheckResult:
    nothing = Skipped(SkipReason.NOT_APPLICABLE, "there are no GPUs")
    results = tuple(Result(check, (), nothing if check.slug == IDLE else None) for check in all_checks())
    snapshot = Snapshot()
    return CheckResult([Examination(snapshot, plan_for(snapshot), results)], [], all_checks(), "", 1.0)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The looks of a gate that follows job 47, as they come. The job has left a worker, and the checks pass."""
    looks: list[str] = []

    def note(name: str, answer: Any) -> Any:
        return lambda *_, **__: looks.append(name) or answer

    monkeypatch.setenv("SLURM_JOB_ID", "47")
    monkeypatch.setenv("SLURM_JOB_UID", "1000")
    monkeypatch.setattr(job_leftovers, "left_by", note("leftovers", (WORKER,)))
    monkeypatch.setattr(job_leftovers, "end_left", note("end", Endings()))
    monkeypatch.setattr(node_gate, "check_host", note("checks", checked()))
    return looks


@pytest.mark.parametrize("ignored", [False, True])
def test_a_check_with_nothing_to_look_at_holds_what_it_has_drained(
    ignored: bool, order: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Scontrol(tmp_path, "IDLE+DRAIN", f"ddpdoctor: node: {IDLE}: GPU 3 is gone")
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    result = node_gate.gate("slurm-healthcheck", drain=True, ignore=[IDLE] if ignored else [])
    if ignored:
        assert result.remarks[-1] == "n2 was undrained"
    else:
        assert result.remarks[-1] == f"n2 stays drained: this pass says nothing of {IDLE}"
        assert slurm.changes == []


def test_what_a_job_left_is_ended_before_the_node_is_checked(order: list[str]) -> None:
    node_gate.gate("slurm-epilog", kill=True)
    assert order == ["leftovers", "end", "checks"]


def test_a_wrong_name_ends_nothing(order: list[str]) -> None:
    with pytest.raises(UsageError, match="gpux"):
        node_gate.gate("slurm-epilog", kill=True, select=["gpux"])
    assert order == []


def test_a_kill_switch_that_leaves_nothing_is_no_wrong_usage(order: list[str], tmp_path: Path) -> None:
    killswitch = tmp_path / "killswitch"
    killswitch.write_text(f"{IDLE} no-such-check\n")
    result = node_gate.gate("slurm-epilog", kill=True, select=[IDLE], killswitch=str(killswitch))
    assert result.outcome.line == "no verdict: the kill switch leaves no check of those that were asked for"
    assert order == []
    result = node_gate.gate("nagios", killswitch=str(killswitch))
    assert result.remarks == ("the kill switch names what is no check of this release: no-such-check",)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"killswitch": ""}, "--killswitch is empty"),
        ({"owners": [""]}, "--owner is empty"),
        ({"owners": ["node", "Fabric"]}, "--owner: there is no Fabric; there are user, node, fabric, unknown"),
    ],
)
def test_what_can_not_be_meant_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        node_gate.gate("nagios", **options)


def test_what_there_is_no_time_to_end_is_named(order: list[str]) -> None:
    result = node_gate.gate("slurm-epilog", kill=True, timeout=20)
    assert order == ["leftovers", "checks"]
    assert "no leftover was ended: less than the 25 s that it may take were left" in result.remarks
    assert [concern.summary for concern in result.outcome.others] == ["left over: worker (pid 7)"]


def test_gpus_of_the_job_that_are_not_understood_are_said(order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_GPUS", "GPU-1a2b")
    result = node_gate.gate("slurm-epilog")
    why = "SLURM_JOB_GPUS=GPU-1a2b is no list of numbers"
    assert f"memory that the job left on its GPUs was not looked for: {why}" in result.remarks


def test_the_look_at_leftovers_ends_in_time(order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def take_snapshot(*_: Any, until: float, **__: Any) -> Snapshot:
        limits.append(until - time.monotonic())
        return Snapshot()

    monkeypatch.setattr("ddpdoctor.probes.runner.take_snapshot", take_snapshot)
    node_gate.gate("slurm-epilog", timeout=20)
    assert len(limits) == 1
    assert 0 < limits[0] <= 10
