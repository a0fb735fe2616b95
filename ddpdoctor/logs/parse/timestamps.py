"""Timestamps at the start of a log's lines, whoever wrote them."""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

COLLECTED: Final = re.compile(
    r"(?P<open>\[)?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?: ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)(?![\w:]))?(?(open)\])(?: ?[-|](?= )|:(?= ))?[ \t]?"
)
"""A date and a clock at the start of a line, bare or in brackets: log collectors and Python's logging write them."""
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
    date = words.get("date") or words["month"]
    second = _second_of(date, words.get("day", ""), words["clock"], words.get("zone", ""))
    return second if second is None else second + float(f"0.{words['part']}")


def ahead_of(found: re.Match[str]) -> float | None:
    """Return the seconds by which a `COLLECTED` timestamp is before UTC; None where it doesn't say its zone."""
    return _ahead(found["zone"]).total_seconds() if found["zone"] else None


@lru_cache(4096)
def _second_of(date: str, day: str, clock: str, zone: str) -> float | None:
    """Convert a date, or a month and a day, and a clock to seconds since 1970; many lines are of one second."""
    try:
        if day:
            year, month, number = NO_YEAR, _MONTHS.get(date) or int(date), int(day)
        else:
            year, month, number = (int(digits) for digits in re.split("[-/]", date))
        hour, minute, second = (int(digits) for digits in clock.split(":"))
        moment = datetime(year, month, number, hour, minute, min(second, 59), tzinfo=timezone.utc)
        return (moment - _ahead(zone)).timestamp()
    except (ValueError, OverflowError):
        return None


def _ahead(zone: str) -> timedelta:
    if zone in ("", "Z", "UTC"):
        return timedelta()
    digits = zone[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -ahead if zone[0] == "-" else ahead
