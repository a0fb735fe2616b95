"""`smoke --duration`: real trainings over gloo of a few seconds, healthy ones and those in which a rank does what ranks do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.burn_in import MAX_WINDOWS
from ddpdoctor.facts.smoke import RankEnding, Smoke
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.smoke_training.analysis.burn_in import is_too_short, slow_ranks
from ddpdoctor.smoke_training.analysis.failure_attribution import attribute_failure
from ddpdoctor.smoke_training.analysis.verdict import judge_training
from ddpdoctor.smoke_training.local.rank_runner import RankRunner
from ddpdoctor.smoke_training.stages import BURN_IN
from ddpdoctor.smoke_training.training_order import Fault, Launched, TrainingOrder
from tests.support.command import command, ddpdoctor
from tests.support.report_schema import check_against_schema
from tests.support.smoke_runs import Estate, train
from tests.support.waiting import slowdown, wait_for

STAGES = ("import", "device", "rendezvous", "process group", BURN_IN, "shutdown")
SECONDS = 6.0


def order(fault: Fault, duration: float = SECONDS, patience: float = 60.0) -> TrainingOrder:
    """On a machine that is busy for longer, so that there are steps enough to tell anything. patience: seconds for a stage."""
    slow = min(slowdown(), 3.0)
    return TrainingOrder(
        nproc=2,
        world_size=2,
        stages=STAGES,
        duration=duration * slow,
        seconds=patience * slow,
        import_seconds=270.0,
        fault=fault,
    )


def judged(ran: Smoke) -> Examination:
    return judge_training(Snapshot(host="node07"), ran, catalogue())


def found(ran: Smoke) -> set[str]:
    return {check.slug for check, _, _ in judged(ran).findings}


def burnt(folder: Path, kind: str, rank: int, expected: str = "") -> Smoke:
    """A training that comes to its end, whatever a rank does: one long enough for a verdict, however busy this machine is, and for that
    finding, if one is expected: what else runs here may slow the other rank as much."""
    for longer in (1, 3, 9):
        ran = asyncio.run(train(Estate(folder / str(longer)), order(Fault(rank, BURN_IN, kind), SECONDS * longer)))
        assert {run.ending for run in ran.ranks} == {RankEnding.FINISHED}
        assert len({len(run.pace) for run in ran.ranks}) == 1
        assert len(ran.ranks[0].pace) <= MAX_WINDOWS
        assert ran.burn_in.hosts[0].memory
        if not is_too_short(ran) and (not expected or expected in found(ran)):
            break
    return ran


@pytest.mark.slow
def test_a_rank_that_becomes_slow_is_named_with_the_moment(short_path: Path) -> None:
    ran = burnt(short_path, "slow-later", 1, "smoke-slow-rank")
    assert found(ran) == {"smoke-slow-rank"}
    [slow] = slow_ranks(ran)
    assert slow.run.rank == 1
    assert 0.25 * ran.burn_in.asked < slow.since < 0.75 * ran.burn_in.asked
    assert slow.ratio > 2


@pytest.mark.slow
@pytest.mark.thorough
def test_a_rank_whose_memory_grows_is_named(short_path: Path) -> None:
    ran = burnt(short_path, "leak", 0)
    assert found(ran) == {"smoke-memory-grows"}
    [grows] = [finding for _, _, finding in judged(ran).findings]
    assert grows.rank == 0


@pytest.mark.slow
@pytest.mark.thorough
def test_ranks_that_become_ever_slower_together_are_a_fall_of_the_throughput(short_path: Path) -> None:
    ran = burnt(short_path, "fading", -1)
    assert found(ran) == {"smoke-throughput-falls"}


@pytest.mark.slow
def test_a_rank_that_hangs_amid_the_burn_in_is_named_within_the_time_of_any_stage(short_path: Path) -> None:
    one = order(Fault(1, BURN_IN, "sleep", "call"), duration=3600.0, patience=4.0)
    ran = asyncio.run(train(Estate(short_path / "files"), one))
    blamed = attribute_failure(ran.ranks)
    assert blamed is not None
    assert ([run.rank for run in blamed.culprits], blamed.stage) == ([1], BURN_IN)
    assert ran.seconds < 600


@pytest.mark.slow
def test_a_healthy_run_is_silent_and_what_takes_gpus_is_not_tested(tmp_path: Path) -> None:
    """With the picture, the JSON and its schema. Where this machine is too busy to tell, that is said, too."""
    drawn = tmp_path / "burn-in.svg"
    duration = f"{5 * min(slowdown(), 6):.0f}s"
    done = ddpdoctor("smoke", "--duration", duration, "--stages", "barrier", "--json", "-v", "--picture", drawn)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    check_against_schema(told)
    burn_in = told["smoke"]["burn_in"]
    assert f"{burn_in['asked']:.0f}s" == duration
    assert told["verdict"] == "ok"
    assert burn_in["hosts"][0]["gpus"]["reason"] == "the ranks train on the CPU"
    untested = {each["slug"] for each in told["not_tested"]}
    assert {"smoke-gpu-throttled", "smoke-ecc-errors", "smoke-new-xid"} <= untested
    root = ElementTree.fromstring(drawn.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert any(part.tag.endswith("polyline") for part in root)
    assert oct(drawn.stat().st_mode & 0o777) == "0o644"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_a_signal_ends_it_with_a_report_of_what_was_seen(short_path: Path, number: signal.Signals) -> None:
    estate = Estate(short_path / "files")
    drawn = short_path / "burn-in.svg"
    doctor = subprocess.Popen(
        command("smoke", "--duration", "1h", "--stages", "barrier", "--json", "--picture", drawn),
        env=estate.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert doctor.stderr is not None
    try:
        wait_for(lambda: "burn-in" in (doctor.stderr.readline() if doctor.stderr else ""), 90)
        time.sleep(2.5)
        os.kill(doctor.pid, number)
        os.kill(doctor.pid, number)  # An impatient second one.
        stdout, stderr = doctor.communicate(timeout=60)
    finally:
        doctor.kill()
    assert doctor.returncode == 128 + number
    assert "Stopped. The ranks ended their burn-in" in stderr
    told = json.loads(stdout)["smoke"]
    assert told["burn_in"]["stopped"] == ("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
    assert {rank["ending"] for rank in told["ranks"]} == {"finished"}
    assert all(rank["pace"] for rank in told["ranks"])
    assert drawn.exists()
    assert estate.left_after(5.0) == {}


@pytest.mark.parametrize(("local_rank", "watches"), [(0, True), (1, False)])
def test_of_several_launched_ranks_of_a_host_the_first_watches_it(local_rank: int, watches: bool) -> None:
    """Each has a doctor of its own."""
    one = TrainingOrder(nproc=1, world_size=2, stages=STAGES, duration=5.0, launched=Launched(local_rank, local_rank))
    assert RankRunner(one, sys.executable, {}, lambda monitor: None).watches_the_host is watches


WRONG = {
    "no time": (("--duration", "soon"), "is no duration; write 90s, 10m or 1h30m"),
    "nothing": (("--duration", "0s"), "--duration is 0"),
    "less than nothing": (("--duration=-5s",), "is no duration"),
    "too short": (("--duration", "0.2s"), "from 1 s to 7 days are possible"),
    "too long": (("--duration", "8d"), "from 1 s to 7 days are possible"),
    "a picture of nothing": (("--picture", "x.svg"), "add --duration"),
    "another kind of picture": (("--duration", "5s", "--picture", "x.png"), ".svg"),
    "no folder": (("--duration", "5s", "--picture", "nowhere/x.svg"), "nowhere"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_meant_is_refused_before_anything_runs(name: str, tmp_path: Path) -> None:
    arguments, words = WRONG[name]
    done = ddpdoctor("smoke", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
def test_neither_a_link_nor_a_file_of_somebody_else_is_drawn_over(tmp_path: Path) -> None:
    secret = tmp_path / "kept.svg"
    secret.write_text("kept")
    link = tmp_path / "link.svg"
    link.symlink_to(secret)
    foreign = tmp_path / "foreign.svg"
    foreign.write_text("kept")
    os.chown(foreign, 1234, 1234)
    for path, why in ((link, "a symbolic link is there"), (foreign, "a file of uid 1234 is there")):
        done = ddpdoctor("smoke", "--duration", "5s", "--picture", path)
        assert done.returncode == 2
        assert why in " ".join(done.stderr.replace("│", " ").split())
        assert path.read_text() == "kept"
    assert link.is_symlink()
