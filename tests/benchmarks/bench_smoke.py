"""How long `ddpdoctor smoke` takes and what memory it wants, as ratios to torchrun on a plain script of the same training,
and how soon it names a rank that hangs.

    python -m tests.benchmarks.bench_smoke [--rounds N] [--ranks 2,8] [--hangs STAGE,... | none] [--markdown]

On CPU over gloo. Each round runs both commands once, in turn, so that a slow minute hits both alike; a ratio is the median
over the rounds of (ours / theirs in the same round). Where that is past its limit (2 ranks: 1.0, 8 ranks: 0.6) there are up
to two rounds more. Memory is measured in a run of its own that no time is taken of: the peak of the sum over all processes of
the command, shared pages counted once (PSS), sampled. Exits with 1 where a command fails, where the wall time is past its
limit after all, where the aim of the memory or of a hang's naming is missed by more than the measurement's own noise, or where
a hang isn't named with its rank and stage, or is named before its deadline.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.smoke_training.stages import import_seconds
from tests.benchmarks.measuring import print_table
from tests.support.command import command, plain_environ

PLAIN = Path(__file__).with_name("plain_training.py")

SECONDS_AIMS = {2: 0.7, 8: 0.4}
MEMORY_AIMS = {8: 0.5}
"""Ours / torchrun's, at most, by the number of ranks."""
SECONDS_LIMITS = {2: 1.0, 8: 0.6}
"""The aims and what other work on the machine adds, which moves even the ratio of two wall times."""
MORE_ROUNDS = 2
"""At most, where the median is past its limit."""
MEMORY_NOISE = 1.05
"""A factor: a peak between two samples is missed, on either side."""

TIMEOUT = 4
LATER = 3.0
"""Seconds: a hang is to be named so much after its stage's deadline."""
LATER_NOISE = 0.5
"""Seconds: what several processes on two cores wait for one, and the doctor's second look at a rank that is late."""
EARLIER_NOISE = 1.0
"""Seconds: another rank may have begun the stage so much before the one that hangs, and is late before it."""
HANGS = ("import", "rendezvous", "all_reduce", "training", "shutdown")

PATIENCE = 300


class Compared(NamedTuple):
    """seconds: ours and theirs, a round each. memory: the peak of either, in MiB."""

    ranks: int
    seconds: list[tuple[float, float]]
    memory: tuple[float, float]

    @property
    def ratio(self) -> float:
        return statistics.median(ours / theirs for ours, theirs in self.seconds)

    @property
    def slow(self) -> bool:
        """Past its limit, where it has one."""
        return self.ratio > SECONDS_LIMITS.get(self.ranks, self.ratio)


class Hang(NamedTuple):
    """later: seconds from the stage's deadline until it was named; wrong: what is wrong about its words, "" where nothing
    is."""

    stage: str
    later: float
    wrong: str

    @property
    def failed(self) -> bool:
        return bool(self.wrong) or not -EARLIER_NOISE <= self.later <= LATER + LATER_NOISE


def ours(ranks: int) -> list[str]:
    return [*command("smoke", "--nproc", str(ranks), "--backend", "gloo", "--json"), "--python", sys.executable]


def theirs(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(PLAIN)]


def environ() -> dict[str, str]:
    # torchrun sets it by itself for several ranks, and warns.
    return plain_environ() | {"OMP_NUM_THREADS": "1"}


def seconds_of(command_line: list[str]) -> float:
    began = time.perf_counter()
    ended = subprocess.run(command_line, env=environ(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    seconds = time.perf_counter() - began
    if ended.returncode:
        raise SystemExit(f"{command_line} failed: {ended.stdout[-3000:]}{ended.stderr[-3000:]}")
    return seconds


def memory_of(command_line: list[str]) -> float:
    """The peak of the sum, in MiB."""
    with subprocess.Popen(command_line, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        most = 0
        while process.poll() is None:
            most = max(most, sum(map(pss, family(process.pid))))
            time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command_line} failed with exit code {process.returncode}")
    return most / 1024


def family(root: int) -> list[int]:
    """That process and all below it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def pss(pid: int) -> int:
    """KiB; a page that several share counts as a part in each. 0 for a process that is gone."""
    with suppress(OSError):
        said = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(said[1]) if said else 0
    return 0


def compare(ranks: int, rounds: int) -> Compared:
    """The run for memory comes first, and warms the caches."""
    memory = memory_of(ours(ranks)), memory_of(theirs(ranks))
    return measured(ranks, memory, rounds, lambda: (seconds_of(ours(ranks)), seconds_of(theirs(ranks))))


def measured(
    ranks: int, memory: tuple[float, float], rounds: int, one_round: Callable[[], tuple[float, float]]
) -> Compared:
    """So many rounds, and more where they say that we are slow."""
    compared = Compared(ranks, [one_round() for _ in range(rounds)], memory)
    while compared.slow and len(compared.seconds) < rounds + MORE_ROUNDS:
        compared.seconds.append(one_round())
    return compared


def hang(stage: str) -> Hang:
    """Rank 1 of two sleeps at the beginning of that stage. A line on stderr names it when the run is over, which its facts
    tell, before the host is looked at for the cause."""
    fault = {"DDPDOCTOR_SMOKE_FAULT": json.dumps({"rank": 1, "stage": stage, "kind": "sleep"})}
    ended = subprocess.run(
        [*ours(2), "--timeout", str(TIMEOUT), "-v"],
        env=environ() | fault,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if wrong := misnamed(stage, ended):
        return Hang(stage, 0.0, wrong)
    facts = json.loads(ended.stdout)["smoke"]
    asleep = facts["ranks"][1]
    begun = asleep["ended_after"] - next(one["seconds"] for one in asleep["stages"] if one["name"] == stage)
    deadline = import_seconds(TIMEOUT) if stage == "import" else TIMEOUT
    return Hang(stage, facts["seconds"] - begun - deadline, "")


def misnamed(stage: str, ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode != 1:
        return f"exit code {ended.returncode}: {ended.stdout[-1000:]}{ended.stderr[-1000:]}"
    findings = json.loads(ended.stdout)["findings"]
    named = [finding["summary"] for finding in findings if finding["severity"] == "fail"]
    if not any("rank 1" in one and stage in one for one in named):
        return f"NOT NAMED: rank 1 in {stage}, but {named}"
    at_once = any("rank 1" in line and stage in line for line in ended.stderr.splitlines())
    return "" if at_once else f"NOT NAMED AT ONCE: {ended.stderr[-500:]}"


def against(value: float, aim: float | None) -> str:
    return f"{value:.2f}{'' if aim is None or value <= aim else ' (missed)'}"


def at_most(aim: float | None) -> str:
    return "" if aim is None else f"{aim:g} or less"


def rows_of(compared: list[Compared]) -> list[tuple[str, ...]]:
    rounds = sorted({len(one.seconds) for one in compared})
    wall_time = f"wall time, ours / torchrun's, median of {' or '.join(map(str, rounds))}"
    rows: list[tuple[str, ...]] = [
        ("ranks", wall_time, "aim", "memory of all processes, ours / torchrun's", "aim", "MiB")
    ]
    for one in compared:
        mine, others = one.memory
        seconds, memory = SECONDS_AIMS.get(one.ranks), MEMORY_AIMS.get(one.ranks)
        rows.append(
            (
                str(one.ranks),
                against(one.ratio, seconds),
                at_most(seconds),
                against(mine / others, memory),
                at_most(memory),
                f"{mine:.0f} / {others:.0f}",
            )
        )
    return rows


def has_failed(one: Compared) -> bool:
    """A missed aim that neither the machine's load nor the measurement's noise explains."""
    aim = MEMORY_AIMS.get(one.ranks)
    return one.slow or (aim is not None and one.memory[0] / one.memory[1] > aim * MEMORY_NOISE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="2,8", help="numbers, with commas")
    parser.add_argument("--hangs", default=",".join(HANGS), help="stages, with commas, or none")
    parser.add_argument("--markdown", action="store_true", help="as the table of its pages")
    options = parser.parse_args()
    compared = [compare(int(ranks), options.rounds) for ranks in options.ranks.split(",")]
    print_table(rows_of(compared), markdown=options.markdown)
    wrong = any(map(has_failed, compared))
    stages = [] if options.hangs == "none" else options.hangs.split(",")
    if stages:
        hangs = [hang(stage) for stage in stages]
        rows = [("rank 1 of two hangs in", "named after its deadline", "aim"), *map(row_of_hang, hangs)]
        print()
        print_table(rows, markdown=options.markdown)
        wrong = wrong or any(hang.failed for hang in hangs)
    print()
    for one in compared:
        mine, others = (statistics.median(pair[side] for pair in one.seconds) for side in (0, 1))
        print(f"{one.ranks} ranks: {mine:.2f} s  ddpdoctor smoke, {others:.2f} s  torchrun (medians)")
    sys.exit(1 if wrong else 0)


def row_of_hang(one: Hang) -> tuple[str, ...]:
    missed = " (missed)" if one.later > LATER else " (too early)" if one.later < -EARLIER_NOISE else ""
    return f"`{one.stage}`", one.wrong or f"{round(one.later, 1) + 0:.1f} s{missed}", f"{LATER:g} s or less"


if __name__ == "__main__":
    main()
