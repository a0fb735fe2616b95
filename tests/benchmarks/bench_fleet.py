"""How long `ddpdoctor fleet` takes for 100, 1,000 and 10,000 hosts, and how much memory.

    python -m tests.benchmarks.bench_fleet [--hosts N ...] [--markdown]

The fleets are made of a healthy host of the fixtures: each has its own name, addresses, serials and figures, three in a thousand are odd.
Seconds are those of the clock and of the processors; memory is that of all processes together, shared pages counted once. A sweep goes over
a folder; over a pipe with a snapshot a line; and over one with the short lines of launchers, of all hosts mixed, so that none is whole before
the last lines come.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ddpdoctor.engine.snapshot_lines import to_lines
from ddpdoctor.engine.snapshots import decode_snapshot
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


def mixed_lines(folder: Path) -> Iterator[str]:
    """What srun hands on where all hosts are equally fast: the first line of each, the second of each, and so on."""
    hosts = [
        [f"{task}: {line}\n" for line in to_lines(decode_snapshot(file.read_bytes(), file.name)).splitlines()]
        for task, file in enumerate(sorted(folder.iterdir()))
    ]
    for lines in itertools.zip_longest(*hosts, fillvalue=""):
        yield from lines


def sweep(hosts: int, source: Path) -> Swept:
    """Run the command once over a folder, or over the pipe that hands on a file."""
    started = time.perf_counter()
    feeder = None if source.is_dir() else subprocess.Popen(["cat", source], stdout=subprocess.PIPE)
    with tempfile.TemporaryFile("w+") as output:
        swept = subprocess.Popen(
            command("fleet", "-" if feeder else source),
            stdin=feeder.stdout if feeder else None,
            stdout=output,
            stderr=output,
            env=plain_environ(),
        )
        peak = processor = 0.0
        while swept.poll() is None:
            memory, used = _usage(swept.pid)
            peak, processor = max(peak, memory), max(processor, used)
            time.sleep(0.1)
        seconds = time.perf_counter() - started
        output.seek(0)
        words = output.read()
    if feeder:
        feeder.wait()
    if swept.returncode not in (0, 1) or f" {hosts} hosts " not in " ".join(words.split()):
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
            folder = Path(name) / "nodes"
            folder.mkdir()
            write_fleet(folder, count)
            sources = {
                "files": folder,
                "a pipe": Path(name) / "lines",
                "a pipe of mixed short lines": Path(name) / "mixed",
            }
            sources["a pipe"].write_text("".join(f"{file.read_text()}\n" for file in sorted(folder.iterdir())))
            with sources["a pipe of mixed short lines"].open("w") as file:
                file.writelines(mixed_lines(folder))
            for what, source in sources.items():
                swept = sweep(count, source)
                rows.append(
                    (
                        f"{count:,}",
                        what,
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
