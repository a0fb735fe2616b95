"""How long `ddpdoctor fleet` takes for 100, 1,000 and 10,000 hosts, and how much memory.

    python -m tests.benchmarks.bench_fleet [--hosts N ...] [--markdown]

The fleets are made of a healthy host of the fixtures: each has its own name, addresses, serials and figures, three in a thousand are odd.
Seconds are those of the clock and of the processors; memory is that of all processes together, shared pages counted once. A sweep goes over
a folder, and once more over a pipe.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.benchmarks.measuring import print_table
from tests.support.command import command, plain_environ
from tests.support.fleet_of_fixtures import fleet_snapshots

MODEL = "h100x8-training"
"""The healthy host with the most to judge: eight GPUs, and a job of eight ranks that runs."""
AIM_SECONDS = 60
AIM_MEBIBYTES = 500


class Swept(NamedTuple):
    """seconds: by the clock. processor: of all processes. peak: MiB of all processes together. verdict: the last words."""

    seconds: float
    processor: float
    peak: float
    outcome: str


def write_fleet(folder: Path, count: int) -> None:
    """Write the snapshots of a fleet."""
    for facts in fleet_snapshots(count, _odd, MODEL):
        (folder / f"{facts['host']}.json").write_text(json.dumps(facts))


def _odd(number: int, facts: dict[str, Any]) -> None:
    if number % 1000 == 17:
        facts["shared_memory"]["size"] = facts["shared_memory"]["free"] = 64 * 1024**2
    if number % 1000 == 21:
        facts["gpus"]["devices"][3]["pcie_width"] = 8
    if number % 1000 == 40:
        facts["driver"]["kernel_version"] = "570.124.06"


def sweep(folder: Path, *, piped: bool) -> Swept:
    """Run the command once."""
    files = sorted(folder.iterdir())
    started = time.perf_counter()
    if piped:
        source = subprocess.Popen(
            ["sh", "-c", 'for file in "$1"/*; do cat "$file"; echo; done', "sh", folder], stdout=subprocess.PIPE
        )
        stdin = source.stdout
    else:
        source, stdin = None, None
    with tempfile.TemporaryFile("w+") as output:
        swept = subprocess.Popen(
            command("fleet", "-" if piped else folder), stdin=stdin, stdout=output, stderr=output, env=plain_environ()
        )
        peak = processor = 0.0
        while swept.poll() is None:
            memory, used = _usage(swept.pid)
            peak, processor = max(peak, memory), max(processor, used)
            time.sleep(0.1)
        seconds = time.perf_counter() - started
        output.seek(0)
        words = output.read()
    if source:
        source.wait()
    if swept.returncode not in (0, 1) or f" {len(files)} hosts " not in " ".join(words.split()):
        raise SystemExit(f"the sweep failed: {words[-3000:]}")
    return Swept(seconds, processor, peak, " ".join(words[words.rindex("Of ") :].split()).partition(".")[0])


def _usage(pid: int) -> tuple[float, float]:
    """MiB and processor seconds of a process and those that it started."""
    memory = used = 0.0
    try:
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            memory += member.memory_full_info().pss / 1024**2
            times = member.cpu_times()
            used += times.user + times.system
    except psutil.Error:
        pass
    return memory, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = [
        ("hosts", "from", "seconds", "processor seconds", "processor ms a host", "peak MiB, all processes")
    ]
    for count in options.hosts:
        with tempfile.TemporaryDirectory() as name:
            write_fleet(Path(name), count)
            for piped in (False, True):
                swept = sweep(Path(name), piped=piped)
                rows.append(
                    (
                        f"{count:,}",
                        "a pipe" if piped else "files",
                        f"{swept.seconds:.1f}",
                        f"{swept.processor:.1f}",
                        f"{swept.processor / count * 1000:.1f}",
                        f"{swept.peak:.0f}",
                    )
                )
                print(swept.outcome, file=sys.stderr)
    print_table(rows, markdown=options.markdown)
    print(f"\nAim for 10,000: {AIM_SECONDS} s on two cores, {AIM_MEBIBYTES} MiB.")


if __name__ == "__main__":
    main()
