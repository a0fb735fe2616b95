"""Runs one host's ranks: starts them in the patient, listens, gives up in time, and leaves nothing running."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddpdoctor.facts.smoke import RankRun
from ddpdoctor.probes.patient.asking import last_lines
from ddpdoctor.smoke.orders import Order
from ddpdoctor.smoke.stacks import ASKING_SECONDS, stack_of
from ddpdoctor.smoke.watching import Heard, Watch

PATIENT = Path(__file__).parent / "patient" / "start.py"
KEEPER = Path(__file__).with_name("keeper.py")

MOST_MESSAGE = 64 * 1024
SECOND_THOUGHTS = 1.0
"""Seconds after a rank failed in which the others may say what they think of it, and the engine how it ended."""
ENDING_SECONDS = 8.0
"""Until the keeper has ended everything; it gives up after five."""
PATIENCE = 3600.0


class Ran:
    """What one host's run came to."""

    def __init__(self, runs: tuple[RankRun, ...], watch: Watch, problem: str) -> None:
        self.runs = runs
        self.torch = watch.torch
        self.figures = tuple(watch.figures)
        self.problem = problem
        self.missing = watch.engine_missing


async def run(
    order: Order,
    *,
    python: str,
    environ: Mapping[str, str],
    heard: Callable[[Watch], None] = lambda watch: None,
) -> Ran:
    """Runs the ranks to their end, or to the moment when one is late or has failed.

    python: the patient's interpreter. environ: the settings that training would inherit. heard: called whenever something
    new is known. When it is cancelled, all is ended before the cancellation goes on.
    """
    return await _Run(order, python, environ, heard).run()


class _Run:
    def __init__(self, order: Order, python: str, environ: Mapping[str, str], heard: Callable[[Watch], None]) -> None:
        self._order = order
        self._python = python
        self._environ = environ
        self._heard = heard
        self._watch = Watch(order, time.monotonic())
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._problem = ""
        self._late: list[Heard] = []

    async def run(self) -> Ran:
        channel = f"ddpdoctor-smoke-{secrets.token_hex(16)}"
        folder = tempfile.mkdtemp(prefix="ddpdoctor-smoke-")
        with (
            _listening(channel, socket.SOCK_SEQPACKET) as messages,
            _listening(f"{channel}-output", socket.SOCK_STREAM) as output,
        ):
            self._spawn(self._accept(messages, self._take_messages))
            self._spawn(self._accept(output, self._take_output))
            keeper = await self._start(channel, folder)
            try:
                await self._until_over()
            finally:
                await self._end(keeper)
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        runs = self._watch.runs(socket.gethostname(), self._late)
        return Ran(runs, self._watch, self._problem)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    # --- starting and ending --------------------------------------------------------------------------------------------

    async def _start(self, channel: str, folder: str) -> asyncio.subprocess.Process:
        command = [self._python, os.fspath(PATIENT), self._order.to_json(channel, folder)]
        keeper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            os.fspath(KEEPER),
            folder,
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._environ, "TMPDIR": folder},
            start_new_session=True,
        )
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        self._spawn(self._follow_engine(keeper.stderr))
        self._spawn(self._follow_keeper(keeper.stdout))
        return keeper

    async def _follow_engine(self, stderr: asyncio.StreamReader) -> None:
        """What is said before the engine has its own line to us, as by a Python that doesn't start."""
        while text := await stderr.read(65536):
            self._watch.print(None, text)

    async def _follow_keeper(self, stdout: asyncio.StreamReader) -> None:
        """The first end that it tells is the engine's."""
        line = await stdout.readline()
        with suppress(ValueError, KeyError):
            status = int(json.loads(line)["status"])
            if status and not self._watch.all_finished and not self._watch.engine_words:
                self._problem = self._why_it_ended(status)
        self._watch.engine_over = True
        self._news.set()

    def _why_it_ended(self, status: int) -> str:
        said = last_lines(self._watch.engine_output, 1)[:300]
        end = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        return f'the patient\'s Python {end}; it last said "{said}"' if said else f"the patient's Python {end}"

    async def _end(self, keeper: asyncio.subprocess.Process) -> None:
        """All of it, also when we are cancelled meanwhile."""
        assert keeper.stdin is not None
        with suppress(OSError):
            keeper.stdin.close()
        ending = asyncio.ensure_future(keeper.wait())
        try:
            await asyncio.shield(asyncio.wait({ending}, timeout=ENDING_SECONDS))
        finally:
            if not ending.done():
                keeper.kill()

    # --- listening ------------------------------------------------------------------------------------------------------

    async def _accept(
        self, listener: socket.socket, take: Callable[[socket.socket], Coroutine[Any, Any, None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            one, _ = await loop.sock_accept(listener)
            one.setblocking(False)
            if _credentials(one)[1] != os.geteuid():
                one.close()
                continue
            self._spawn(take(one))

    async def _take_messages(self, one: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        rank: int | None = None
        with one:
            while True:
                try:
                    packet = await loop.sock_recv(one, MOST_MESSAGE)
                except OSError:
                    packet = b""
                now = time.monotonic()
                if not packet:
                    if rank is not None:
                        self._watch.gone(rank, now)
                    self._tell()
                    return
                try:
                    message = json.loads(packet)
                except ValueError:
                    continue
                if isinstance(message.get("who"), int) and message["who"] in self._watch.ranks:
                    rank = message["who"]
                    self._watch.ranks[rank].pid = _credentials(one)[0]
                if rank is None:
                    self._watch.hear_engine(message)
                else:
                    self._watch.hear(rank, message, now)
                self._tell()

    async def _take_output(self, one: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        head, who = b"", None
        with one:
            while b"\n" not in head:
                text = await loop.sock_recv(one, 4096)
                if not text:
                    return
                head += text
            line, _, rest = head.partition(b"\n")
            with suppress(ValueError, KeyError):
                said = json.loads(line)["who"]
                who = said if isinstance(said, int) else None
            self._watch.print(who, rest)
            with suppress(OSError):
                while text := await loop.sock_recv(one, 65536):
                    self._watch.print(who, text)
                    self._news.set()

    def _tell(self) -> None:
        self._heard(self._watch)
        self._news.set()

    # --- until it is over -----------------------------------------------------------------------------------------------

    async def _until_over(self) -> None:
        watch = self._watch
        while not (watch.engine_over and (watch.all_over or not watch.all_finished)):
            self._news.clear()
            due = min(watch.next_due(), time.monotonic() + PATIENCE)
            if watch.all_over:
                due = min(due, time.monotonic() + self._order.seconds)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(0.0, due - time.monotonic()))
            self._late = watch.late(time.monotonic())
            if self._late:
                await self._ask_where_they_are()
                return
            if watch.failed:
                await self._hear_the_others()
                return

    async def _hear_the_others(self) -> None:
        until = time.monotonic() + SECOND_THOUGHTS
        while time.monotonic() < until and not (self._watch.engine_over and self._watch.all_over):
            await asyncio.sleep(0.02)
        await self._ask_where_they_are()

    async def _ask_where_they_are(self) -> None:
        """The stacks of the ranks that still run."""
        waiting = [one for one in self._watch.ranks.values() if not one.over and one.pid]
        marks = {one.rank: len(one.output) for one in waiting}
        for one in waiting:
            with suppress(OSError):
                os.kill(one.pid, signal.SIGUSR1)
        if waiting:
            await asyncio.sleep(ASKING_SECONDS)
        for one in waiting:
            stack_of(one, one.output[marks[one.rank] :])


def _listening(channel: str, kind: int) -> socket.socket:
    """An abstract socket: no file is needed, and none is left."""
    one = socket.socket(socket.AF_UNIX, kind)
    one.bind("\0" + channel)
    one.listen(1024)
    one.setblocking(False)
    return one


def _credentials(one: socket.socket) -> tuple[int, int]:
    """The pid and the user of the other side."""
    pid, uid, _ = struct.unpack("iII", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
