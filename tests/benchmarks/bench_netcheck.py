"""How long `ddpdoctor netcheck` takes to its verdict on hosts out of network namespaces, and what torch says to the same
faults, and when.

    python -m tests.benchmarks.bench_netcheck [--rounds N] [--faults NAME,... | none] [--without-torch] [--markdown]

Healthy hosts first, then every fault: the median over the rounds. torch is run once a fault, with a timeout of 10 s in
place of its 30 min, so it takes up to 75 s. Needs root, `ip`, `unshare`, `nft` and `tc`. Exits with 1 where a healthy host
isn't called healthy, or a fault isn't named.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from tests.benchmarks.measuring import print_table
from tests.benchmarks.netcheck_faults import FAULTS, PORT, Fault, Settings
from tests.command import plain_environ
from tests.real.namespaces import Host, network
from tests.real.netcheck_hosts import start

AIMS = {2: 1.0, 8: 3.0}
"""Seconds from the last join to the verdict, by the number of healthy hosts."""
AIM = 15.0
"""The same for a fault; from the start where nobody can join."""
WAIT = 10
TIMEOUT = 10
"""torch's, in seconds."""
PATIENCE = 75.0
"""Seconds for torch: 5 x its timeout and then some."""

TRAINING = f"""
import datetime, os, torch, torch.distributed as dist
print("imported", flush=True)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={TIMEOUT}))
for elements in 1, 1 << 20:
    dist.all_reduce(torch.ones(elements))
dist.barrier()
print("trained", flush=True)
os._exit(0)
"""


class Verdict(NamedTuple):
    """since: seconds from the last join, None where a node didn't join. whole: from the start of the commands to the end of
    the first one that names what is wanted; of all where nothing is. named: what of it was."""

    since: float | None
    whole: float
    right: bool
    named: frozenset[str] = frozenset()


def verdict(hosts: list[Host], fault: Fault | None = None, settings: Settings | None = None) -> Verdict:
    """netcheck on these hosts at once: whether it is silent on healthy ones, or names the fault."""
    ranks = fault.ranks if fault else range(len(hosts))
    quick = ["--quick"] if fault is None or fault.quick else []
    running = [
        start(
            host,
            *("--json", "--master-addr", fault.master if fault else "10.77.0.11", "--nnodes", str(max(2, len(hosts)))),
            *("--node-rank", str(rank), "--wait", str(WAIT), *quick),
            environ=(settings or {}).get(host.hostname),
        )
        for host, rank in zip(hosts, ranks, strict=True)
    ]
    ended = [one.end(120) for one in running]
    leading = (one.report for one in ended if "seconds" in one.report)
    since = min((report["seconds"] for report in leading if not report["absent"]), default=None)
    if fault is None:
        return Verdict(since, max(one.seconds for one in ended), all(one.code == 0 for one in ended))
    naming = [one.seconds for one in ended if one.slugs & set(fault.slugs)]
    named = frozenset().union(*(one.slugs for one in ended)) & set(fault.slugs)
    return Verdict(since, min(naming, default=0.0), bool(naming), named)


class Said(NamedTuple):
    """What torch printed at last on one host, and how many seconds after its import."""

    host: str
    words: str
    seconds: float


class Rank:
    """One real rank of torch, under way."""

    def __init__(self, host: Host, rank: int, fault: Fault, settings: Mapping[str, str]) -> None:
        job = {"MASTER_ADDR": fault.master, "MASTER_PORT": str(PORT), "WORLD_SIZE": "2", "RANK": str(rank)}
        self._host = host
        self._lines: list[tuple[float, str]] = []
        self._process = subprocess.Popen(
            host.command(sys.executable, "-c", TRAINING),
            env=plain_environ() | {"OMP_NUM_THREADS": "1"} | job | dict(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.append((time.monotonic(), line.rstrip()))

    def end(self, until: float) -> Said:
        """What it said; it is killed then."""
        self._reader.join(max(0.0, until - time.monotonic()))
        silent = self._reader.is_alive()
        self._process.kill()
        self._process.wait()
        self._reader.join()
        began = next((at for at, line in self._lines if line == "imported"), None)
        if began is None:
            raise SystemExit(f"torch doesn't start on {self._host.hostname}: {self._lines[-5:]}")
        if silent:
            return Said(self._host.hostname, "nothing", time.monotonic() - began)
        if self._lines[-1][1] == "trained":
            return Said(self._host.hostname, "works", self._lines[-1][0] - began)
        errors = [(at, line) for at, line in self._lines if re.match(r"(\[rank\d\]: )?[\w.]+(Error|Exception): ", line)]
        at, line = errors[-1] if errors else self._lines[-1]
        return Said(self._host.hostname, f"`{shortened(line)}`", at - began)


def shortened(line: str) -> str:
    """Without the rank, the type's module and the folders of source files; at most 110 characters, fit for a table."""
    line = re.sub(r"^\[rank\d\]: |torch\.distributed\.|/[^\s\]:]*/(?=\w+\.(?:cc|cpp|h):\d)", "", line).replace("|", "/")
    return line if len(line) <= 110 else f"{line[:107]}..."


def torchs(hosts: list[Host], fault: Fault, settings: Settings) -> str:
    """What real ranks of torch say on these hosts, as a cell of the table."""
    ranks = [
        Rank(host, rank, fault, settings.get(host.hostname, {})) for host, rank in zip(hosts, fault.ranks, strict=True)
    ]
    until = time.monotonic() + PATIENCE
    said = [rank.end(until) for rank in ranks]
    if len({one.words for one in said}) == 1:
        said = [Said("both" if len(said) == 2 else said[0].host, said[0].words, max(one.seconds for one in said))]
    return "; ".join(f"{one.host}: {one.words} {_when(one)}" for one in said)


def _when(said: Said) -> str:
    if said.seconds < 1:
        return "at once"
    return f"{'for' if said.words == 'nothing' else 'after'} {said.seconds:.0f} s"


def healthy(rounds: int) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of two and of eight hosts."""
    rows: list[tuple[str, ...]] = [("healthy hosts, no torch", "verdict after the last join", "aim", "whole command")]
    right = True
    for count, aim in AIMS.items():
        with network(*(f"n{number}" for number in range(1, count + 1))) as hosts:
            verdicts = [verdict(hosts) for _ in range(rounds)]
        right = right and all(one.right for one in verdicts)
        since = statistics.median(one.since or 0.0 for one in verdicts)
        whole = statistics.median(one.whole for one in verdicts)
        rows.append((str(count), f"{since:.2f} s", f"{aim:g} s", f"{whole:.1f} s"))
    return rows, right


def faulty(fault: Fault, rounds: int, *, with_torch: bool) -> tuple[tuple[str, ...], bool]:
    """One row of the table of faults."""
    with network("n1", "n2") as both:
        hosts = [both[number] for number in fault.here]
        with fault.lay(both) as settings:
            verdicts = [verdict(hosts, fault, settings) for _ in range(rounds)]
            shown = torchs(hosts, fault, settings) if with_torch and fault.by_default else "-"
    right = all(one.right for one in verdicts)
    joined = [one.since for one in verdicts if one.since is not None]
    seconds = statistics.median(joined or [one.whole for one in verdicts])
    after = f"{seconds:.1f} s" + ("" if joined else " from the start")
    named = frozenset().union(*(one.named for one in verdicts)) if right else fault.slugs
    slugs = ", ".join(f"`{slug}`" for slug in sorted(named))
    return (fault.title, slugs if right else f"NOT NAMED: {slugs}", after, shown, fault.by_default or "-"), right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--faults", default=",".join(one.name for one in FAULTS), help="names, with commas, or none")
    parser.add_argument("--without-torch", action="store_true", help="measure ddpdoctor alone")
    parser.add_argument("--markdown", action="store_true", help="as the README's tables")
    options = parser.parse_args()
    names = [] if options.faults == "none" else options.faults.split(",")
    if unknown := set(names) - {one.name for one in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    rows, right = healthy(options.rounds)
    print_table(rows, markdown=options.markdown)
    print()
    heading = (
        "fault",
        "netcheck says",
        f"after the last join (aim {AIM:g} s)",
        f"torch says (measured, timeout={TIMEOUT} s)",
        "by default after",
    )
    table: list[tuple[str, ...]] = [heading]
    for fault in FAULTS:
        if fault.name in names:
            row, named = faulty(fault, options.rounds, with_torch=not options.without_torch)
            print(*row, sep="  ", file=sys.stderr, flush=True)
            table.append(row)
            right = right and named
    if names:
        print_table(table, markdown=options.markdown)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
