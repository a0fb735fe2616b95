"""What a watch does with several jobs: none of them keeps it from looking at the others."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping

import msgspec
import pytest

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.hang import RasCount, WatchedRank
from ddpdoctor.facts.plan import NO_PLAN
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity, ProcessRole, RankPlace
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.probes.proc import Proc
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.watching import session
from ddpdoctor.watching.alarm import Alarm
from ddpdoctor.watching.counters import Counters
from ddpdoctor.watching.deep_look import DeepLook
from ddpdoctor.watching.events import Event, EventKind
from ddpdoctor.watching.job_track import START_SECONDS, JobTrack, WatchLimits
from ddpdoctor.watching.session import MAX_TURNS, Watch, WatchedJob, WatchWish
from tests.support.hangs import collective, hang, own, rank, rendezvous

LIMITS = WatchLimits(confirm=600.0, every=10.0)
OTHER = 61_234
"""Nobody's number."""
NOTHING = Processes(watched=0.0)


def process(pid: int, number: int, uid: int = OTHER) -> Process:
    place = RankPlace(rank=number, world_size=2, source="RANK")
    return Process(pid=pid, start=1, parent=1, uid=uid, user=f"user{uid}", role=ProcessRole.RANK, place=place)


def job(pid: int, uid: int = OTHER, ranks: int = 2) -> TrainingJob:
    """Its ranks' pids follow on its own."""
    return TrainingJob(name=str(pid), ranks=tuple(process(pid + 1 + number, number, uid) for number in range(ranks)))


class Played:
    """A watch over made-up jobs, and what it told."""

    def __init__(self, *jobs: TrainingJob) -> None:
        self.told: list[Event] = []
        self.sounded: list[Alarm] = []
        self.watch = Watch(
            WatchWish(name=None, limits=LIMITS), catalogue(), self.told.append, self.sound, lambda _: None
        )
        self.jobs = [WatchedJob(one, NOTHING, LIMITS) for one in jobs]
        for watched in self.jobs:
            watched.introduced = True
            self.watch.jobs[watched.job.name] = watched

    def sound(self, alarm: Alarm) -> str:
        self.sounded.append(alarm)
        return "/evidence"

    def round(self) -> None:
        asyncio.run(self.watch.look_at_all())

    def texts(self, kind: EventKind) -> list[str]:
        return [event.text for event in self.told if event.kind is kind]


def counted(runs: Mapping[int, int]) -> object:
    """In place of the kernel's counters; a pid that isn't there is one whose counters can't be read for a reason nobody thought of."""

    def count(identity: ProcessIdentity, _: Proc) -> Counters:
        return Counters(
            seconds=0.0, state="R", runs=runs[identity.pid], main_cpu=1.0, main_bytes=1, cpu=1.0, resident=1, major_faults=0
        )  # fmt: skip

    return count


def test_a_job_that_no_look_can_bear_keeps_nobody_from_looking_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {201: 7, 202: 7}
    monkeypatch.setattr(session, "count", counted(runs))
    played = Played(job(100), job(200))
    played.round()
    played.round()
    [problem] = played.texts(EventKind.PROBLEM)
    assert problem.startswith("Job 100 could not be looked at: ddpdoctor itself failed (KeyError: 101)")
    assert len(played.jobs[1].looks) == 2
    runs.update({101: 7, 102: 7})
    played.round()
    assert len(played.jobs[0].looks) == 1
    del runs[101]
    played.round()
    assert len(played.texts(EventKind.PROBLEM)) == 2


def still(played: Played) -> None:
    """Have the first job stand still for as long as it takes, but for the last look."""
    track = played.jobs[0].track
    began = min(track.moved.values())
    looked = hang(rank(0, collective()), rank(1, own()))
    for number in range(4):
        at = began + 300.0 * number
        track.note_deep(DeepLook(began=at, ended=at + 2.0, hang=looked))


def test_an_alarm_that_could_not_be_given_is_given_by_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(job(100))
    still(played)
    tried: list[int] = []

    def examine(*_: object, **__: object) -> Examination:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("no examination")
        return Examination(Snapshot(hang=hang(own_server="localhost:25999")), NO_PLAN, ())

    async def look(watched: WatchedJob) -> None:
        if watched.track.hang_is_due():
            played.watch.alarm(watched)

    monkeypatch.setattr(session, "examine_still_job", examine)
    monkeypatch.setattr(session, "who_lags", lambda _: ("rank 1 lags", (1,)))
    monkeypatch.setattr(played.watch, "_look", look)
    played.round()
    assert played.watch.alarms == 0
    assert not played.jobs[0].track.hanging
    assert "no examination" in played.texts(EventKind.PROBLEM)[0]
    played.round()
    played.round()
    assert played.watch.alarms == len(played.sounded) == len(played.texts(EventKind.HANG)) == 1
    [alarm] = (event for event in played.told if event.kind is EventKind.HANG)
    assert alarm.details == (
        "Look closer:",
        "ddpdoctor jobs --hang 100",
        "ddpdoctor jobs --hang --debug-server localhost:25999",
    )


@pytest.mark.parametrize(("later", "alarms"), [(100, 1), (101, 0)], ids=["stands", "goes on"])
def test_what_ras_has_counted_is_believed(later: int, alarms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job whose stacks are the same all the while."""
    counts = (RasCount(communicator="0xab", rank=0, first=(("AllReduce", 100),), second=(("AllReduce", later),)),)
    seen = hang(rank(0, collective()), rank(1, collective()), counts=counts)
    monkeypatch.setattr(session, "examine_still_job", lambda *_, **__: Examination(Snapshot(hang=seen), NO_PLAN, ()))
    played = Played(job(100))
    still(played)
    assert played.jobs[0].track.hang_is_due()
    played.watch.alarm(played.jobs[0])
    assert played.watch.alarms == len(played.sounded) == alarms
    assert played.jobs[0].track.hanging is bool(alarms)
    assert (played.jobs[0].track.stillness() is None) is (alarms == 0)


@pytest.mark.parametrize(
    ("uids", "rounds", "said"),
    [((OTHER,) * 5 + (OTHER + 1,), 3, 1), ((OTHER,) * 2, 1, 0), ((None,) * 5, 1, 0)],
    ids=["many of one user", "few", "our own"],
)
def test_one_users_jobs_do_not_keep_the_watch_from_those_of_others(
    uids: tuple[int | None, ...], rounds: int, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job(100 * (n + 1), os.geteuid() if uid is None else uid) for n, uid in enumerate(uids)]
    monkeypatch.setattr(session, "count", counted({one.pid: 7 for its in jobs for one in its.ranks}))
    played = Played(*jobs)
    for watched in played.jobs:
        watched.track = JobTrack(LIMITS, time.monotonic() - 500.0, watched.track.ranks)
    looked: list[list[WatchedJob]] = []

    async def look_deeply(watched: WatchedJob) -> None:
        looked[-1].append(watched)

    monkeypatch.setattr(played.watch, "_look_deeply", look_deeply)
    for _ in range(rounds):
        looked.append([])
        played.round()
        for uid in set(uids) - {None}:
            assert 0 < sum(watched.uid == uid for watched in looked[-1]) <= MAX_TURNS
    # None is left out for ever.
    assert {watched.job.name for its in looked for watched in its} == {one.name for one in jobs}
    assert len(played.texts(EventKind.PROBLEM)) == said


def test_ranks_that_come_later_are_in_the_books() -> None:
    watched = Played(job(100, ranks=1)).jobs[0]
    watched.take(job(100, ranks=3), NOTHING)
    assert watched.track.ranks == {0: 101, 1: 102, 2: 103}
    assert set(watched.track.last_ran) == set(watched.track.moved) == {0, 1, 2}


def test_a_rank_that_is_started_anew_takes_the_place_of_the_one_that_is_gone() -> None:
    played = Played(job(100))
    [watched] = played.jobs
    watched.track.note(time.monotonic(), {})
    assert watched.track.gone == {0, 1}
    started = TrainingJob(name="100", ranks=(process(101, 0), process(300, 1)))
    watched.take(started, NOTHING)
    assert watched.track.ranks == {0: 101, 1: 300}
    assert watched.track.gone == {0}
    assert [rank.pid for rank in watched.job.ranks] == [101, 300]


def test_the_books_are_extended_while_a_named_job_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(job(100, ranks=1))
    played.watch = Watch(
        WatchWish(name="100", limits=LIMITS), catalogue(), played.told.append, played.sound, lambda _: None
    )
    played.watch.jobs["100"] = played.jobs[0]
    monkeypatch.setattr(played.watch, "_list", lambda: NOTHING)
    monkeypatch.setattr(session, "jobs_of", lambda _: (job(100, ranks=2), job(200)))
    played.watch.find(0.0)
    assert played.jobs[0].track.ranks == {0: 101, 1: 102}
    assert list(played.watch.jobs) == ["100"]


def test_a_pause_is_told_once_for_as_long_as_the_others_have_not_run() -> None:
    played = Played(job(100))
    [watched] = played.jobs
    track, limits = watched.track, watched.limits
    began = track.last_ran[0]
    waits, works, sleeps = rank(0, collective()), rank(1, own("evaluate"), cores=0.9, moved=1 << 22), rank(1, own())

    def holds_up(now: float, other: WatchedRank) -> float:
        track.note_deep(DeepLook(began=now - 2.0, ended=now, hang=hang(waits, other)))
        played.watch._tell_of_pause(watched, now)
        [_, one] = session._measure(watched, now).ranks
        return one.holds_up

    seconds = [
        holds_up(began + limits.suspect * number, other) for number, other in enumerate((works, sleeps, works), 1)
    ]
    assert min(seconds) > 0
    assert len(played.texts(EventKind.PAUSE)) == 1
    track.hanging = True
    assert holds_up(began + 4 * limits.suspect, sleeps) == 0.0
    now = began + 5 * limits.suspect
    track.last_ran = dict.fromkeys(track.ranks, now)
    played.watch._tell_of_pause(watched, now)
    assert holds_up(now + limits.suspect, works) == 0.0
    track.hanging = False
    assert len(played.texts(EventKind.PAUSE)) == 2
    assert holds_up(now + 2 * limits.suspect, works) > 0


def test_a_job_that_its_launcher_starts_anew_is_granted_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Process(pid=100, start=1, parent=1, role=ProcessRole.LAUNCHER)
    first, again = (msgspec.structs.replace(job(pid), name="100", launchers=(launcher,)) for pid in (100, 300))
    played = Played(first)
    played.jobs[0].limits = WatchLimits(confirm=10.0, every=1.0)
    monkeypatch.setattr(session, "count", lambda *_: None)
    monkeypatch.setattr(session, "jobs_of", lambda _: (again,))
    monkeypatch.setattr(played.watch, "_list", lambda: NOTHING)
    monkeypatch.setattr(played.watch, "_lives", lambda _: True)
    played.round()
    assert played.texts(EventKind.RESTARTED) == ["Job 100 has been started anew by its launcher: 2 ranks."]
    track = played.jobs[0].track
    assert track.ranks == {0: 301, 1: 302}
    began = track.moved[0]
    for seconds, due in ((0.0, False), (10.0, False), (100.0, False), (START_SECONDS, True)):
        at = began + seconds
        track.note_deep(DeepLook(began=at, ended=at + 2.0, hang=hang(rank(0, rendezvous()), rank(1, own()))))
        assert track.hang_is_due() is due
