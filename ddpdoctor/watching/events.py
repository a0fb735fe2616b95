"""What is told of a job that is watched: each thing once."""

from __future__ import annotations

from enum import Enum

import msgspec


class EventKind(str, Enum):
    """Kinds of things that are told."""

    WAITS = "waits"
    """The process that was named has no ranks yet."""
    FOUND = "found"
    """A job that is watched from now on."""
    HIDDEN = "hidden"
    """What of it can't be seen, so that less can be told."""
    PAUSE = "pause"
    """Ranks wait for one that works: no hang."""
    HANG = "hang"
    """It has not moved for so long."""
    MOVES = "moves"
    """It moves again."""
    RESTARTED = "restarted"
    """Its launcher has started ranks anew."""
    ENDED = "ended"
    COMMAND = "command"
    """What came of the command that was to be run, where that failed."""
    PROBLEM = "problem"
    """Something could not be written."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is told once."""

    kind: EventKind
    job: str
    text: str
    """A sentence, that says which job."""
    seconds: float = 0.0
    """For how long: since it moved last; 0.0 where that makes no sense."""
    folder: str = ""
    """With the evidence; "" without."""
    details: tuple[str, ...] = ()
    """More lines: commands to copy."""
