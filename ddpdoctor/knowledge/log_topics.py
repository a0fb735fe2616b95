"""Topics that a log may speak of, for which some check stands, beside signals and causes of hangs."""

from __future__ import annotations

from enum import Enum


class LogTopic(Enum):
    """Each has one check, unless it says otherwise."""

    MISTAKE = "a mistake in the user's own code"
    STOPPED = "the run was told to end"
    MISSING_NODE = "a node never came"
    KILLED_FOR_MEMORY = "the kernel kills a process for want of memory"
    """Several checks: the host's memory, and a limit of a container or a job."""
