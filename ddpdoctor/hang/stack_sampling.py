"""Reads the stacks of processes a hundred times a second for some seconds, by py-spy, without stopping them: two looks of a
loop that waits in one place most of the time would see the same stack twice."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from ddpdoctor.base.text import masked
from ddpdoctor.facts.hang import Frame, RankLook, Watched
from ddpdoctor.knowledge.torch_frames import PARENTS_FRAMES, place_of
from ddpdoctor.probes.py_spy import py_spy, run_at, side_by_side

RATE: Final = 100
"""Samples a second; one process costs some 0.05 s of processor time a second then."""
ALL_RATE: Final = 3000
"""Samples a second, of all processes together."""
MIN_RATE: Final = 10
GRACE_SECONDS: Final = 5.0
"""So long py-spy may take beyond the sampling itself."""
MAX_OUTPUT_BYTES: Final = 16 << 20

THREAD: Final = re.compile(r"^thread \((\d+|0x[0-9a-fA-F]+)\)(?:: (.*))?$")
FRAME: Final = re.compile(r"^(.*) \(((?:(?! \().)*):(\d+)\)$")


async def sample(pids: Sequence[int], seconds: int) -> dict[int, Watched]:
    """Sample the stacks of processes, by pid, for as long as each lives; without a sample where it can't be looked into."""
    program = py_spy()
    if program is None:
        return {}
    rate = max(MIN_RATE, min(RATE, ALL_RATE // max(1, len(pids))))
    found = await side_by_side(_sample(program, pid, seconds, rate) for pid in pids)
    return dict(zip(pids, found, strict=True))


async def _sample(program: str, pid: int, seconds: int, rate: int) -> Watched:
    try:
        file = os.memfd_create("samples")
    except OSError:
        return Watched(pid=pid)
    try:
        command = (
            program, "record", "--nonblocking", "--idle", "--threads", "--full-filenames", "--rate", str(rate), "--duration", str(seconds),
            "--format", "raw", "--output", f"/proc/self/fd/{file}", "--pid", str(pid),
        )  # fmt: skip
        with suppress(OSError, TimeoutError):
            code, _, _ = await run_at(pid, command, seconds + GRACE_SECONDS, (file,))
            if code == 0:
                return parse_samples(pid, os.pread(file, MAX_OUTPUT_BYTES, 0))
        return Watched(pid=pid)
    finally:
        os.close(file)


def parse_samples(pid: int, output: bytes) -> Watched:
    """Parse what `py-spy record --format raw --threads` wrote of that process: a line a stack, the outermost call first, and how often
    it was seen."""
    by_thread: dict[tuple[str, str], Counter[tuple[str, ...]]] = {}
    for line in output.decode("utf-8", "replace").splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        found = THREAD.match(thread)
        if found and frames and count.isdecimal():
            key = (found[1], found[2] or "")
            by_thread.setdefault(key, Counter())[tuple(frames)] += int(count)
    main = next((stacks for (number, _), stacks in by_thread.items() if number == str(pid)), None)
    main = main or next((stacks for (_, name), stacks in by_thread.items() if name == "MainThread"), None)
    if main is None and len(by_thread) == 1:
        # From outside of a container its number is another, and without the module threading it has no name.
        [main] = by_thread.values()
    return compare_stacks(pid, main) if main else Watched(pid=pid)


def compare_stacks(pid: int, stacks: Counter[tuple[str, ...]]) -> Watched:
    """Compare the stacks in which a process was seen, each "function (path:line)" from the outermost call on, and how often."""
    calls: Counter[tuple[str, ...]] = Counter()
    for stack, count in stacks.items():
        calls[_calls(stack)] += count
    # One that was read while it changed may lack its outer calls.
    begin = _function(stacks.most_common(1)[0][0][0])
    whole = [stack for stack in stacks if _function(stack[0]) == begin]
    common = _common(whole)
    within = [frame for text in common if (frame := _frame(text))]
    forked = next(
        (place for place in range(len(within) - 1, -1, -1) if within[place].path.endswith(PARENTS_FRAMES)), -1
    )
    usual = max(calls, key=calls.__getitem__)
    most = next(stack for stack in stacks if _calls(stack) == usual)
    return Watched(
        pid=pid,
        samples=calls.total(),
        elsewhere=calls.total() - calls[usual],
        moved=sum(stacks[stack] for stack in whole if _calls(stack) != usual and _moved(most, stack)),
        within=tuple(within[forked + 1 :][::-1]),
    )


def _moved(most: tuple[str, ...], stack: tuple[str, ...]) -> bool:
    """Whether it got from one stack to the other by going on: in the user's code, or out of a collective."""
    before, after = (place_of(RankLook(frames=_frames(frames))) for frames in (most, stack))
    out = before.meets and (before.where, before.what) != (after.where, after.what)
    return out or before.path != after.path


def _frames(stack: tuple[str, ...]) -> tuple[Frame, ...]:
    """Parse a stack, the innermost call first; without the line at which that is."""
    found = [frame for text in reversed(stack) if (frame := _frame(text))]
    return tuple(msgspec.structs.replace(frame, line=frame.line if depth else 0) for depth, frame in enumerate(found))


def _calls(stack: tuple[str, ...]) -> tuple[str, ...]:
    """Take from a stack the line at which the innermost function is: a loop in it that calls no other is one place."""
    return (*stack[:-1], _function(stack[-1]))


def _common(stacks: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Find the outermost calls that are the same in all; of the last of them only the function, where the line differs."""
    depth = 0
    while all(len(stack) > depth for stack in stacks) and len({stack[depth] for stack in stacks}) == 1:
        depth += 1
    # Lines of one function that calls different others: the function itself is what they have in common.
    functions = {_function(stack[depth]) if len(stack) > depth else "" for stack in stacks}
    return stacks[0][: depth + 1] if len(functions) == 1 else stacks[0][:depth]


def _function(frame: str) -> str:
    """Take the line from a frame."""
    return frame.rpartition(":")[0]


def _frame(text: str) -> Frame | None:
    found = FRAME.match(text)
    return Frame(masked(found[1])[:200], masked(found[2])[:1000], int(found[3])) if found else None
