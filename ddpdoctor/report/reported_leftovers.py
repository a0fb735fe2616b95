"""A leftover as JSON tells it. Memory in bytes, times in seconds; null is what could not be learned."""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType


class ReportedLeftover(msgspec.Struct, frozen=True, kw_only=True):
    """kind: what sort of thing it is. certainty: whether it is surely left over, and the caller's to end. what: its name for
    people; why: what speaks for its being left over; doubts: why it isn't certain, or whose it is; empty where it is proven.
    command: what ends it, or in doubt looks at it; "" where it is not the caller's. owner: the user's name; age: since it was
    started or made. pid: null where it is no process, and then path is that of a segment in /dev/shm, or "" where GPU memory has
    no owner. start: clock ticks since boot; with the pid it names one process for ever. children: pids of those that end with it.
    size: of the segment or of the memory without an owner. memory: resident, with its children's. gpus: NVML's index of those that
    it holds, and gpu_memory how much; ports: those on which it listens; segments: paths in /dev/shm that it has mapped or open.
    With --kill fate says what became of it, and reason why."""

    kind: LeftoverKind
    certainty: Certainty
    what: str
    why: str
    doubts: tuple[str, ...]
    command: str
    owner: str
    age: float | None
    pid: int | None
    start: int | None
    children: tuple[int, ...]
    path: str
    size: int
    memory: int
    gpus: tuple[int, ...]
    gpu_memory: int
    ports: tuple[int, ...]
    segments: tuple[str, ...]
    fate: Fate | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class LeftoverKind(str, Enum):
    """Kinds of leftovers."""

    RANK = "orphaned rank"
    WORKER = "DataLoader worker without its rank"
    HELPER = "helper without its rank"
    HOLDER = "orphaned process that holds a GPU"
    ENDED = "ended process that nobody collects"
    MEMORY = "GPU memory that nobody owns"
    SEGMENT = "shared memory that nobody uses"


class Certainty(str, Enum):
    """Grades of certainty that something is left over, and the caller's to end."""

    PROVEN = "proven"
    DOUBT = "doubt"
    NOT_OURS = "not-ours"


class Fate(str, Enum):
    """Fates of a leftover that was to be ended."""

    ENDED = "ended"
    KILLED = "killed"
    """It took no notice of SIGTERM."""
    REMOVED = "removed"
    GONE = "gone"
    """By itself, before anything was done."""
    LEFT = "left"
    """The second look didn't agree with the first, or it could not be pinned."""
    STAYS = "stays"
    """It was killed, and is still there."""
