"""What one run of netcheck on one node is given, tells while it goes, and comes to."""

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
    """What the user asked for. purpose: what the nodes meet for; wait: seconds for nodes that aren't there yet; token: as given; python: the target Python's;
    options: those of them that a command for another node takes over, "--wait 300"."""

    job: NetcheckJob
    task: Task
    options: tuple[str, ...]
    token: str | None
    wait: float
    strict: bool
    python: str
    chosen_by: str


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended on this node. `fleet`: on node 0, with an examination a node; `part`: on the others, with their own
    examination; neither: this node met nobody, or was only to look at the master. `problems`: why there is no verdict."""

    exit_code: int
    meeting: Meeting
    examinations: tuple[Examination, ...] = ()
    fleet: Fleet | None = None
    part: NodeVerdict | None = None
    seconds: float | None = None
    """From the last join to the verdict."""
    problems: tuple[str, ...] = ()
    token: str = ""
    """What the nodes show each other. For this node's user alone: no report that is kept may have it."""
    notes: tuple[str, ...] = ()
    """What was asked for here and had no effect, since node 0 decides it."""


class ProgressListener(Protocol):
    """Who is told how it goes while it goes."""

    def meeting(self, meeting: Meeting) -> None:
        """What this node's way to the master came to so far."""

    def hub(self, hub: Hub, command: Callable[[int], str] | None = None) -> None:
        """Node 0: who is there has changed. command: what to type on the node of a rank."""

    def waiting(self, waiting: Waiting, command: Callable[[int], str] | None = None) -> None:
        """Other nodes: what the fleet does and whom it waits for. command: what to type on the node of a rank."""

    def verdict(self, end: RunResult) -> None:
        """Node 0: this is how it ends; next, the others are told."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def close(self) -> None:
        """The verdict comes now."""
