"""What the benchmarks have in common: one measurement of one command, and the table of the ratios."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple, Protocol

from tests.support.command import plain_environ


class Measured(NamedTuple):
    """seconds: wall time. peak: MiB of the largest process that the command used. processor: seconds that its processes worked."""

    seconds: float
    peak: float
    processor: float


class Measure(Protocol):
    def __call__(self, command_line: list[str]) -> Measured: ...


@contextmanager
def measuring() -> Iterator[Measure]:
    """Gives a function that runs a command and measures it, in a fresh process each time, because the kernel counts the
    peak over all children that a process ever had."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        yield lambda command_line: pool.apply(_measure, (command_line,))


def _measure(command_line: list[str]) -> Measured:
    started = time.perf_counter()
    ended = subprocess.run(command_line, env=plain_environ(), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if ended.returncode not in (0, 1) or "Traceback" in ended.stderr:
        raise SystemExit(f"{command_line} failed: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measured(seconds, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime)


def print_table(rows: list[tuple[str, ...]], *, markdown: bool) -> None:
    """Prints the rows, of which the first is the heading."""
    if markdown:
        rows = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    for row in rows:
        print(f"| {' | '.join(row)} |" if markdown else "  ".join(row))
