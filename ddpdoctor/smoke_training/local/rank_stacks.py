"""Asks processes for their stacks: by a signal that faulthandler answers, else by py-spy; and the kernel for their state."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from ddpdoctor.base.text import masked
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import Spied, spy
from ddpdoctor.smoke_training.local.rank_progress import OutputTail, RankProgress

ASKING_SECONDS: Final = 0.8
"""After which a process that could answer has done so: faulthandler needs no GIL."""
QUIET_SECONDS: Final = 0.06
"""An answer to which nothing has been added for so long is whole."""
PY_SPY_SECONDS: Final = 0.8
MAX_SPIED_PROCESSES: Final = 4

MAX_FRAMES: Final = 12

THREAD: Final = re.compile(
    rb"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}\b.*\(most recent call first\):$", re.MULTILINE
)
CURRENT: Final = re.compile(rb"^Current thread 0x[0-9a-f]{1,16}\b.*\(most recent call first\):$", re.MULTILINE)
FATAL: Final = re.compile(rb"^Fatal Python error: .*$", re.MULTILINE)
FRAME: Final = re.compile(r'^[ \t]*File "([^"]*)", line (\d+) in (.+)$', re.MULTILINE)
STATES: Final = {
    "T": "stopped",
    "t": "stopped by a debugger",
    "D": "in the kernel",
    "Z": "ended, and not yet taken away",
}
UNRESPONSIVE_STATES: Final = frozenset("TtDZ")
"""States in which no process answers."""


class RankStack(msgspec.Struct, frozen=True):
    """The main thread of a process: frames, the innermost first; who told them, or why there are none; and its `process_state`."""

    frames: tuple[str, ...]
    source: str
    state: str


async def ask_for_stacks(outputs: Mapping[int, OutputTail]) -> dict[int, RankStack]:
    """Ask processes where they are.

    Args:
        outputs: by pid, where the output of each is collected meanwhile. Each process must have begun to handle SIGUSR1, which
            would end it else.

    Returns:
        Each process's stack, by pid.
    """
    letters = {pid: _state(pid) for pid in outputs}
    for pid, output in outputs.items():
        output.expect_answer()
        with suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
    silent = [pid for pid in outputs if letters[pid] in UNRESPONSIVE_STATES]
    spying = asyncio.ensure_future(_spy(silent))
    await _wait_for_answers([output for pid, output in outputs.items() if pid not in silent])
    frames = {pid: frames_of(output.answer or b"") for pid, output in outputs.items()}
    for output in outputs.values():
        answer = output.answer or b""
        begin = THREAD.search(answer)
        output.end_answer(answer[: begin.start()] if begin else answer)
    spied = await spying | await _spy([pid for pid, found in frames.items() if not found and pid not in silent])
    return {pid: _stack(pid, frames[pid], spied.get(pid, ()), letters[pid]) for pid in outputs}


def _stack(pid: int, frames: tuple[str, ...], spied: tuple[str, ...], letter: str) -> RankStack:
    # One that ended since it was asked has been ended.
    state = "" if letter != "Z" and _state(pid) in ("Z", "") else process_state(pid)
    if frames:
        return RankStack(frames, "faulthandler", state)
    if spied:
        return RankStack(spied, "py-spy", state)
    return RankStack((), f"it is {state}" if letter in UNRESPONSIVE_STATES and state else "it didn't answer", state)


async def _wait_for_answers(outputs: Sequence[OutputTail]) -> None:
    """Wait until all have answered, or none will any more."""
    until = time.monotonic() + ASKING_SECONDS
    length_before, since = -1, time.monotonic()
    while outputs and time.monotonic() < until:
        await asyncio.sleep(0.01)
        length = sum(len(output.answer or b"") for output in outputs)
        if length != length_before:
            length_before, since = length, time.monotonic()
        elif time.monotonic() - since > QUIET_SECONDS and all(frames_of(output.answer or b"") for output in outputs):
            return


def take_crash_stack(progress: RankProgress) -> None:
    """Move what faulthandler printed when a rank crashed from the rank's output to its stack."""
    found = list(FATAL.finditer(progress.output))
    if not found:
        return
    fatal = found[-1].start()
    current = CURRENT.split(progress.output[fatal:])
    if len(current) > 1:
        progress.stack, progress.stack_source = _frames(THREAD.split(current[-1])[0]), "faulthandler"
    progress.output = progress.output[:fatal]


def frames_of(printed: bytes) -> tuple[str, ...]:
    """The main thread's frames in faulthandler's output, innermost first. It prints that thread last."""
    threads = THREAD.split(printed)
    return _frames(threads[-1]) if len(threads) > 1 else ()


def _frames(printed: bytes) -> tuple[str, ...]:
    found = FRAME.findall(printed.decode("utf-8", "replace"))
    return tuple(masked(f"{name[:200]} ({short_path(path)}:{line})") for path, line, name in found[:MAX_FRAMES])


def short_path(path: str) -> str:
    """The path from its package on: "torch/distributed/distributed_c10d.py"."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return masked(path.rpartition(folder)[2])
    if not path.startswith("/"):
        return masked(path)
    return masked("/".join(path.rsplit("/", 2)[-2:]))


def process_state(pid: int) -> str:
    """The kernel's word for a process that is stopped, blocked or ended; "" where it waits or runs as usual."""
    letter = _state(pid)
    words = STATES.get(letter, "")
    function = Proc().read(f"{pid}/wchan", 256) if letter == "D" else b""
    where = masked(function.decode("utf-8", "replace")).strip("0 \n") if isinstance(function, bytes) else ""
    return f"{words}: {where}" if where else words


def _state(pid: int) -> str:
    stat = Proc().stat(pid)
    return "" if isinstance(stat, Unknown) else stat.state


async def _spy(pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """The frames that py-spy sees in processes that don't answer, stopped ones among them."""
    found = await spy(pids[:MAX_SPIED_PROCESSES], seconds=PY_SPY_SECONDS)
    return {pid: spied_frames(spied) for pid, spied in found.items()}


def spied_frames(spied: Spied) -> tuple[str, ...]:
    """The main thread's frames, innermost first."""
    return tuple(f"{frame.function} ({short_path(frame.path)}:{frame.line})" for frame in spied.frames[:MAX_FRAMES])
