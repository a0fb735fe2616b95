"""What `ddpdoctor watch` costs, how often it cries wolf beside healthy jobs, and whether it names faults.

    python -m tests.benchmarks.bench_watch cost [--seconds 300] [--ranks 4] [--markdown]
    python -m tests.benchmarks.bench_watch healthy [--seconds 3600] [--confirm 120] [--only NAME]... [--markdown]
    python -m tests.benchmarks.bench_watch faults [--confirm 12] [--only NAME]... [--markdown]

cost: processor time of the watch and of all that it starts, against the time that one core has, for each rank; of a job that moves, and of
one that stands still. healthy: jobs of all speeds, with pauses of all kinds, each with a watch of its own; every alarm is a false one; a job or
a watch that doesn't live to the end, or a look that fails, ends with exit code 1. faults:
each is played by real ranks, and must be named, and in time; exit code 1 unless all are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.measuring import print_table
from tests.support.watched_jobs import (
    ALARM,
    FAULTS,
    Played,
    end,
    latest_seconds,
    play,
    steps_done,
    training,
    wait_for,
    watch,
)

AT_ONCE = 4
"""Faults that are played at the same time."""
NOT_LOOKED_AT = ("could not be looked at", "are looked at later", "could not be read")
"""What the watch says of a job of which it would miss a hang."""

HEALTHY: Mapping[str, Mapping[str, Any]] = {
    "steps of 5 ms, evaluation on rank 0": {
        "step": 0.005, "pause": "evaluation", "pause_every": 120, "pause_seconds": 200,
    },
    "steps of 20 ms, evaluation on rank 0 with some per cent of a core": {
        "step": 0.02, "pause": "light evaluation", "pause_every": 90, "pause_seconds": 200,
    },
    "steps of 50 ms, checkpoint by rank 0": {
        "step": 0.05, "pause": "checkpoint", "pause_every": 90, "pause_seconds": 180,
    },
    "steps of 0.5 s, slow data loading": {"step": 0.5, "loader": 1, "pause": "loading", "pause_seconds": 90},
    "steps of 2 s, torch.compile": {"step": 2.0, "pause": "compilation", "pause_every": 240, "pause_seconds": 180},
    "steps of 10 s, upload by another process": {
        "step": 10.0, "pause": "upload", "pause_every": 120, "pause_seconds": 180,
    },
    "steps of 30 s, without a pause": {"step": 30.0},
    "steps of 60 s, quiet pauses of 90 s": {"step": 60.0, "pause": "quiet", "pause_every": 300, "pause_seconds": 90},
}  # fmt: skip

# --- what it costs ----------------------------------------------------------------------------------------------------------

COSTS: Mapping[str, Mapping[str, Any]] = {
    "moves": {"step": 0.5},
    "waits for rank 0, which evaluates": {"step": 0.5, "pause": "evaluation", "pause_every": 1, "pause_seconds": 1e6},
    "stands still": {"fault": "sleep", "step": 0.05, "fault_at": 40},
}
"""Jobs, by what they do all the while."""


def processor_seconds(metrics: Path) -> float:
    """What a watch has used so far, by its own metrics."""
    [line] = [
        line for line in metrics.read_text().splitlines() if line.startswith("ddpdoctor_watch_processor_seconds ")
    ]
    return float(line.split()[1])


def share_of_core(place: Path, wish: Mapping[str, Any], ranks: int, seconds: float) -> float:
    """What a watch with its defaults uses of a core, for each rank."""
    metrics = place / "watch.prom"
    with training(place, wish, ranks) as job:
        wait_for(place / "training", job)
        output = place / "watched"
        watching = watch(job.pid, "--evidence", str(place), "--prometheus", str(metrics), output=output)
        try:
            wait_for(metrics, job)
            began, before = time.monotonic(), processor_seconds(metrics)
            time.sleep(seconds)
            return (processor_seconds(metrics) - before) / (time.monotonic() - began) / ranks
        finally:
            watching.terminate()
            watching.wait()


def cost(options: argparse.Namespace, folder: Path) -> None:
    """Measure what it costs beside each of the jobs, which run at the same time: processor time is the same on a busy host."""
    with ThreadPoolExecutor(len(COSTS)) as pool:
        shares = pool.map(
            lambda job: share_of_core(folder / job[0].replace(" ", "-"), job[1], options.ranks, options.seconds),
            COSTS.items(),
        )
        rows: list[tuple[str, ...]] = [("a job that", "of a core, each rank", "aim")]
        rows += [(name, f"{share:.3%}", "below 0.1 %") for name, share in zip(COSTS, shares, strict=True)]
    print_table(rows, markdown=options.markdown)


# --- false alarms -----------------------------------------------------------------------------------------------------------


class HealthyJob(NamedTuple):
    """A healthy job, and its watch. place: of what both write."""

    name: str
    place: Path
    job: subprocess.Popen[bytes]
    watching: subprocess.Popen[bytes]

    @property
    def output(self) -> Path:
        return self.place / "watched"

    @property
    def ended(self) -> str:
        """What of the two lives no more; "" where both live."""
        codes = {"job": self.job.poll(), "watch": self.watching.poll()}
        return " and ".join(f"{name} (exit code {code})" for name, code in codes.items() if code is not None)


class Lived(NamedTuple):
    """What came of a healthy job. seconds: for which both it and its watch lived. steps: that it did. said: by the watch. ended: what of the two
    didn't live to the end."""

    name: str
    seconds: float
    steps: int
    said: str
    ended: str

    @property
    def missed(self) -> int:
        """Times that it was said that the job could not be looked at, or only later."""
        return sum(map(self.said.count, NOT_LOOKED_AT))

    @property
    def counts(self) -> bool:
        """Whether an alarm would have been told, had there been one."""
        return not self.ended and self.steps > 0 and not self.missed

    @property
    def row(self) -> tuple[str, ...]:
        amounts = (self.steps, self.said.count("the others up"), self.said.count(ALARM), self.missed)
        return self.name, f"{self.seconds / 3600:.2g}", *(f"{amount:,}" for amount in amounts), self.ended or "-"


def live(jobs: Sequence[HealthyJob], seconds: float) -> list[Lived]:
    """Let healthy jobs run for so long, and see what came of each."""
    began = time.monotonic()
    lived: dict[str, float] = {}
    while len(lived) < len(jobs) and (passed := time.monotonic() - began) < seconds:
        lived.update((one.name, passed) for one in jobs if one.ended and one.name not in lived)
        time.sleep(min(1.0, seconds - passed))
    passed = time.monotonic() - began
    return [
        Lived(one.name, lived.get(one.name, passed), steps_done(one.place), one.output.read_text(), one.ended)
        for one in jobs
    ]


def healthy(options: argparse.Namespace, folder: Path) -> int:
    """Count what is said of healthy jobs."""
    jobs: list[HealthyJob] = []
    with ExitStack() as stack:
        for number, name in enumerate(options.only or HEALTHY):
            place = folder / f"job-{number}"
            job = stack.enter_context(training(place, HEALTHY[name]))
            line = ("--confirm", str(options.confirm), "--every", str(options.every), "-v", "--evidence", str(place))
            jobs.append(HealthyJob(name, place, job, watch(job.pid, *line, output=place / "watched")))
            stack.callback(end, jobs[-1].watching)
        for one in jobs:
            wait_for(one.place / "training", one.job)
        lived = live(jobs, options.seconds)
    heading = ("job", "hours", "steps", "pauses", "alarms", "not looked at", "ended too early")
    print_table([heading, *(one.row for one in lived)], markdown=options.markdown)
    return 0 if all(one.counts for one in lived) else 1


# --- faults -----------------------------------------------------------------------------------------------------------------


def faults(options: argparse.Namespace, folder: Path) -> int:
    """Play the faults, some at a time."""
    names = options.only or list(FAULTS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        played = list(pool.map(lambda name: play(name, folder, options.confirm, options.every), names))
    return tell(played, options.confirm, markdown=options.markdown)


def tell(played: Sequence[Played], confirm: float, *, markdown: bool) -> int:
    """Print what came of the faults; 1 unless all were named, and in time."""
    rows: list[tuple[str, ...]] = [("fault", "named", "after, in times of confirmation", "said")]
    for fault in played:
        named = "yes" if fault.is_named else "no"
        rows.append((fault.name, named, f"{fault.after / confirm:.2f}", fault.said.partition(": ")[2]))
    print_table(rows, markdown=markdown)
    named, in_time = (sum(map(attrgetter(what), played)) for what in ("is_named", "is_in_time"))
    bound = f"{confirm:g} to {latest_seconds(confirm):g} s after the fault"
    print(f"{named} of {len(played)} named, {in_time} in time ({bound})")
    return 0 if named == in_time == len(played) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "healthy", "faults"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--confirm", type=float, default=0)
    parser.add_argument("--every", type=float, default=0)
    parser.add_argument("--only", action="append", help="this fault, or healthy job; repeatable")
    parser.add_argument("--keep", help="folder for what the jobs and watches wrote; else it is lost")
    parser.add_argument("--markdown", action="store_true", help="as the table of its page")
    options = parser.parse_args()
    known = {"healthy": HEALTHY, "faults": FAULTS}.get(options.what, {})
    if unknown := [name for name in options.only or () if name not in known]:
        parser.error(f"--only: {options.what} has no {', '.join(unknown)}; it has {'; '.join(known) or 'none'}")
    with ExitStack() as stack:
        folder = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        if options.what == "healthy":
            options.seconds = options.seconds or 3600.0
            options.confirm = options.confirm or 120.0
            options.every = options.every or 5.0
            return healthy(options, folder)
        if options.what == "cost":
            options.seconds = options.seconds or 300.0
            cost(options, folder)
        elif options.what == "faults":
            options.confirm = options.confirm or 12.0
            options.every = options.every or 1.0
            return faults(options, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
