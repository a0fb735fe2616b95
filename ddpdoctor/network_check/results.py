"""Options, progress and result of one run of netcheck on one node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.network_check.job import NetcheckJob
from ddpdoctor.network_check.protocol.hub import Hub
from ddpdoctor.network_check.protocol.messages import NodeVerdict, Waiting
from ddpdoctor.network_check.task import Task


class NetcheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run."""

    job: NetcheckJob
    task: Task
    """What the nodes meet for."""
    options: tuple[str, ...]
    """Those that a command for another node takes over, "--wait 300"."""
    token: str | None
    """As given on the command line or in the environment."""
    wait: float
    """Seconds for nodes that aren't there yet."""
    strict: bool
    python: str
    """The target Python."""
    chosen_by: str
    """What named that Python."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one run on this node. With neither `fleet` nor `part`, it met nobody, or was only to look at the master."""

    exit_code: int
    meeting: Meeting
    examinations: tuple[Examination, ...] = ()
    """On node 0 one a node, else this node's own."""
    fleet: Fleet | None = None
    """On node 0."""
    part: NodeVerdict | None = None
    """On the other nodes: what node 0 sent."""
    seconds: float | None = None
    """From the last join to the verdict."""
    problems: tuple[str, ...] = ()
    """Why there is no verdict."""
    token: str = ""
    """What the nodes show each other. For this node's user alone: no report that is kept may have it."""
    notes: tuple[str, ...] = ()
    """The options that had no effect here, since node 0 decides."""


class ProgressListener(Protocol):
    """A view of how it goes."""

    def meeting(self, meeting: Meeting) -> None:
        """Take what this node's way to the master came to so far."""

    def hub(self, hub: Hub, command: Callable[[int], str] | None = None) -> None:
        """Take, on node 0, who is there now. command: what to type on the node of a rank."""

    def waiting(self, waiting: Waiting, command: Callable[[int], str] | None = None) -> None:
        """Take, on the others, what the fleet does and whom it waits for. command: what to type on the node of a rank."""

    def verdict(self, end: RunResult) -> None:
        """Take, on node 0, how it ends; next, the others are told."""

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:
        """Make room for the verdict."""
