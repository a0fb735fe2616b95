"""Parses what NCCL's RAS answers to `VERBOSE STATUS` as text, where its JSON can't be had or read. It names the ranks that differ from the most,
or are missing, and counts the rest: these are the others of the communicator, whose size its table tells. Written after NVIDIA/nccl's
src/ras/client_support.cc (2.24 to 2.30); no answer of a real job was at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ddpdoctor.base.text import masked
from ddpdoctor.facts.hang import RasCount
from ddpdoctor.hang.ras.json_answer import Counts, NotUnderstood

TABLE_HEAD = re.compile(r"^Group +Comms +Nodes", re.MULTILINE)
TABLE_ROW = re.compile(r"^ *(\d{1,7}) +\d+ +\d+ +[\d-]+ +(\d{1,7}) +\d+ +\S+ +\S+$")
SECTION_LINE = re.compile(r"^#(?P<group>\d{1,7})-\d+ \((?P<hash>[0-9a-f]{1,16})\) (?P<kind>[A-Z]+)$")
KIND_LINE = re.compile(r"^  Communicator ranks have different (?:(?P<kind>\w+) )?operation counts$")
MOST_RANKS_LINE = re.compile(
    r"^  \d+ ranks have (?:launched up to operation (?P<count>\d{1,18})|not launched any operations)$"
)
RANK_LINE = re.compile(
    r"^  Rank (?P<rank>\d{1,7})(?: has (?:launched up to operation (?P<count>\d{1,18})|(?P<none>not launched any operations)))?"
    r" -- (?:.* managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,300}))?"
)
UNNAMED_KIND = "operations"
"""Stands for the kind in releases that don't say which."""


class _NamedRank(NamedTuple):
    rank: int
    host: str
    pid: int
    begun: int | None


def parse_text(answer: bytes) -> Counts:
    """Parse an answer into the ranks of which it tells anything.

    Raises:
        NotUnderstood: it isn't such a text.
    """
    text = answer.decode("utf-8", "replace")
    if not TABLE_HEAD.search(text):
        raise NotUnderstood("it isn't the text that RAS writes")
    lines = text.splitlines()
    sizes = {int(row[1]): int(row[2]) for row in map(TABLE_ROW.match, lines) if row}
    found: Counts = {}
    for name, group, kind, listed, most in _sections(lines):
        ranks = {rank.rank: rank for rank in listed}
        for rank in range(min(sizes.get(group, 0), 100_000)) if most is not None else sorted(ranks):
            known = ranks.get(rank, _NamedRank(rank, "", 0, most))
            before = found.get((name, "", rank))
            counts = before.first if before else ()
            if known.begun:
                counts = (*counts, (kind, known.begun))
            missing = before.status if before else ""
            found[name, "", rank] = RasCount(
                communicator=name, rank=rank, host=known.host, pid=known.pid, first=counts,
                status="doesn't answer RAS" if kind == "INCOMPLETE" else missing,
            )  # fmt: skip
    return found


def _sections(lines: list[str]) -> Iterator[tuple[str, int, str, list[_NamedRank], int | None]]:
    """Yield of each section (communicator, its group, what is counted, the ranks that are named, the count of the others)."""
    section: re.Match[str] | None = None
    kind, listed = "", list[_NamedRank]()
    counts: list[int] = []
    latest: int | None = None
    for line in [*lines, ""]:
        start, counted = SECTION_LINE.match(line), KIND_LINE.match(line)
        if section and (start or counted or not line.strip()):
            if kind:
                named = {rank.begun for rank in listed}
                rest = [count for count in counts if count not in named]
                yield f"0x{section['hash']}", int(section["group"]), kind, listed, (rest[0] if rest else None)
            kind, listed, counts, latest = "", [], [], None
            if not (start or counted):
                section = None
        if start:
            section = start
            kind = "INCOMPLETE" if start["kind"] == "INCOMPLETE" else ""
        elif counted:
            kind = masked(counted["kind"] or UNNAMED_KIND)
        elif section and kind:
            most, rank = MOST_RANKS_LINE.match(line), RANK_LINE.match(line)
            if most:
                latest = int(most["count"] or 0)
                counts.append(latest)
            elif rank:
                own = int(rank["count"]) if rank["count"] else 0 if rank["none"] else latest
                listed.append(_NamedRank(int(rank["rank"]), masked(rank["host"] or ""), int(rank["pid"] or 0), own))
