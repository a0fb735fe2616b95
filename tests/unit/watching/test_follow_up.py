"""The command of `--on-hang`: one at a time, told what is known, and nobody waits for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.plan import NO_PLAN
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.watching.alarm import Alarm
from ddpdoctor.watching.follow_up import MAX_WAITING, MAX_WAITING_OF_OWNER, FollowUp

OTHER = 61_234
"""Nobody's number."""


def alarm(job: str = "4711", uid: int | None = None) -> Alarm:
    return Alarm(
        job=job, uid=os.geteuid() if uid is None else uid, text="rank 1 lags", seconds=601.4, culprits=(1,), pids=(4712, 4713),
        examination=Examination(Snapshot(), NO_PLAN, ()), seen={},
    )  # fmt: skip


def ended(follow_up: FollowUp, now: float = 0.0) -> list[tuple[str, str]]:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if told := follow_up.ended(now):
            return told
        time.sleep(0.05)
    return []


def test_it_is_told_what_is_known(tmp_path: Path) -> None:
    told = tmp_path / "told"
    names = ("JOB", "USER", "PIDS", "RANKS", "SECONDS", "EVIDENCE")
    follow_up = FollowUp(f"echo {'/'.join(f'$DDPDOCTOR_{name}' for name in names)} > {told}; exit 7", 600.0)
    assert follow_up.start(alarm(uid=OTHER), "evidence", 0.0) == ""
    assert ended(follow_up) == [("4711", "ended with exit code 7")]
    assert told.read_text() == f"4711/{OTHER}//1/601/evidence\n"
    assert follow_up.ended(0.0) == []


def test_what_it_starts_is_no_helper_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else `jobs`, `watch` and the others would not see a training that it starts anew."""
    monkeypatch.setenv("DDPDOCTOR_INQUIRY", "1")
    follow_up = FollowUp(f"env > {tmp_path}/environ", 600.0)
    assert follow_up.start(alarm(), "", 0.0) == ""
    assert ended(follow_up) == [("4711", "")]
    environ = (tmp_path / "environ").read_text()
    assert "DDPDOCTOR_JOB=4711" in environ
    assert "DDPDOCTOR_INQUIRY" not in environ


def test_nobody_waits_for_it_and_the_next_waits_its_turn(tmp_path: Path) -> None:
    follow_up = FollowUp(
        f'echo "$DDPDOCTOR_JOB" >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done', 600.0
    )
    assert follow_up.start(alarm("1"), "", 0.0) == ""
    assert follow_up.start(alarm("2"), "", 0.0).startswith("it waits until the one for job 1 (pid ")
    assert follow_up.start(alarm("3"), "", 0.0) != ""
    follow_up.forget("2")
    assert follow_up.ended(0.0) == []
    assert follow_up.left.startswith("still runs (pid ")
    assert follow_up.left.endswith("; it was not run for 1 alarm whose turn had not come")
    (tmp_path / "go").touch()
    assert ended(follow_up) == [("1", "")]
    assert ended(follow_up) == [("3", "")]
    assert follow_up.left == ""
    assert (tmp_path / "ran").read_text() == "1\n3\n"


def test_another_user_sets_it_off_once_in_a_while() -> None:
    follow_up = FollowUp("true", 600.0)
    assert follow_up.start(alarm("1", OTHER), "", 0.0) == ""
    assert ended(follow_up) == [("1", "")]
    said = follow_up.start(alarm("2", OTHER), "", 100.0)
    assert said == f"it waits, since one was run for a job of uid {OTHER} less than 600 s ago"
    assert follow_up.ended(599.0) == []
    # Who waits holds nobody else up.
    assert follow_up.start(alarm("3", OTHER + 1), "", 599.0) == ""
    assert ended(follow_up, 599.0) == [("3", "")]
    assert follow_up.ended(600.0) == []
    assert ended(follow_up, 600.0) == [("2", "")]


def test_it_gets_no_pid_of_another_user(tmp_path: Path) -> None:
    follow_up = FollowUp(f'echo "$DDPDOCTOR_JOB:$DDPDOCTOR_PIDS" >> {tmp_path}/ran', 600.0)
    own = os.getpid()
    assert follow_up.start(msgspec.structs.replace(alarm("1"), pids=(own,)), "", 0.0) == ""
    assert ended(follow_up) == [("1", "")]
    assert follow_up.start(msgspec.structs.replace(alarm("2", OTHER), pids=(own,)), "", 0.0) == ""
    assert ended(follow_up) == [("2", "")]
    assert (tmp_path / "ran").read_text() == f"1:{own}\n2:\n"


def test_ones_own_alarms_come_one_after_the_other() -> None:
    follow_up = FollowUp("true", 600.0)
    for job in ("1", "2"):
        assert follow_up.start(alarm(job), "", 0.0) == ""
        assert ended(follow_up) == [(job, "")]


def test_the_queue_is_bounded_and_what_is_dropped_is_said() -> None:
    follow_up = FollowUp("true", 600.0)
    assert follow_up.start(alarm("1", OTHER), "", 0.0) == ""
    for number in range(MAX_WAITING_OF_OWNER):
        assert "it waits" in follow_up.start(alarm(f"1{number}", OTHER), "", 0.0)
    said = follow_up.start(alarm("19", OTHER), "", 0.0)
    assert said == f"it is not run for this alarm, since 4 others of uid {OTHER}'s jobs wait for their turn"
    for number in range(MAX_WAITING - MAX_WAITING_OF_OWNER):
        assert "it waits" in follow_up.start(alarm(f"2{number}"), "", 0.0)
    assert "since 32 others wait" in follow_up.start(alarm("3", OTHER + 1), "", 0.0)
    assert ended(follow_up) == [("1", "")]
    follow_up.forget("20")
    ended(follow_up)


def test_without_a_command_nothing_is_started() -> None:
    follow_up = FollowUp("", 600.0)
    assert follow_up.start(alarm(), "", 0.0) == ""
    assert follow_up.left == ""
