"""The command of `--on-hang`: started once, told what is known, and nobody waits for it."""

from __future__ import annotations

import time
from pathlib import Path

from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.plan import NO_PLAN
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.watching.alarm import Alarm
from ddpdoctor.watching.follow_up import FollowUp


def alarm(tmp_path: Path) -> Alarm:
    return Alarm(
        job="4711", text="rank 1 lags", seconds=601.4, culprits=(1,), pids=(4712, 4713),
        examination=Examination(Snapshot(), NO_PLAN, ()), seen={},
    )  # fmt: skip


def ended(follow_up: FollowUp) -> list[tuple[str, int]]:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if codes := follow_up.ended():
            return codes
        time.sleep(0.05)
    return []


def test_it_is_told_what_is_known(tmp_path: Path) -> None:
    told = tmp_path / "told"
    follow_up = FollowUp(f'echo "$DDPDOCTOR_JOB/$DDPDOCTOR_PIDS/$DDPDOCTOR_RANKS/$DDPDOCTOR_SECONDS" > {told}; exit 7')
    assert follow_up.start(alarm(tmp_path), "/evidence") == ""
    assert ended(follow_up) == [("4711", 7)]
    assert told.read_text() == "4711/4712 4713/1/601\n"
    assert follow_up.ended() == []


def test_nobody_waits_for_it(tmp_path: Path) -> None:
    follow_up = FollowUp(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    began = time.monotonic()
    assert follow_up.start(alarm(tmp_path), "") == ""
    assert follow_up.ended() == []
    assert follow_up.running != ""
    assert time.monotonic() - began < 20
    (tmp_path / "go").touch()
    assert ended(follow_up) == [("4711", 0)]


def test_without_a_command_nothing_is_started(tmp_path: Path) -> None:
    follow_up = FollowUp("")
    assert follow_up.start(alarm(tmp_path), "") == ""
    assert follow_up.running == ""
