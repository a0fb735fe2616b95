"""Times that a user writes, "90s", "10m", "1h30m", and reads: "90 s", "10 min", "1.5 h"."""

from __future__ import annotations

import re
from typing import Final

UNIT_SECONDS: Final = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_PART: Final = rf"{_NUMBER}\s*(?:sec|min|[smhd])"
_WHOLE: Final = re.compile(rf"\s*(?:{_PART}\s*){{1,8}}|\s*{_NUMBER}\s*")
_NUMBER_AND_UNIT: Final = re.compile(rf"({_NUMBER})\s*([a-z]*)")


def seconds_of(text: str) -> float:
    """Seconds of a duration as somebody types it; a number alone is seconds.

    Raises:
        ValueError: it is none.
    """
    if not _WHOLE.fullmatch(text.lower()):
        raise ValueError(f"{text!r} is no duration; write 90s, 10m or 1h30m")
    return sum(float(number) * UNIT_SECONDS[unit] for number, unit in _NUMBER_AND_UNIT.findall(text.lower()))


def duration_words(seconds: float) -> str:
    """ "3.5 s", "90 s", "10 min", "1.5 h"."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
    return f"{seconds / 3600:.1f}".removesuffix(".0") + " h"
