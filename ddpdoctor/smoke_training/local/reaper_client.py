"""The doctor's side of the keeper: starts it, hears from it who has ended, has it end all."""

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

REAPER: Final = Path(__file__).with_name("reaper.py")
ENDING_SECONDS: Final = 8.0
"""Until the keeper has ended everything; it gives up before."""
KILLED_SECONDS: Final = 2.0
"""Until it has ended itself once it was killed; in the kernel it may stay for ever."""


class ReaperClient:
    """Of one run. Nobody else may hold its standard input: it ends all when that is closed."""

    def __init__(self, watch: RankMonitor, news: Callable[[], None]) -> None:
        """news: called when something has ended."""
        self._watch = watch
        self._news = news
        self._process: asyncio.subprocess.Process | None = None
        self._followers: list[asyncio.Future[None]] = []

    async def start(self, command: Sequence[str], folder: str, environ: Mapping[str, str]) -> None:
        """Raises OSError where this user may start no more processes."""
        self._process = keeper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            os.fspath(REAPER),
            folder,
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**INQUIRY_MARK, **environ_for(None, environ), "TMPDIR": folder},
            cwd=working_folder_for(None),
            start_new_session=True,
        )
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        said = asyncio.ensure_future(self._follow_engine(keeper.stderr))
        self._followers = [said, asyncio.ensure_future(self._follow(keeper, keeper.stdout, said))]

    def kept(self) -> list[int]:
        """The pids of all that run under it."""
        return descendants(self._process.pid) if self._process is not None else []

    async def end(self) -> None:
        """Ends all that it keeps, and itself."""
        keeper = self._process
        if keeper is None:
            return
        assert keeper.stdin is not None
        keeper.stdin.close()
        with suppress(TimeoutError):
            await within(ENDING_SECONDS, keeper.wait())
        if keeper.returncode is None:
            keeper.kill()
            with suppress(TimeoutError):
                await within(KILLED_SECONDS, keeper.wait())
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    async def _follow_engine(self, stderr: asyncio.StreamReader) -> None:
        """What is said before the engine has its own line to us, as by a Python that doesn't start."""
        while text := await stderr.read(65536):
            self._watch.print(None, text)

    async def _follow(
        self, keeper: asyncio.subprocess.Process, stdout: asyncio.StreamReader, said: asyncio.Future[None]
    ) -> None:
        """It tells how the engine has ended, unless it was itself ended before."""
        line = await stdout.readline()
        status = int(line) if line.endswith(b"\n") else None
        # Its last words may still be on their way.
        await asyncio.wait({said}, timeout=0.2)
        if status is not None:
            self._watch.engine_ended(status, time.monotonic())
        else:
            code = await keeper.wait()
            said_last = last_words(self._watch.engine.output)
            how = f"ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            words = f"the process of ddpdoctor that keeps the ranks was {how}"
            self._watch.keeper_ended(f'{words}; it last said "{said_last}"' if said_last else words)
        self._news()
