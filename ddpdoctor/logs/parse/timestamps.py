"""Timestamps at the start of a log's lines, whoever wrote them."""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

COLLECTED: Final = re.compile(
    r"(?P<open>\[)?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)(?![\w:]))?(?(open)(?:\]|(?= (?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)[ \]])))(?: ?[-|](?= )|:(?= ))?[ \t]?"
)
"""A date and a clock at the start of a line, bare or in brackets, in which a level may follow: log collectors and Python's logging write them."""
SYSLOG: Final = re.compile(
    r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)(?:\.(?P<part>\d{1,9}))? (?P<host>[\w.-]+) "
    r"(?:[\w./@-]+\[\d+\]: |(?=[\w./-]+: ))"
)
"""Of syslog and journald, with "program[pid]: "; "kernel: " stays."""
GLOG: Final = re.compile(
    r"\[?[IWEF](?P<month>\d{1,2})(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)\.(?P<part>\d{1,9}) +(?:\d+ )?[\w./-]+:\d+\]"
)
""" "[E1122 02:13:07.123456 ProcessGroupNCCL.cpp:616]": has no year; C++ writes the month without its zero."""
_MONTHS: Final = {name: place for place, name in enumerate(calendar.month_abbr) if name}
NO_YEAR: Final = 1972
"""Stands for the year where the log has none: a leap year."""


def seconds_of(found: re.Match[str]) -> float | None:
    """Convert a timestamp to seconds since 1970; of a log whose clocks have no zone, as if they were UTC."""
    words = found.groupdict("")
    moment = _moment(words.get("date") or words["month"], words.get("day", ""), words["clock"], words.get("zone", ""))
    return moment[0] + float(f"0.{words['part']}") if moment else None


def ahead_of(found: re.Match[str]) -> float | None:
    """Return the seconds by which a `COLLECTED` timestamp is before UTC; None where it doesn't say its zone."""
    moment = _moment(found["date"], "", found["clock"], found["zone"]) if found["zone"] else None
    return moment[1] if moment else None


@lru_cache(4096)
def _moment(date: str, day: str, clock: str, zone: str) -> tuple[float, float] | None:
    """Convert a date, or a month and a day, and a clock to seconds since 1970, and to those by which it is before UTC; many lines are of one
    second, and minutes may have a leap second."""
    if day:
        date = f"{NO_YEAR}-{_MONTHS.get(date, date):0>2}-{day:0>2}"
    zone = "+00:00" if zone in ("", "Z", "UTC") else f"{zone[:3]}:{zone[-2:]}"
    try:
        moment = datetime.fromisoformat(f"{date.replace('/', '-')} {clock[:6]}{min(clock[6:], '59')}{zone}")
        return moment.astimezone(timezone.utc).timestamp(), (moment.utcoffset() or timedelta()).total_seconds()
    except (ValueError, OverflowError):
        return None
