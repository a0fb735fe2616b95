"""What `ddpdoctor run` costs a command that prints 1,000,000 lines, and at its start.

    python -m tests.benchmarks.bench_run [--rounds N] [--lines 1000000] [--markdown]

Each round runs the plain command and the same under ddpdoctor in turn, with the same place to go for the output: a file, a pipe
that is read at once, a terminal. Told are the medians of the command's own time, from its first line to its last, and the
ratio of the two; and the median of what ddpdoctor adds around it, from the start of all to the end of all. The command writes line
by line, as training does to a terminal and to standard error, or in blocks, as it does to a file and to a pipe.
"""

from __future__ import annotations

import argparse
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.measuring import print_table
from tests.support.command import command, plain_environ

PRINTS = """
import os, sys, time
lines, flush, told = int(sys.argv[1]), sys.argv[2] == "lines", sys.argv[3]
text = "step %d loss 0.123456 and what else a training prints in a line\\n"
began = time.perf_counter()
if flush:
    for i in range(lines):
        os.write(1, (text % i).encode())
else:
    out = open(1, "w", buffering=8192, closefd=False)
    for i in range(lines):
        out.write(text % i)
    out.flush()
with open(told, "w") as file:
    file.write(repr(time.perf_counter() - began))
"""


class Took(NamedTuple):
    """Seconds. own: the command's, while it prints. whole: from start to end."""

    own: float
    whole: float


def to_file(line: Sequence[str], folder: Path) -> None:
    with (folder / "output").open("wb") as output:
        subprocess.run(line, env=plain_environ(), stdout=output, check=True)


def to_pipe(line: Sequence[str], folder: Path) -> None:
    with subprocess.Popen(line, env=plain_environ(), stdout=subprocess.PIPE) as one:
        assert one.stdout
        while os.read(one.stdout.fileno(), 1 << 16):
            pass
    if one.returncode:
        raise SystemExit(f"exit code {one.returncode}")


def to_terminal(line: Sequence[str], folder: Path) -> None:
    ours, its = pty.openpty()

    def read() -> None:
        try:
            while os.read(ours, 1 << 16):
                pass
        except OSError:
            return

    reader = threading.Thread(target=read)
    with subprocess.Popen(line, env=plain_environ(), stdin=its, stdout=its, start_new_session=True) as one:
        os.close(its)
        reader.start()
    reader.join()
    os.close(ours)
    if one.returncode:
        raise SystemExit(f"exit code {one.returncode}")


Place = Callable[[Sequence[str], Path], None]
PLACES: dict[str, Place] = {"a file": to_file, "a pipe": to_pipe, "a terminal": to_terminal}


def took(place: Place, line: Sequence[str], folder: Path) -> Took:
    told = folder / "told"
    began = time.perf_counter()
    place([*line, str(told)], folder)
    return Took(float(told.read_text()), time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = [
        ("output to", "written", "plain", "under ddpdoctor", "ratio", "around it"),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for where, place in PLACES.items():
            for how in ("blocks", "lines"):
                plain = [sys.executable, "-c", PRINTS, str(options.lines), how]
                ours = command("run", "--", *plain)
                found = [(took(place, plain, folder), took(place, ours, folder)) for _ in range(options.rounds)]
                around = statistics.median((two.whole - two.own) - (one.whole - one.own) for one, two in found)
                before, under = (statistics.median(pair[i].own for pair in found) for i in (0, 1))
                rows.append(
                    (
                        where,
                        f"in {how}",
                        f"{before:.2f} s",
                        f"{under:.2f} s",
                        f"{under / before:.2f}",
                        f"{around:.2f} s",
                    )
                )
    print_table(rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
