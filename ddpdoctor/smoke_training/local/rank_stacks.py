"""Where a process is: its own answer to a signal, py-spy's where there is one, or what the kernel says of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ddpdoctor.base.text import masked
from ddpdoctor.probes.py_spy import Spied, spy
from ddpdoctor.smoke_training.local.rank_progress import OutputTail, RankProgress

ASKING_SECONDS: Final = 0.8
"""After which a process that could answer has done so: faulthandler needs no GIL."""
QUIET_SECONDS: Final = 0.06
"""An answer to which nothing has been added for so long is whole."""
PY_SPY_SECONDS: Final = 0.8

MOST_FRAMES: Final = 12

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
SILENT: Final = frozenset("TtDZ")
"""States in which no process answers."""


class RankStack(msgspec.Struct, frozen=True):
    """frames: innermost first. source: who says so, or why there are none. state: as `process_state`."""

    frames: tuple[str, ...]
    source: str
    state: str


async def ask(asked: Mapping[int, OutputTail]) -> dict[int, RankStack]:
    """Where these processes are (by pid; their voices are listened to meanwhile). Each must have said how it answers
    SIGUSR1: else it would end it."""
    letters = {pid: _state(pid) for pid in asked}
    for pid, voice in asked.items():
        voice.ask()
        with suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
    silent = [pid for pid in asked if letters[pid] in SILENT]
    spying = asyncio.ensure_future(_spy(silent))
    await _answered([voice for pid, voice in asked.items() if pid not in silent])
    frames = {pid: frames_of(voice.answer or b"") for pid, voice in asked.items()}
    for voice in asked.values():
        answer = voice.answer or b""
        begin = THREAD.search(answer)
        voice.answered(answer[: begin.start()] if begin else answer)
    spied = await spying | await _spy([pid for pid, found in frames.items() if not found and pid not in silent])
    return {pid: _stack(pid, frames[pid], spied.get(pid, ()), letters[pid]) for pid in asked}


def _stack(pid: int, frames: tuple[str, ...], spied: tuple[str, ...], letter: str) -> RankStack:
    # One that ended since it was asked has been ended.
    state = "" if letter != "Z" and _state(pid) in ("Z", "") else process_state(pid)
    if frames:
        return RankStack(frames, "faulthandler", state)
    if spied:
        return RankStack(spied, "py-spy", state)
    return RankStack((), f"it is {state}" if letter in SILENT and state else "it didn't answer", state)


async def _answered(voices: Sequence[OutputTail]) -> None:
    """Until all have answered, or none will any more."""
    until = time.monotonic() + ASKING_SECONDS
    heard, since = -1, time.monotonic()
    while voices and time.monotonic() < until:
        await asyncio.sleep(0.01)
        length = sum(len(voice.answer or b"") for voice in voices)
        if length != heard:
            heard, since = length, time.monotonic()
        elif time.monotonic() - since > QUIET_SECONDS and all(frames_of(voice.answer or b"") for voice in voices):
            return


def crash_of(one: RankProgress) -> None:
    """What faulthandler has printed when the rank crashed is its stack, and not its last line."""
    found = list(FATAL.finditer(one.output))
    if not found:
        return
    fatal = found[-1].start()
    current = CURRENT.split(one.output[fatal:])
    if len(current) > 1:
        one.stack, one.stack_source = _frames(THREAD.split(current[-1])[0]), "faulthandler"
    one.output = one.output[:fatal]


def frames_of(printed: bytes) -> tuple[str, ...]:
    """The main thread's frames in faulthandler's output, innermost first. It prints that thread last."""
    threads = THREAD.split(printed)
    return _frames(threads[-1]) if len(threads) > 1 else ()


def _frames(printed: bytes) -> tuple[str, ...]:
    found = FRAME.findall(printed.decode("utf-8", "replace"))
    return tuple(masked(f"{name[:200]} ({short(path)}:{line})") for path, line, name in found[:MOST_FRAMES])


def short(path: str) -> str:
    """From its package on: "torch/distributed/distributed_c10d.py"."""
    for folder in ("site-packages/", "dist-packages/"):
        if folder in path:
            return masked(path.rpartition(folder)[2])
    if not path.startswith("/"):
        return masked(path)
    return masked("/".join(path.rsplit("/", 2)[-2:]))


def process_state(pid: int) -> str:
    """What the kernel says, where it says more than that the process waits or runs."""
    letter = _state(pid)
    words = STATES.get(letter, "")
    if letter != "D":
        return words
    try:
        where = masked(Path(f"/proc/{pid}/wchan").read_text()).strip("0 \n")
    except OSError:
        where = ""
    return f"{words}: {where}" if where else words


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


# --- py-spy -----------------------------------------------------------------------------------------------------------------

MOST_SPIED: Final = 4


async def _spy(pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """What py-spy sees of those that don't answer; it also sees the stopped ones."""
    found = await spy(pids[:MOST_SPIED], seconds=PY_SPY_SECONDS)
    return {pid: spied_frames(one) for pid, one in found.items()}


def spied_frames(spied: Spied) -> tuple[str, ...]:
    """The main thread's frames, innermost first."""
    return tuple(f"{frame.function} ({short(frame.path)}:{frame.line})" for frame in spied.frames[:MOST_FRAMES])
