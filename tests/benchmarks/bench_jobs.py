"""How long `ddpdoctor jobs` takes beside 64 ranks, and `ddpdoctor zombies` beside 2,000 processes, beyond its own start-up.

    python -m tests.benchmarks.bench_jobs [--rounds N] [--ranks 64] [--processes 2000] [--markdown]

The ranks are Pythons without torch that have a rank's settings and sleep, the processes sleep alone. Each round runs the command
and `ddpdoctor --version` in turn, so that a slow minute hits both alike; of the difference and of the ratio the median is told.
Both commands watch the host for a quarter of a second, which is in it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.measuring import Measure, Measured, measuring, print_table
from tests.support.command import command
from tests.support.running_jobs import launched

AIM = 1.0
"""Seconds."""

STARTER = """
import os, sys
started = [os.posix_spawn("/bin/sleep", ["sleep", "3600"], {}) for _ in range(int(sys.argv[1]))]
print(len(started), flush=True)
sys.stdin.read()
for one in started:
    os.kill(one, 9)
for one in started:
    os.waitpid(one, 0)
"""
"""Sleeps by the thousand, which end when its standard input does."""


@contextmanager
def crowd(count: int) -> Iterator[None]:
    """So many more processes on this host."""
    line = [sys.executable, "-c", STARTER, str(count)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout
        if not started.stdout.readline():
            raise SystemExit(f"{count} processes could not be started")
        yield


def pairs(measure: Measure, line: list[str], rounds: int) -> list[tuple[Measured, Measured]]:
    """(ours, start-up alone) of each round; the first, which warms the caches, is left out."""
    measured = [(measure(line), measure(command("--version"))) for _ in range(rounds + 1)]
    return measured[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    options = parser.parse_args()
    found: list[tuple[str, str, list[tuple[Measured, Measured]]]] = []
    with measuring() as measure:
        with tempfile.TemporaryDirectory() as folder, launched(Path(folder), options.ranks) as job:
            for rank in range(options.ranks):
                job.pid(rank)
            line = command("jobs", str(job.process.pid))
            found.append(("`ddpdoctor jobs`", f"{options.ranks} ranks", pairs(measure, line, options.rounds)))
        with crowd(options.processes):
            line = command("zombies")
            found.append(
                ("`ddpdoctor zombies`", f"{options.processes} processes", pairs(measure, line, options.rounds))
            )
    rows: list[tuple[str, ...]] = [("command", "beside", "beyond start-up", "aim", "against `--version`", "peak MiB")]
    for name, beside, rounds in found:
        beyond = statistics.median(ours.seconds - start.seconds for ours, start in rounds)
        ratio = statistics.median(ours.seconds / start.seconds for ours, start in rounds)
        peak = max(ours.peak for ours, _ in rounds)
        rows.append((name, beside, f"{beyond:.2f} s", f"below {AIM:.0f} s", f"{ratio:.1f}", f"{peak:.0f}"))
    print_table(rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
