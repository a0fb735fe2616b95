"""Causes by which a job may hang. Each cause has a check that stands for it; a log may speak for some of them, too."""

from __future__ import annotations

from enum import Enum


class HangCause(Enum):
    """Why ranks wait for ever."""

    STOPPED = "a rank is stopped by a signal"
    CRASHED = "a rank is gone"
    KERNEL = "the kernel holds a rank"
    INPUT = "a rank waits for somebody's typing"
    LOADER = "a DataLoader delivers nothing"
    LOCK = "a rank waits for a lock"
    SLOW_0 = "rank 0 does something alone"
    BUSY = "ranks do something without the others"
    RENDEZVOUS = "ranks wait for others to join"
    DESYNC = "ranks call different collectives"
    UNEVEN = "ranks have left the loop in which the others are"
    BEHIND = "ranks have not come as far as the others"
    TIMED_OUT = "all wait in the same collective, until NCCL's watchdog ends them"
    EXIT = "all are at their end, and don't come to it"
    STALLED = "all wait, and nobody can be told apart"
