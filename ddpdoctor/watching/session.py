"""Looks at the jobs again and again until they have ended, and tells what comes of them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from ddpdoctor.base.ownership import user_name
from ddpdoctor.base.text import clip, listed, one_line, pid_named, plural, ranks_named
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.hang.fixes import ask_its_server
from ddpdoctor.hang.judging import hang_of
from ddpdoctor.hang.permission import Missed, hidden_stacks, powers
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.processes.listing import probe
from ddpdoctor.probes.py_spy import spy
from ddpdoctor.processes.jobs import TrainingJob, jobs_of
from ddpdoctor.processes.overview import UnknownJobError, members, named_job
from ddpdoctor.watching.alarm import Alarm, examine_still_job, is_hang, moves_by_ras, who_lags
from ddpdoctor.watching.counters import count
from ddpdoctor.watching.deep_look import look_deeply, whole_look
from ddpdoctor.watching.events import Event, EventKind
from ddpdoctor.watching.job_track import START_SECONDS, JobTrack, WatchLimits
from ddpdoctor.watching.metrics import JobMeasure, RankMeasure
from ddpdoctor.watching.movement import STILL, words_for

FIND_SECONDS: Final = 60.0
"""At least so long it is between two looks for new jobs, which go over all processes of the host."""
FIND_COST: Final = 1000
"""The look for new jobs is taken so seldom that it takes a thousandth of a core at most."""
MAX_TURNS: Final = 2
"""So many jobs of one other user are looked at by more than counters in one round: hundreds of made-up jobs keep nobody from looking at
those of others."""
KEPT_LOOKS: Final = 240
"""Of a job, for the evidence."""


class NotWatchedError(Exception):
    """Why there is nothing to watch, in a sentence."""


class WatchWish(msgspec.Struct, frozen=True, kw_only=True):
    """What is watched.

    name: the job, by the pid of any process of it; None for all, those that start later, too. ras: ask NCCL's RAS where one has stopped.
    """

    name: str | None
    limits: WatchLimits
    ras: bool = False


class WatchedJob:
    """One job, its books, and what was told of it."""

    def __init__(self, job: TrainingJob, processes: Processes, limits: WatchLimits) -> None:
        self.job = job
        self.processes = processes
        self.limits = limits
        self.looks: deque[Mapping[str, Any]] = deque(maxlen=KEPT_LOOKS)
        self.pausing = False
        self.introduced = False
        """It was told what can't be seen of it."""
        self.turn_at = 0.0
        """When it last had its turn for more than counters."""
        self.failed = False
        """The last look at it could not be taken to its end, and that was said."""
        self.relist_at = 0.0
        """When all processes of the host may be listed again, since ranks are gone."""
        self.begin()

    def begin(self, *, anew: bool = False) -> None:
        """Start the books, for the ranks that the job has now. anew: its launcher has just started these anew."""
        ranks = {number: rank.pid for number, rank in self.ranks.items()}
        self.track = JobTrack(self.limits, time.monotonic(), ranks, anew=anew)
        self.looks.clear()
        self.pausing = False

    @property
    def uid(self) -> int:
        """Whose it is: what any process may say of a launcher isn't believed, but whose the ranks are is the kernel's word."""
        return self.job.ranks[0].uid

    @property
    def ranks(self) -> Mapping[int, Process]:
        return {rank.place.rank: rank for rank in self.job.ranks if rank.place}

    def take(self, job: TrainingJob, processes: Processes) -> None:
        """Take what the job looks like now, with ranks that are new; ranks that are gone stay in it, since the others may wait for them."""
        there = {rank.pid for rank in job.ranks}
        places = {rank.place.rank for rank in job.ranks if rank.place}
        gone = tuple(
            rank for rank in self.job.ranks if rank.pid not in there and not (rank.place and rank.place.rank in places)
        )
        self.job = msgspec.structs.replace(job, name=self.job.name, ranks=(*job.ranks, *gone))
        self.processes = processes
        self.track.take(time.monotonic(), {number: rank.pid for number, rank in self.ranks.items()})


class Watch:
    """A watch over jobs.

    Args:
        wish: what is watched.
        catalogue: the checks that judge a job which has stopped.
        tell: is told of each event, in order.
        sound: is told of each job that has stopped moving, and returns the folder with the evidence, "" where there is none.
        after_look: is called after each look at all jobs, with what is known of each.
    """

    def __init__(
        self,
        wish: WatchWish,
        catalogue: Catalogue,
        tell: Callable[[Event], None],
        sound: Callable[[Alarm], str],
        after_look: Callable[[Sequence[JobMeasure]], None],
    ) -> None:
        self._wish = wish
        self._catalogue = catalogue
        self._tell = tell
        self._sound = sound
        self._after_look = after_look
        self._proc = Proc()
        self._host = socket.gethostname()
        self.jobs: dict[str, WatchedJob] = {}
        """By name, those that are watched now."""
        self._find_at = 0.0
        self._turns: dict[str, int] = {}
        """Jobs that had their turn in this round, and whose they are."""
        self._put_off: set[int] = set()
        """Users of whom it was said that jobs of theirs are looked at later."""
        self.alarms = 0
        self.seen = 0
        """Jobs that were watched."""

    async def run(self) -> None:
        """Watch until the job has ended; all jobs until stopped.

        Raises:
            NotWatchedError: there is no such job, or this user can't watch it.
        """
        if self._wish.name is not None:
            await self._find_named(self._wish.name)
        while True:
            began = time.monotonic()
            self.find(began)
            await self.look_at_all()
            self._after_look([_measure(watched, time.monotonic()) for watched in self.jobs.values()])
            if self._wish.name is not None and not self.jobs:
                return
            await asyncio.sleep(max(0.1, began + self._wish.limits.every - time.monotonic()))

    # --- which jobs ---------------------------------------------------------------------------------------------------------

    def _list(self) -> Processes | Unknown:
        return probe(Context(sys.executable, "ddpdoctor", quick=True, asked=pid_named(self._wish.name or "")))

    async def _find_named(self, name: str) -> None:
        waits = False
        while True:
            processes = self._list()
            if isinstance(processes, Unknown):
                raise NotWatchedError(f"The processes of this host could not be seen: {processes.reason}.")
            try:
                job = named_job(name, jobs_of(processes), processes)
                break
            except UnknownJobError as error:
                if why := self._foreign(name):
                    raise NotWatchedError(why) from None
                if not self._may_become_job(name):
                    raise NotWatchedError(str(error)) from None
            if not waits:
                text = (
                    f"pid {name.strip()} has no ranks yet; they are waited for until it is {START_SECONDS:.0f} s old."
                )
                self._tell(Event(kind=EventKind.WAITS, job=name, text=text))
            waits = True
            await asyncio.sleep(1.0)
        if not any(rank.place for rank in job.ranks):
            if why := self._foreign(name):
                raise NotWatchedError(why)
            raise NotWatchedError(f"Nobody says which ranks the processes of job {job.name} are; it can't be watched.")
        self._find_at = time.monotonic() + FIND_SECONDS
        self._add(job, processes)

    def _foreign(self, name: str) -> str:
        """Say that a process belongs to another user, into whose processes this one can't look; "" where that is not so."""
        pid = pid_named(name)
        owner = self._proc.owner(pid) if pid else -1
        if owner < 0 or os.geteuid() in (0, owner):
            return ""
        user = user_name(owner)
        command = f"sudo {sys.executable} -I -m ddpdoctor watch {pid}"
        return f"pid {pid} belongs to {user}: only {user} and root can watch its job. Root does it so: {command}"

    def _may_become_job(self, name: str) -> bool:
        """Whether that process lives, and is so young that its ranks may only just start."""
        pid = pid_named(name)
        stat = self._proc.stat(pid) if pid else Unknown("no pid")
        return not isinstance(stat, Unknown) and not stat.ended and stat.age < START_SECONDS

    def find(self, now: float) -> None:
        """Find, now and then, jobs that have started since and are wanted, and new ranks of those that are watched."""
        if now < self._find_at:
            return
        used = time.process_time()
        processes = self._list()
        used = time.process_time() - used
        self._find_at = now + max(FIND_SECONDS, self._wish.limits.every, FIND_COST * used)
        if isinstance(processes, Unknown):
            return
        known = {rank.identity: watched for watched in self.jobs.values() for rank in watched.job.ranks}
        for job in jobs_of(processes):
            watched = next((known[rank.identity] for rank in job.ranks if rank.identity in known), None)
            if watched is not None:
                watched.take(job, processes)
            elif self._wish.name is None and job.name not in self.jobs and any(rank.place for rank in job.ranks):
                self._add(job, processes)

    def _add(self, job: TrainingJob, processes: Processes) -> None:
        watched = WatchedJob(job, processes, self._wish.limits)
        self.jobs[job.name] = watched
        self.seen += 1
        first = job.launcher or job.ranks[0]
        world = f" of {job.world_size}" if job.world_size and job.world_size > len(job.ranks) else ""
        limits = self._wish.limits
        text = (
            f"Watching job {job.name} ({one_line(clip(first.command or first.name, 80))}): {plural(len(job.ranks), 'rank')}{world}, "
            f"looked at every {limits.every:g} s; a word if nothing of it moves for {limits.confirm:g} s."
        )
        self._tell(Event(kind=EventKind.FOUND, job=job.name, text=text))

    async def _introduce(self, watched: WatchedJob) -> None:
        """Tell what can't be seen of a job."""
        watched.introduced = True
        name = watched.job.name
        for sentence in await self._hidden(watched):
            self._tell(Event(kind=EventKind.HIDDEN, job=name, text=f"Job {name}: {sentence}"))

    async def _hidden(self, watched: WatchedJob) -> list[str]:
        """Say whose stacks can't be read: of these a hang is only seen where they do nothing at all."""
        ranks = watched.ranks
        spied = await spy(rank.pid for rank in ranks.values())
        missed = [
            Missed(rank=number, process=rank, trouble=found.trouble)
            for number, rank in ranks.items()
            if (found := spied[rank.pid]).trouble and self._proc.stat(rank.pid)
        ]
        sentences = hidden_stacks(missed, powers(self._proc), watched.job.name)
        nameless = [rank.pid for rank in watched.job.ranks if rank.place is None]
        if nameless:
            sentences.append(f"Which rank pid {listed(nameless)} may be, nobody says; it is not watched.")
        return sentences

    async def look_at_all(self) -> None:
        """Look at each job once."""
        self._turns.clear()
        for watched in sorted(self.jobs.values(), key=lambda one: one.turn_at):
            await self._look_safely(watched)

    def _has_turn(self, watched: WatchedJob, *, say: bool = False) -> bool:
        """Whether a job may be looked at by more than counters in this round: of each other user, a few may. say: tell of the first
        that may not."""
        uid = watched.uid
        if uid == os.geteuid() or watched.job.name in self._turns:
            return True
        if list(self._turns.values()).count(uid) < MAX_TURNS:
            self._turns[watched.job.name] = uid
            watched.turn_at = time.monotonic()
            return True
        if say and uid not in self._put_off:
            self._put_off.add(uid)
            self._tell(Event(kind=EventKind.PROBLEM, job="", text=put_off_words(uid)))
        return False

    async def _look_safely(self, watched: WatchedJob) -> None:
        """Look at a job; where that fails, say so once, and go on with the others: one that no look can bear blinds nobody."""
        try:
            await self._look(watched)
        except Exception as error:  # Whatever it is, the other jobs are watched on.
            if not watched.failed:
                self._tell(Event(kind=EventKind.PROBLEM, job=watched.job.name, text=_failed_words(watched, error)))
            watched.failed = True
        else:
            watched.failed = False

    # --- one look at one job ------------------------------------------------------------------------------------------------

    async def _look(self, watched: WatchedJob) -> None:
        track = watched.track
        now = time.monotonic()
        track.note(
            now,
            {
                number: counters
                for number, rank in watched.ranks.items()
                if (counters := count(rank.identity, self._proc))
            },
        )
        watched.looks.append(_as_data(watched, now))
        if track.gone and self._has_changed(watched, now):
            return
        if not watched.introduced and self._has_turn(watched):
            await self._introduce(watched)
        if track.wants_deep_look(now):
            if self._has_turn(watched, say=True):
                await self._look_deeply(watched)
        elif track.wants_stacks(now) and self._has_turn(watched, say=True):
            living = track.living
            spied = await spy(living.values())
            if track.note_stacks(time.monotonic(), {rank: spied[pid].frames for rank, pid in living.items()}):
                await self._look_deeply(watched)
        self._tell_of_pause(watched, time.monotonic())

    def _has_changed(self, watched: WatchedJob, now: float) -> bool:
        """Whether the job has ended, or its launcher has started it anew, now that ranks are gone."""
        track = watched.track
        alive = set(track.ranks) - track.gone
        launchers = [launcher for launcher in watched.job.launchers if self._lives(launcher)]
        if not alive and not launchers:
            self._end(watched)
            return True
        if now < watched.relist_at or not self._has_turn(watched):
            return not alive
        watched.relist_at = now + watched.limits.between_deep
        processes = self._list()
        if isinstance(processes, Unknown):
            return not alive
        old = {rank.identity for rank in watched.job.ranks}
        names = {launcher.pid for launcher in watched.job.launchers}
        for job in jobs_of(processes):
            if names & {launcher.pid for launcher in job.launchers} and not old.intersection(
                rank.identity for rank in job.ranks
            ):
                watched.job = msgspec.structs.replace(job, name=watched.job.name)
                watched.processes = processes
                watched.begin(anew=True)
                text = (
                    f"Job {watched.job.name} has been started anew by its launcher: {plural(len(job.ranks), 'rank')}."
                )
                self._tell(Event(kind=EventKind.RESTARTED, job=watched.job.name, text=text))
                return True
        return not alive  # The launcher lives, and may start others.

    def _lives(self, process: Process) -> bool:
        stat = self._proc.stat(process.pid)
        return not isinstance(stat, Unknown) and stat.start == process.start and not stat.ended

    def _end(self, watched: WatchedJob) -> None:
        del self.jobs[watched.job.name]
        hung = " It had not moved until then." if watched.track.hanging else ""
        text = f"Job {watched.job.name} has ended.{hung}"
        self._tell(Event(kind=EventKind.ENDED, job=watched.job.name, text=text))

    async def _look_deeply(self, watched: WatchedJob) -> None:
        track = watched.track
        self._take_anew(watched)
        still = track.stillness()
        asleep = track.asleep(time.monotonic())
        deep = await look_deeply(watched.job, watched.processes, self._host, self._proc, asleep)
        track.note_deep(deep)
        if track.hanging and any(movement.why for movement in track.why.values()):
            track.hanging = False
            seconds = deep.ended - still.since if still else 0.0
            stood = f" after {seconds:.0f} s" if still else ""
            text = f"Job {watched.job.name} moves again{stood}."
            self._tell(Event(kind=EventKind.MOVES, job=watched.job.name, text=text, seconds=seconds))
        elif track.hang_is_due():
            self.alarm(watched)

    def _take_anew(self, watched: WatchedJob) -> None:
        """See which processes the job has now: DataLoader workers come and go."""
        processes = self._list()
        if isinstance(processes, Unknown):
            return
        own = members(watched.job)
        job = next((job for job in jobs_of(processes) if own & {rank.pid for rank in job.ranks}), None)
        if job is not None:
            watched.take(job, processes)

    # --- what is told -------------------------------------------------------------------------------------------------------

    def alarm(self, watched: WatchedJob) -> None:
        """Examine a job that has stood still for as long as it takes, and sound the alarm."""
        track, job = watched.track, watched.job
        still = track.stillness()
        assert still is not None
        assert track.first is not None
        assert track.last is not None
        whole = whole_look(track.first, track.last)
        if not still.slept and not is_hang(whole):
            # All run all the while, and by what was seen together they go on.
            track.note_moved(track.last.ended)
            return
        seconds = track.last.ended - still.since
        examination = examine_still_job(job, whole, self._catalogue, ras=self._wish.ras)
        if moves_by_ras(examination):
            track.note_moved(time.monotonic())
            return
        text, culprits = who_lags(examination)
        folder = self._sound(
            Alarm(
                job=job.name,
                uid=watched.uid,
                text=text,
                seconds=seconds,
                culprits=culprits,
                pids=tuple(rank.pid for rank in job.ranks if rank.place and rank.place.rank not in track.gone),
                examination=examination,
                seen=_seen(watched, seconds),
            )
        )
        # Not before: where something has failed until here, the next look tries again.
        track.hanging = True
        self.alarms += 1
        details = ["Look closer:", f"ddpdoctor jobs --hang {job.name}"]
        if command := ask_its_server(hang_of(examination)):
            # It tells of the ranks' flight recorders what stacks don't: a shape that differs.
            details.append(command)
        away = (job.world_size or 0) - len(track.ranks)
        if away > 0:
            details.append(f"{plural(away, 'rank')} on other hosts can't be seen from here: watch there, too.")
        self._tell(
            Event(
                kind=EventKind.HANG,
                job=job.name,
                text=f"Job {job.name} has not moved for {seconds:.0f} s: {text}",
                seconds=seconds,
                folder=folder,
                details=tuple(details),
            )
        )

    def _tell_of_pause(self, watched: WatchedJob, now: float) -> None:
        """Tell once of each pause in which ranks wait for one that works."""
        track = watched.track
        seconds = track.waited(now)
        if seconds < watched.limits.suspect:
            watched.pausing = False
            return
        seen = [state for state in track.held_up_by if track.why.get(state.number, STILL).why]
        if watched.pausing or not seen:
            return
        watched.pausing = True
        who = ranks_named(state.number for state in seen)
        first = seen[0]
        verb = "holds" if len(seen) == 1 else "hold"
        doing = words_for(track.why[first.number], first.place)
        text = f"Job {watched.job.name}: {who} {verb} the others up for {seconds:.0f} s so far, {doing}."
        self._tell(Event(kind=EventKind.PAUSE, job=watched.job.name, text=one_line(text), seconds=seconds))


def put_off_words(uid: int) -> str:
    """Say that some jobs of a user must wait for their turn."""
    return (
        f"More than {MAX_TURNS} jobs of {user_name(uid)} need a closer look at the same time: the others are looked at later, "
        f"so that other users' jobs are looked at in time, and a hang of theirs may be told later."
    )


def _failed_words(watched: WatchedJob, error: Exception) -> str:
    why = one_line(clip(f"{type(error).__name__}: {error}", 200))
    return (
        f"Job {watched.job.name} could not be looked at: ddpdoctor itself failed ({why}). That is a bug in it. "
        f"The next look tries again; other jobs are watched as before."
    )


def _measure(watched: WatchedJob, now: float) -> JobMeasure:
    track = watched.track
    still = track.stillness()
    holding = {state.number for state in track.held_up_by} if watched.pausing and not track.hanging else set()
    return JobMeasure(
        job=watched.job.name,
        still=now - still.since if still else 0.0,
        hangs=track.hanging,
        ranks=tuple(
            RankMeasure(
                rank=rank,
                idle=now - track.last_ran[rank],
                holds_up=track.waited(now) if rank in holding else 0.0,
            )
            for rank in sorted(track.ranks)
            if rank not in track.gone
        ),
    )


def _as_data(watched: WatchedJob, now: float) -> Mapping[str, Any]:
    return {
        "at": round(time.time(), 3),
        "ranks": {
            str(rank): {
                **msgspec.to_builtins(counters),
                "seconds_since_it_ran": round(now - watched.track.last_ran[rank], 3),
            }
            for rank, counters in watched.track.counters.items()
            if rank not in watched.track.gone
        },
    }


def _seen(watched: WatchedJob, seconds: float) -> Mapping[str, Any]:
    track = watched.track
    return {
        "job": watched.job.name,
        "still_seconds": round(seconds, 3),
        "confirm_seconds": watched.limits.confirm,
        "ranks": {str(rank): pid for rank, pid in sorted(track.ranks.items())},
        "gone": sorted(track.gone),
        "looks": list(watched.looks),
    }
