"""Runs one host's ranks: starts them in the target Python, listens, gives up in time, and leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

from ddpdoctor.base.async_work import within
from ddpdoctor.base.private_folders import Folder, Needs, NoFolderError, private_folder
from ddpdoctor.facts.smoke import Leftovers, RankRun
from ddpdoctor.network_check.protocol.messages import ENOUGH
from ddpdoctor.probes.smoke_notes import PREFIX
from ddpdoctor.smoke_training.local import rank_outcome as outcome
from ddpdoctor.smoke_training.local.earlier_runs import clear_up_earlier
from ddpdoctor.smoke_training.local.leftovers import LeftoverTracker
from ddpdoctor.smoke_training.local.oom import oom_kills
from ddpdoctor.smoke_training.local.rank_listener import RankListener
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_progress import RankProgress
from ddpdoctor.smoke_training.local.rank_stacks import RankStack, ask, crash_of
from ddpdoctor.smoke_training.local.reaper_client import ReaperClient
from ddpdoctor.smoke_training.training_order import TrainingOrder

TRAINER: Final = Path(__file__).parent.parent / "trainer" / "start.py"

SECOND_THOUGHTS: Final = 1.0
"""Seconds after a rank failed in which the others may say what they think of it."""
EXPLAINING_SECONDS: Final = 5.0
"""So long may it take until it is known how a rank ended that went without a word, or what has ended them all."""
GOING_SECONDS: Final = 1.0
"""So long may a rank outlive the engine."""
LISTENING_SECONDS: Final = 0.05
"""If nothing comes in so long, we have heard all that has been said already: a doctor who was stopped, or had no core, is
behind."""
BACKLOG_SECONDS: Final = 3.0
"""So long do we hear it at most: somebody may talk for ever."""
PATIENCE: Final = 3600.0

FOLDER: Final = Needs(
    prefix=PREFIX,
    room_bytes=1 << 20,
    max_path_length=(75, "its path is too long for the sockets of multiprocessing"),
)
"""For the store, a checkpoint of the small model, and the engine's own files; the socket of multiprocessing's server lies in it, and
a socket's path has 107 characters at most."""


class HostRun:
    """What one host's run came to. folder: as in `folders.Folder`."""

    def __init__(
        self,
        runs: tuple[RankRun, ...],
        watch: RankMonitor,
        problem: str,
        leftovers: Leftovers = Leftovers(),  # noqa: B008 (frozen)
        folder: Folder | None = None,
    ) -> None:
        self.runs = runs
        self.torch = watch.torch
        self.figures = tuple(watch.figures)
        self.problem = problem
        self.missing = watch.engine_missing or next((rank.missing for rank in watch.ranks.values() if rank.missing), "")
        self.leftovers = leftovers
        self.folder = folder


async def run_ranks(
    order: TrainingOrder,
    *,
    python: str,
    environ: Mapping[str, str],
    heard: Callable[[RankMonitor], None] = lambda watch: None,
) -> HostRun:
    """Runs the ranks to their end, or to the moment when one is late or has failed.

    python: the target Python's interpreter. environ: the settings that training would inherit. heard: called whenever something
    new is known; what it raises ends the run.

    Cancelled with ENOUGH it ends all, and gives what is known by then; with anything else it ends all before the
    cancellation goes on.
    """
    return await _Run(order, python, environ, heard).run()


class _Run:
    def __init__(
        self, order: TrainingOrder, python: str, environ: Mapping[str, str], heard: Callable[[RankMonitor], None]
    ) -> None:
        self._order = order
        self._python = python
        self._environ = environ
        self._heard = heard
        self._watch = RankMonitor(order, time.monotonic())
        self._news = asyncio.Event()
        self._ears = RankListener(self._watch, self._tell, self._fail)
        self._keeper = ReaperClient(self._watch, self._tell)
        self._late: list[RankProgress] = []
        self._failure: BaseException | None = None
        self._mapped: set[int] = set()

    async def run(self) -> HostRun:
        clear_up_earlier(self._environ)
        try:
            folder = private_folder(self._environ, FOLDER)
        except NoFolderError as error:
            return self._ran(str(error))
        self._traces = LeftoverTracker(folder.path)
        leftovers = Leftovers()
        problem = ""
        kills = oom_kills()
        try:
            self._ears.open()
            await self._keeper.start(self._command(folder.path), folder.path, self._environ)
            await self._until_over()
        except asyncio.CancelledError as error:
            if error.args != (ENOUGH,):
                raise
            await self._ask(self._running())
        except OSError as error:
            problem = f"the ranks could not be started: {error.strerror or error}"
        finally:
            if kills is not None:
                self._watch.oom_kills = (oom_kills() or kills) - kills
            leftovers = await _regardless(self._end(folder.path))
        if self._failure is not None:
            raise self._failure
        return self._ran(problem, leftovers, folder)

    def _ran(self, problem: str, leftovers: Leftovers = Leftovers(), folder: Folder | None = None) -> HostRun:  # noqa: B008
        runs = outcome.runs(self._watch, socket.gethostname(), self._late)
        return HostRun(runs, self._watch, problem or outcome.problem(self._watch, self._late), leftovers, folder)

    def _command(self, folder: str) -> list[str]:
        return [self._python, os.fspath(TRAINER), self._order.to_json(self._ears.channel, folder)]

    async def _end(self, folder: str) -> Leftovers:
        """All of it."""
        self._watch.ended_at = time.monotonic()
        self._traces.note(self._keeper.kept())
        await self._keeper.end()
        await self._ears.close()
        rmtree(folder, ignore_errors=True)
        for rank in self._watch.ranks.values():
            crash_of(rank)
        return self._traces.clear_up()

    def _tell(self) -> None:
        self._note_mappings()
        try:
            self._heard(self._watch)
        except Exception as error:
            self._fail(error)
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()

    def _note_mappings(self) -> None:
        """NCCL's shared memory, once each rank has been through its first collective: of a rank that is killed later on
        nobody could tell what it had."""
        if self._order.backend != "nccl" or "process group" not in self._order.stages:
            return
        through = self._order.stages.index("process group") + 1
        for rank in self._watch.ranks.values():
            if rank.rank not in self._mapped and rank.position[0] > through and rank.gone_at is None:
                self._mapped.add(rank.rank)
                self._traces.note([rank.pid])

    # --- until it is over -----------------------------------------------------------------------------------------------

    async def _until_over(self) -> None:
        watch = self._watch
        while True:
            # Before looking: what comes from here on is news, also what comes while we hear the backlog below.
            self._news.clear()
            if watch.engine_over or self._failure is not None:
                break
            if watch.failed:
                if await self._hear_the_others():
                    return None
                continue  # A rank's end was heard, from its parent, before its last words were.
            if watch.late(time.monotonic()):
                await self._hear_the_backlog()
                if not watch.failed and (late := watch.late(time.monotonic())):
                    self._late = watch.held_up(late)
                    return await self._ask_those_who_run()
            if watch.engine_late(time.monotonic()):
                return None
            if self._news.is_set():
                continue
            await self._hear(min(watch.next_due(), time.monotonic() + PATIENCE))
        await self._until_known(lambda: watch.all_gone, GOING_SECONDS)
        if not watch.all_gone:
            await self._hear_the_backlog()
        if watch.failed:
            await self._hear_the_others()
        return None

    async def _hear(self, until: float) -> None:
        """Until there is news, or it is that late."""
        with suppress(TimeoutError):
            await within(max(0.0, until - time.monotonic()), self._news.wait())

    async def _until_known(self, known: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not known() and time.monotonic() < until:
            await asyncio.sleep(0.01)

    async def _hear_the_others(self) -> bool:
        """After a failure: where those are that still run, before the engine ends them, and then what they have to say.
        Whether it was one."""
        began = time.monotonic()
        await self._ask(self._running())
        watch = self._watch

        def known() -> bool:
            thought = watch.all_over or watch.engine_over or time.monotonic() > began + SECOND_THOUGHTS
            return not watch.failed or (thought and not watch.unexplained)

        await self._until_known(known, EXPLAINING_SECONDS)
        await self._hear_the_backlog()
        return watch.failed

    async def _hear_the_backlog(self) -> None:
        """What has been said already. There is news then for whoever looks next."""
        until = time.monotonic() + BACKLOG_SECONDS
        while time.monotonic() < until:
            self._news.clear()
            await asyncio.sleep(LISTENING_SECONDS)
            if not self._news.is_set():
                break
        self._news.set()

    # --- where they are -------------------------------------------------------------------------------------------------

    def _running(self) -> list[RankProgress]:
        """Ranks that can be asked: a stage has begun, so that they know how to answer."""
        return [
            rank
            for rank in self._watch.ranks.values()
            if rank.stage
            and rank.failed_at is None
            and rank.gone_at is None
            and (not rank.finished_at or rank in self._late)
        ]

    async def _ask_those_who_run(self) -> None:
        await self._ask(self._running())
        if unheard := [progress for progress in self._late if not progress.pid]:
            await self._ask_the_engine(unheard)

    async def _ask(self, ranks: Sequence[RankProgress]) -> None:
        found = await ask({rank.pid: rank for rank in ranks})
        for rank in ranks:
            if rank.failed_at is None and (found[rank.pid].frames or rank.gone_at is None):
                _settle([rank], found[rank.pid])

    async def _ask_the_engine(self, ranks: Sequence[RankProgress]) -> None:
        """Where that process is which should have started these ranks."""
        watch = self._watch
        for pid, whose in ((watch.engine_pid, "torch's engine"), (watch.server_pid, "the ranks' parent")):
            if not pid:
                continue
            found = (await ask({pid: watch.engine}))[pid]
            if found.state:
                watch.held = f"{whose} (process {pid}) is {found.state}"
            _settle(ranks, RankStack(found.frames, f"{found.source} of {whose}" if found.frames else "", found.state))
            if not any("multiprocessing/" in frame for frame in found.frames):
                return  # Else it waits for the other one.


def _settle(ranks: Iterable[RankProgress], found: RankStack) -> None:
    for rank in ranks:
        rank.stack, rank.stack_source, rank.process_state = found.frames, found.source, found.state


async def _regardless(work: Coroutine[Any, Any, Leftovers]) -> Leftovers:
    """Its result, also when we are cancelled meanwhile: a clean end is short, and has no second chance."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
