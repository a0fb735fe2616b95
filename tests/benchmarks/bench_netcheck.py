"""How long `ddpdoctor netcheck` takes to its verdict on hosts out of network namespaces, and what torch says to the same
faults, and when.

    python -m tests.benchmarks.bench_netcheck [--rounds N] [--faults NAME,... | none] [--without-torch] [--markdown]

Healthy hosts first, then every fault: the median over the rounds. torch is run once a fault, with a timeout of 5 s in
place of its 30 min, so it takes up to 60 s, several faults at a time. Some eight minutes in all. Needs root, `ip`,
`unshare`, `nft` and `tc`. Exits with 1 where a healthy host isn't called healthy, where a fault isn't named with its node
and direction, or where anything else is called broken. An aim that is missed is said to be missed.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tests.benchmarks.measuring import print_table
from tests.benchmarks.netcheck_faults import FAULTS, PORT, Fault, Named, Settings
from tests.support.command import plain_environ
from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import Ran, start

AIMS = {2: 1.0, 8: 3.0}
"""Seconds from the last join to the verdict, by the number of healthy hosts."""
AIM = 15.0
"""The same for a fault; from the start where nobody can join."""
WAIT = 10
TIMEOUT = 5
"""torch's, in seconds."""
PATIENCE = 60.0
"""Seconds for torch: its import, 5 x its timeout and then some."""
AT_ONCE = 4
"""Faults for which torch runs at the same time: it mostly waits."""

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
    the first one that names what is wanted; of all on healthy hosts. wrong: what should have been said and wasn't, and what
    should not have been; "" where all is right."""

    since: float | None
    whole: float
    wrong: str


class Printed(NamedTuple):
    """A finding of severity fail or warn, on a node. text: its summary and evidence."""

    slug: str
    node: str
    severity: str
    text: str


def printed(ran: Ran) -> frozenset[Printed]:
    return frozenset(
        Printed(
            finding["slug"],
            finding.get("node", ran.host),
            finding["severity"],
            "\n".join([finding["summary"], *(evidence["text"] for evidence in finding["evidence"])]),
        )
        for finding in ran.report["findings"]
        if finding["severity"] != "info"
    )


def is_named(wanted: Named, found: Collection[Printed]) -> bool:
    return any((one.slug, one.node) == (wanted.slug, wanted.node) and wanted.words in one.text for one in found)


def misnamed(fault: Fault | None, found: Collection[Printed]) -> str:
    """What is wrong about these findings. On healthy hosts there is to be none, not even a warning."""
    wanted = fault.named if fault else ()
    silent = [f"NOT NAMED: {one.slug} on {one.node} ({one.words})" for one in wanted if not is_named(one, found)]
    known = {(one.slug, one.node) for one in wanted}
    others = [one for one in found if (one.slug, one.node) not in known and (fault is None or one.severity == "fail")]
    return "; ".join([*silent, *(f"WRONG: {one.slug} on {one.node} ({one.text.splitlines()[0]})" for one in others)])


def verdict(hosts: list[Host], fault: Fault | None = None, settings: Settings | None = None) -> Verdict:
    """netcheck on these hosts at once: whether it is silent on healthy ones, or names the fault and nothing else."""
    ranks = fault.ranks if fault else range(len(hosts))
    quick = ["--quick"] if fault is None or fault.quick else []
    running = [
        start(
            host,
            *("--json", "--master-addr", fault.master if fault else "10.77.0.11", "--nnodes", str(max(2, len(hosts)))),
            *("--node-rank", str(rank), "--wait", str(fault.wait if fault else WAIT), *quick),
            environ=(settings or {}).get(host.hostname),
        )
        for host, rank in zip(hosts, ranks, strict=True)
    ]
    ended = [one.end(120) for one in running]
    leading = (one.report for one in ended if "seconds" in one.report)
    since = min((report["seconds"] for report in leading if not report["absent"]), default=None)
    found = frozenset().union(*(printed(one) for one in ended))
    wrong = misnamed(fault, found)
    if fault is None:
        codes = "" if not any(one.code for one in ended) else f"exit codes {[one.code for one in ended]}"
        return Verdict(since, max(one.seconds for one in ended), "; ".join(one for one in (wrong, codes) if one))
    naming = [one.seconds for one in ended if any(is_named(wanted, printed(one)) for wanted in fault.named)]
    return Verdict(since, min(naming, default=0.0), wrong)


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


def torch_alone(fault: Fault) -> str:
    """The same on hosts of its own."""
    with network("n1", "n2") as both, fault.lay(both) as settings:
        return torchs([both[number] for number in fault.here], fault, settings)


def against(seconds: float, aim: float) -> str:
    return f"{seconds:.{2 if aim < 10 else 1}f} s{'' if seconds <= aim else ' (MISSED)'}"


def healthy(rounds: int) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of two and of eight hosts."""
    rows: list[tuple[str, ...]] = [
        ("healthy hosts, no torch", "netcheck says", "verdict after the last join", "aim", "whole command")
    ]
    right = True
    for count, aim in AIMS.items():
        with network(*(f"n{number}" for number in range(1, count + 1))) as hosts:
            verdicts = [verdict(hosts) for _ in range(rounds)]
        wrong = "; ".join(verdict.wrong for verdict in verdicts if verdict.wrong)
        right = right and not wrong
        since = statistics.median(verdict.since if verdict.since is not None else math.inf for verdict in verdicts)
        whole = statistics.median(verdict.whole for verdict in verdicts)
        rows.append((str(count), wrong or "nothing is wrong", against(since, aim), f"{aim:g} s", f"{whole:.1f} s"))
    return rows, right


def faulty(fault: Fault, rounds: int) -> tuple[tuple[str, str, str], bool]:
    """Of one row of the table of faults, what is netcheck's."""
    with network("n1", "n2") as both, fault.lay(both) as settings:
        verdicts = [verdict([both[number] for number in fault.here], fault, settings) for _ in range(rounds)]
    wrong = next((verdict.wrong for verdict in verdicts if verdict.wrong), "")
    joined = [verdict.since for verdict in verdicts if verdict.since is not None]
    seconds = statistics.median(joined or [verdict.whole for verdict in verdicts])
    after = against(seconds, AIM) + ("" if joined else f" from the start, --wait {fault.wait}")
    return (fault.title, wrong or said_of(fault), after), not wrong


def said_of(fault: Fault) -> str:
    by_slug: dict[str, list[str]] = {}
    for one in fault.named:
        by_slug.setdefault(one.slug, []).append(one.node)
    return ", ".join(f"`{slug}` on {' and '.join(nodes)}" for slug, nodes in by_slug.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--faults", default=",".join(fault.name for fault in FAULTS), help="names, with commas, or none"
    )
    parser.add_argument("--without-torch", action="store_true", help="measure ddpdoctor alone")
    parser.add_argument("--markdown", action="store_true", help="as the table of its pages")
    options = parser.parse_args()
    names = [] if options.faults == "none" else options.faults.split(",")
    if unknown := set(names) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    rows, right = healthy(options.rounds)
    print_table(rows, markdown=options.markdown)
    print(flush=True)
    chosen = [fault for fault in FAULTS if fault.name in names]
    table: list[tuple[str, ...]] = [
        (
            "fault",
            "netcheck says",
            f"after the last join (aim {AIM:g} s)",
            f"torch says (timeout={TIMEOUT} s)",
            "after, with torch's defaults",
        )
    ]
    judged = []
    for fault in chosen:
        row, named = faulty(fault, options.rounds)
        print(*row, sep="  ", file=sys.stderr, flush=True)
        judged.append(row)
        right = right and named
    # After netcheck, whose seconds count: torch's are those of its timeouts.
    shown = [] if options.without_torch else [fault for fault in chosen if fault.by_default]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        words = dict(zip((fault.name for fault in shown), pool.map(torch_alone, shown), strict=True))
    for fault, row in zip(chosen, judged, strict=True):
        table.append((*row, words.get(fault.name, "-"), fault.by_default or "-"))
    if chosen:
        print_table(table, markdown=options.markdown)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
