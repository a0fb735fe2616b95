"""What lines of a log say in passing of the run itself: its size, its launcher, whose a process is."""

from __future__ import annotations

import re
from typing import Final

from ddpdoctor.base.log_signs import LogSign
from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.log import LogLine
from ddpdoctor.logs import parse
from ddpdoctor.logs.match.gathering import GatheredLog
from ddpdoctor.logs.parse.labels import process_of

LAUNCHERS: Final = {
    sign.text: launcher
    for launcher, signs in read_table(parse.__name__, "launchers.json", dict[str, tuple[LogSign, ...]]).items()
    for sign in signs
}
"""Texts that only these launchers write, or that stand in their tracebacks."""
_SIZES: Final = (
    re.compile(r"(?<!\* )\bworld[_ ]size(?:['\"])?(?: ?[:=] ?| is | of |\s)(?P<size>\d{1,6})\b", re.IGNORECASE),
    re.compile(r"GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER: \d{1,6}/(?P<size>\d{1,6})"),
    re.compile(r"\brank (?P<rank>\d{1,6}) nranks (?P<size>\d{1,6})\b"),
)
_PROCESS: Final = re.compile(
    r"#\s+Rank\s+(?P<rank>\d{1,6}) (?:Group\s+\d+ )?Pid\s+(?P<pid>\d{1,9}) on\s+(?P<host>[\w.-]{1,253}) device "
)
"""nccl-tests' list of its processes."""
PROCESS: Final = " Pid "
SIZES: Final = ("world_size", "WORLD_SIZE", "world size", "MEMBER: ", " nranks ")
LITERALS: Final = (*LAUNCHERS, *SIZES, PROCESS)


def learn(literal: str, line: LogLine, gathered: GatheredLog) -> None:
    """Learn it from a line that has that literal text in it."""
    if launcher := LAUNCHERS.get(literal):
        gathered.launchers[launcher] += 1
    elif literal == PROCESS:
        if found := _PROCESS.match(line.text):
            gathered.rank_said(int(found["rank"]), (found["host"], int(found["pid"])))
    elif found := next(filter(None, (pattern.search(line.text) for pattern in _SIZES)), None):
        gathered.world_size = max(gathered.world_size or 0, int(found["size"])) or None
        if rank := found.groupdict().get("rank"):
            gathered.rank_said(int(rank), process_of(line.text))
