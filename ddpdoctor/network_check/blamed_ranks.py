"""Which ranks of a failed collective have an error of their own, and which only waited for those. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from ddpdoctor.facts.fleet import TriedCollective

NOT_STARTED = "start"
"""The stage of a rank that didn't get as far as to run torch."""

BEFORE_THE_STORE = (NOT_STARTED, "import")
STAGES = (*BEFORE_THE_STORE, "store", "group", "all_reduce of 4 B", "all_reduce of 4 MiB", "end")
"""In their order."""


class ErrorKind(Enum):
    """How one rank failed."""

    ERROR = "an error of its own"
    WRONG = "a wrong result"
    CRASH = "it crashed"
    WAITED = "it waited for another rank, or lost it"


WAITING = re.compile(
    r"(?i)clients joined|wait timeout|timed? ?out|timeout|connection closed by (?:remote )?peer|connection reset by peer"
    r"|broken pipe|failed to recv|no end within|it was ended, since"
)
"""What torch says where another rank didn't come, or went away."""

TURNED_DOWN = re.compile(r"(?i)refused|no route to host|unreachable")
"""What it says where the network says no; gloo calls these time-outs too."""


def kind_of(one: TriedCollective) -> ErrorKind:
    """How a rank that failed has failed."""
    if one.words.startswith("ended by SIG"):
        return ErrorKind.CRASH
    if one.words.startswith("wrong sum"):
        return ErrorKind.WRONG
    waited = one.hung or (WAITING.search(one.words) and not TURNED_DOWN.search(one.words))
    return ErrorKind.WAITED if waited else ErrorKind.ERROR


def blamed(ran: Sequence[TriedCollective]) -> list[TriedCollective]:
    """The ranks that failed by themselves; none where every one that failed waited for another."""
    return [
        tried_collective
        for tried_collective in ran
        if not tried_collective.ok and kind_of(tried_collective) is not ErrorKind.WAITED
    ]
