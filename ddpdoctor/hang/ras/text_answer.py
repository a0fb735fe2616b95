"""What NCCL's RAS answers to `VERBOSE STATUS` as text, where its JSON can't be had or read. It names the ranks that differ from the most,
or are missing, and counts the rest: these are the others of the communicator, whose size its table tells. Written after NVIDIA/nccl's
src/ras/client_support.cc (2.24 to 2.30); no answer of a real job was at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.base.text import masked
from ddpdoctor.facts.hang import RasCount
from ddpdoctor.hang.ras.json_answer import Counts, NotUnderstood

HEAD = re.compile(r"^Group +Comms +Nodes", re.MULTILINE)
ROW = re.compile(r"^ *(\d{1,7}) +\d+ +\d+ +[\d-]+ +(\d{1,7}) +\d+ +\S+ +\S+$")
SECTION = re.compile(r"^#(?P<group>\d{1,7})-\d+ \((?P<hash>[0-9a-f]{1,16})\) (?P<kind>[A-Z]+)$")
KIND = re.compile(r"^  Communicator ranks have different (?:(?P<kind>\w+) )?operation counts$")
MANY = re.compile(r"^  \d+ ranks have (?:launched up to operation (?P<count>\d{1,18})|not launched any operations)$")
ONE = re.compile(
    r"^  Rank (?P<rank>\d{1,7})(?: has (?:launched up to operation (?P<count>\d{1,18})|(?P<none>not launched any operations)))?"
    r" -- (?:.* managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,300}))?"
)
OTHER_NAMES = "operations"
"""Of releases that don't say of which kind."""


class _Told(NamedTuple):
    rank: int
    host: str
    pid: int
    begun: int | None


def understand_text(answer: bytes) -> Counts:
    """The ranks of which it tells anything.

    Raises:
        NotUnderstood: it isn't such a text.
    """
    text = answer.decode("utf-8", "replace")
    if not HEAD.search(text):
        raise NotUnderstood("it isn't the text that RAS writes")
    lines = text.splitlines()
    sizes = {int(row[1]): int(row[2]) for row in map(ROW.match, lines) if row}
    found: Counts = {}
    for name, group, kind, told, most in _sections(lines):
        begun = {one.rank: one for one in told}
        for rank in range(min(sizes.get(group, 0), 100_000)) if most is not None else sorted(begun):
            one = begun.get(rank, _Told(rank, "", 0, most))
            before = found.get((name, "", rank))
            counts = before.first if before else ()
            if one.begun:
                counts = (*counts, (kind, one.begun))
            missing = before.status if before else ""
            found[name, "", rank] = RasCount(
                communicator=name, rank=rank, host=one.host, pid=one.pid, first=counts,
                status="doesn't answer RAS" if kind == "INCOMPLETE" else missing,
            )  # fmt: skip
    return found


def _sections(lines: list[str]) -> Iterator[tuple[str, int, str, list[_Told], int | None]]:
    """(communicator, its group, what is counted, the ranks that are named, the count of the others)."""
    section: re.Match[str] | None = None
    kind, told = "", list[_Told]()
    counts: list[int] = []
    latest: int | None = None
    for line in [*lines, ""]:
        start, counted = SECTION.match(line), KIND.match(line)
        if section and (start or counted or not line.strip()):
            if kind:
                named = {one.begun for one in told}
                rest = [count for count in counts if count not in named]
                yield f"0x{section['hash']}", int(section["group"]), kind, told, (rest[0] if rest else None)
            kind, told, counts, latest = "", [], [], None
            if not (start or counted):
                section = None
        if start:
            section = start
            kind = "INCOMPLETE" if start["kind"] == "INCOMPLETE" else ""
        elif counted:
            kind = masked(counted["kind"] or OTHER_NAMES)
        elif section and kind:
            many, one = MANY.match(line), ONE.match(line)
            if many:
                latest = int(many["count"] or 0)
                counts.append(latest)
            elif one:
                own = int(one["count"]) if one["count"] else 0 if one["none"] else latest
                told.append(_Told(int(one["rank"]), masked(one["host"] or ""), int(one["pid"] or 0), own))
