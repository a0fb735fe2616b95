"""Runs the ranks of this host: starts them in the target Python, gives up in time, and leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, Final

import msgspec

from ddpdoctor.base.async_work import within
from ddpdoctor.base.private_folders import Needs, NoFolderError, private_folder
from ddpdoctor.base.text import signal_name
from ddpdoctor.facts.burn_in import BurnIn
from ddpdoctor.facts.smoke import Leftovers, Smoke
from ddpdoctor.network_check.protocol.messages import ABORTED
from ddpdoctor.probes.smoke_notes import PREFIX
from ddpdoctor.smoke_training.local.host_watch import HostWatcher
from ddpdoctor.smoke_training.local.leftovers import LeftoverTracker, clear_up_earlier_runs
from ddpdoctor.smoke_training.local.rank_listener import RankListener
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_outcome import problem_of, rank_runs
from ddpdoctor.smoke_training.local.rank_progress import RankProgress
from ddpdoctor.smoke_training.local.rank_stacks import RankStack, ask_for_stacks, take_crash_stack
from ddpdoctor.smoke_training.local.reaper_client import ReaperClient
from ddpdoctor.smoke_training.stages import BURN_IN
from ddpdoctor.smoke_training.training_order import TrainingOrder

TRAINER: Final = Path(__file__).parent.parent / "trainer" / "start.py"

REACTION_SECONDS: Final = 1.0
"""After a rank failed, for the others to fail because of it and to say so."""
EXPLANATION_SECONDS: Final = 5.0
"""At most, until it is known how a rank ended that went without a word, or what has ended them all."""
OUTLIVING_SECONDS: Final = 1.0
"""For a rank to end after the engine."""
QUIET_SECONDS: Final = 0.05
"""If nothing comes in so long, all messages that were sent have been read: this process is behind if it was stopped, or had no
core."""
BACKLOG_SECONDS: Final = 3.0
"""For reading them at most: a process may send for ever."""
LONGEST_WAIT_SECONDS: Final = 3600.0

FOLDER: Final = Needs(
    prefix=PREFIX,
    room_bytes=1 << 20,
    max_path_length=(75, "its path is too long for the sockets of multiprocessing"),
)
"""For the store, a checkpoint of the small model, and the engine's own files; the socket of multiprocessing's server lies in it, and
a socket's path has 107 characters at most."""


class RankRunner:
    """One run of this host's ranks; `stuck`: those that were late, or about to be, when it gave up.

    Args:
        order: what they are to do.
        python: the target Python's interpreter.
        environ: the settings that training would inherit.
        on_progress: called whenever something new is known; what it raises ends the run.
    """

    def __init__(
        self, order: TrainingOrder, python: str, environ: Mapping[str, str], on_progress: Callable[[RankMonitor], None]
    ) -> None:
        self._order = order
        self._python = python
        self._environ = environ
        self._on_progress = on_progress
        self.monitor = RankMonitor(order, time.monotonic())
        self._news = asyncio.Event()
        self._listener = RankListener(self.monitor, self.take_news, self._fail)
        self._reaper = ReaperClient(self.monitor, self.take_news)
        self.stuck: list[RankProgress] = []
        self._failure: BaseException | None = None
        self._mapped: set[int] = set()
        self._host: HostWatcher | None = None
        self._burn_in = BurnIn(asked=order.duration)

    def end_early(self, number: int) -> bool:
        """Have the burn-in end soon and well for that signal, if it has begun. Returns whether it has."""
        begun = [rank for rank in self.monitor.ranks.values() if BURN_IN in (rank.stage, *rank.done)]
        if any(BURN_IN not in rank.done for rank in begun):
            self.monitor.stopped = "Ctrl-C" if number == signal.SIGINT else signal_name(number)
            self._listener.ask_to_end()
        return bool(begun)

    async def run(self) -> Smoke:
        """Run the ranks to their end, or to the moment when one is late or has failed.

        Cancelled with ABORTED it ends all, and returns what is known by then.

        Raises:
            CancelledError: it was cancelled with anything else, and all have been ended.
        """
        clear_up_earlier_runs(self._environ)
        try:
            folder = private_folder(self._environ, FOLDER)
        except NoFolderError as error:
            return self._result(str(error))
        self._leftovers = LeftoverTracker(folder.path)
        leftovers = Leftovers()
        problem = ""
        kills = oom_kills()
        try:
            self._listener.open()
            if self.watches_the_host:
                self._host = HostWatcher(self._order, self._python, self._environ)
                self._host.start()
            order = self._order.to_json(self._listener.channel, folder.path)
            await self._reaper.start([self._python, os.fspath(TRAINER), order], folder.path, self._environ)
            await self.wait_until_over()
        except asyncio.CancelledError as error:
            if error.args != (ABORTED,):
                raise
            await self._ask(self._running())
        except OSError as error:
            problem = f"the ranks could not be started: {error.strerror or error}"
        finally:
            if kills is not None:
                self.monitor.oom_kills = (oom_kills() or kills) - kills
            leftovers = await _finish(self._end(folder.path))
        if self._failure is not None:
            raise self._failure
        return self._result(problem, leftovers, folder.told)

    @property
    def watches_the_host(self) -> bool:
        """Whether there is a burn-in, and no other process watches the same host."""
        launched = self._order.launched
        return BURN_IN in self._order.stages and (launched is None or not launched.local_rank)

    def _result(self, problem: str, leftovers: Leftovers = Leftovers(), folder: str = "") -> Smoke:  # noqa: B008
        return msgspec.structs.replace(
            self._order.facts(),
            ranks=rank_runs(self.monitor, socket.gethostname(), self.stuck),
            seconds=round(time.monotonic() - self.monitor.began, 3),
            problem=problem or problem_of(self.monitor, self.stuck),
            torch=self.monitor.torch,
            python=self._python,
            folder=folder,
            leftovers=leftovers,
            nccl_report=tuple(self.monitor.nccl_report.lines),
            burn_in=msgspec.structs.replace(
                self._burn_in, stopped=self.monitor.stopped, batch=self.monitor.burn_in_batch
            ),
        )

    async def _end(self, folder: str) -> Leftovers:
        """End all processes, and clear up after them."""
        self.monitor.ended_at = time.monotonic()
        self._leftovers.record(self._reaper.pids())
        await self._reaper.end()
        await self._listener.close()
        rmtree(folder, ignore_errors=True)
        for rank in self.monitor.ranks.values():
            take_crash_stack(rank)
        if self._host is not None:
            watch = await self._host.end(self.monitor.began)
            self._burn_in = msgspec.structs.replace(self._burn_in, hosts=(watch,))
        return await self._leftovers.clear_up()

    def take_news(self) -> None:
        """The monitor knows something new."""
        self._record_mappings()
        if self._host is not None and any(rank.stage == BURN_IN for rank in self.monitor.ranks.values()):
            self._host.begin()
        try:
            self._on_progress(self.monitor)
        except Exception as error:
            self._fail(error)
        self._news.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()

    def _record_mappings(self) -> None:
        """Record NCCL's shared memory of each rank that has been through its first collective: what a rank had that is killed later
        on could not be told any more."""
        if self._order.backend != "nccl" or "process group" not in self._order.stages:
            return
        through = self._order.stages.index("process group") + 1
        for rank in self.monitor.ranks.values():
            if rank.rank not in self._mapped and rank.position[0] > through and rank.gone_at is None:
                self._mapped.add(rank.rank)
                self._leftovers.record([rank.pid])

    # --- until it is over -----------------------------------------------------------------------------------------------

    async def wait_until_over(self) -> None:
        """Wait for the end of the ranks, of their engine, or of the time that they have."""
        monitor = self.monitor
        while True:
            # Before looking: what comes from here on is news, also what comes while the backlog is read below.
            self._news.clear()
            if monitor.is_engine_over or self._failure is not None:
                break
            if monitor.has_failed:
                if await self._wait_for_reactions():
                    return None
                continue  # A rank's end was known, from its parent, before its last words were.
            if monitor.late_ranks(time.monotonic()):
                await self._read_backlog()
                if not monitor.has_failed and (late := monitor.late_ranks(time.monotonic())):
                    self.stuck = monitor.stuck_ranks(late)
                    return await self._ask_all()
            if monitor.is_engine_late(time.monotonic()):
                return None
            if self._news.is_set():
                continue
            await self._wait_for_news(min(monitor.next_due(), time.monotonic() + LONGEST_WAIT_SECONDS))
        await self._wait_until(lambda: monitor.all_gone, OUTLIVING_SECONDS)
        if not monitor.all_gone:
            await self._read_backlog()
        if monitor.has_failed:
            await self._wait_for_reactions()
        return None

    async def _wait_for_news(self, until: float) -> None:
        """Wait until there is news, or until that moment."""
        with suppress(TimeoutError):
            await within(max(0.0, until - time.monotonic()), self._news.wait())

    async def _wait_until(self, is_known: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not is_known() and time.monotonic() < until:
            await asyncio.sleep(0.01)

    async def _wait_for_reactions(self) -> bool:
        """After a failure, ask those that still run where they are, before the engine ends them, and wait for how it hits them.
        Returns whether a rank has failed at all."""
        began = time.monotonic()
        await self._ask(self._running())
        monitor = self.monitor

        def is_known() -> bool:
            reacted = monitor.all_over or monitor.is_engine_over or time.monotonic() > began + REACTION_SECONDS
            return not monitor.has_failed or (reacted and not monitor.is_unexplained)

        await self._wait_until(is_known, EXPLANATION_SECONDS)
        await self._read_backlog()
        return monitor.has_failed

    async def _read_backlog(self) -> None:
        """Read all messages that were sent by now. Afterwards there is news for the next look."""
        until = time.monotonic() + BACKLOG_SECONDS
        while time.monotonic() < until:
            self._news.clear()
            await asyncio.sleep(QUIET_SECONDS)
            if not self._news.is_set():
                break
        self._news.set()

    # --- where they are -------------------------------------------------------------------------------------------------

    def _running(self) -> list[RankProgress]:
        """The ranks that can be asked: a stage has begun, so that they handle the signal."""
        return [
            rank
            for rank in self.monitor.ranks.values()
            if rank.stage
            and rank.failed_at is None
            and rank.gone_at is None
            and (not rank.finished_at or rank in self.stuck)
        ]

    async def _ask_all(self) -> None:
        await self._ask(self._running())
        if absent := [progress for progress in self.stuck if not progress.pid]:
            await self._ask_engine(absent)

    async def _ask(self, ranks: Sequence[RankProgress]) -> None:
        found = await ask_for_stacks({rank.pid: rank for rank in ranks})
        for rank in ranks:
            if rank.failed_at is None and (found[rank.pid].frames or rank.gone_at is None):
                _set_stack([rank], found[rank.pid])

    async def _ask_engine(self, ranks: Sequence[RankProgress]) -> None:
        """Ask the process that should have started these ranks where it is."""
        monitor = self.monitor
        for pid, whose in ((monitor.engine_pid, "torch's engine"), (monitor.server_pid, "the ranks' parent")):
            if not pid:
                continue
            found = (await ask_for_stacks({pid: monitor.engine}))[pid]
            if found.state:
                monitor.engine_state = f"{whose} (process {pid}) is {found.state}"
            _set_stack(
                ranks, RankStack(found.frames, f"{found.source} of {whose}" if found.frames else "", found.state)
            )
            if not any("multiprocessing/" in frame for frame in found.frames):
                return  # Else it waits for the other one.


def _set_stack(ranks: Iterable[RankProgress], found: RankStack) -> None:
    for rank in ranks:
        rank.stack, rank.stack_source, rank.process_state = found.frames, found.source, found.state


async def _finish(work: Coroutine[Any, Any, Leftovers]) -> Leftovers:
    """Finish this work before a cancellation goes on: a clean end is short, and has no second chance. One with ABORTED ends here: it asks for
    no more than this end, and for what is known."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            if error.args != (ABORTED,):
                cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def oom_kills(root: Path = Path("/")) -> int | None:
    """Count the processes that the kernel has killed for want of memory so far: in this process's cgroup, or where that can't be read on
    the whole host since it booted. None where nothing tells."""
    for path in _oom_counters(root):
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _oom_counters(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            yield root / f"sys/fs/cgroup{group}" / "memory.events"
        elif "memory" in controllers.split(","):
            yield root / f"sys/fs/cgroup/memory{group}" / "memory.oom_control"
            yield root / "sys/fs/cgroup/memory/memory.oom_control"
    yield root / "proc/vmstat"
