"""ddpdoctor's side of the reaper: starts it, reads from it how the engine has ended, and has it end all."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ddpdoctor.base.async_work import within
from ddpdoctor.base.text import signal_name
from ddpdoctor.probes.run_as import INQUIRY_MARK, environ_for, working_folder_for
from ddpdoctor.smoke_training.local.rank_monitor import RankMonitor
from ddpdoctor.smoke_training.local.rank_progress import last_words
from ddpdoctor.smoke_training.local.reaper import descendants

REAPER_PROGRAM: Final = Path(__file__).with_name("reaper.py")
ENDING_SECONDS: Final = 8.0
"""For the reaper to end everything; it gives up before."""
KILLED_SECONDS: Final = 2.0
"""For the reaper to end once it was killed; in the kernel it may stay for ever."""


class ReaperClient:
    """The reaper of one run. No other process may hold its standard input: it ends all when that is closed.

    monitor: is given what the engine prints before it has a connection, and its end; on_news: called when something has ended.
    """

    def __init__(self, monitor: RankMonitor, on_news: Callable[[], None]) -> None:
        self._monitor = monitor
        self._on_news = on_news
        self._process: asyncio.subprocess.Process | None = None
        self._followers: list[asyncio.Future[None]] = []

    async def start(self, command: Sequence[str], folder: str, environ: Mapping[str, str]) -> None:
        """Start the reaper, and the command under it. An OSError tells that this user may start no more processes.

        folder: removed in the end, with all that is in it.
        """
        self._process = reaper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            os.fspath(REAPER_PROGRAM),
            folder,
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**INQUIRY_MARK, **environ_for(None, environ), "TMPDIR": folder},
            cwd=working_folder_for(None),
            start_new_session=True,
        )
        assert reaper.stdout is not None
        assert reaper.stderr is not None
        output_end = asyncio.ensure_future(self._follow_engine(reaper.stderr))
        self._followers = [output_end, asyncio.ensure_future(self._follow(reaper, reaper.stdout, output_end))]

    def pids(self) -> list[int]:
        """The pids of all that runs under it."""
        return descendants(self._process.pid) if self._process is not None else []

    async def end(self) -> None:
        """End all that runs under it, and the reaper itself."""
        reaper = self._process
        if reaper is None:
            return
        assert reaper.stdin is not None
        reaper.stdin.close()
        with suppress(TimeoutError):
            await within(ENDING_SECONDS, reaper.wait())
        if reaper.returncode is None:
            reaper.kill()
            with suppress(TimeoutError):
                await within(KILLED_SECONDS, reaper.wait())
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    async def _follow_engine(self, stderr: asyncio.StreamReader) -> None:
        """Pass on what is printed before the engine has its own connection, as by a Python that doesn't start."""
        while text := await stderr.read(65536):
            self._monitor.add_output(None, text)

    async def _follow(
        self, reaper: asyncio.subprocess.Process, stdout: asyncio.StreamReader, output_end: asyncio.Future[None]
    ) -> None:
        """Pass on how the engine has ended, or that the reaper was itself ended before."""
        line = await stdout.readline()
        status = int(line) if line.endswith(b"\n") else None
        # Its last words may still be on their way.
        await asyncio.wait({output_end}, timeout=0.2)
        if status is not None:
            self._monitor.note_engine_end(status, time.monotonic())
        else:
            code = await reaper.wait()
            last = last_words(self._monitor.engine.output)
            how = f"ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            words = f"the process of ddpdoctor that keeps the ranks was {how}"
            self._monitor.note_reaper_end(f'{words}; it last said "{last}"' if last else words)
        self._on_news()
