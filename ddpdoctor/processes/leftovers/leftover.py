"""What a leftover of an earlier run is: its kind, how sure that is, and what goes with it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.facts.processes import ProcessIdentity
from ddpdoctor.report.reported_leftovers import Certainty, LeftoverKind

MAX_NAMED: Final = 32
"""Leftovers that one command names."""


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was left over. Sizes in bytes, age in seconds."""

    kind: LeftoverKind
    certainty: Certainty
    what: str
    why: str
    """Why it is thought dead."""
    doubts: tuple[str, ...] = ()
    """Why that is not certain, or why it is left to another; empty where it is proven."""
    command: str = ""
    """What does it by hand; in doubt, what looks at it."""
    then: str = ""
    """What ends it after that look; "" where it may still work."""
    owner: str = ""
    age: float | None = None
    identity: ProcessIdentity | None = None
    """Of the process, None where it is none."""
    children: tuple[ProcessIdentity, ...] = ()
    """Those that end with it."""
    mates: tuple[ProcessIdentity, ...] = ()
    """The other ranks that may be of its job: while one of them works, it is none."""
    path: str = ""
    """Of the segment, "" where it is none."""
    inode: tuple[int, int] = (0, 0)
    """Device and inode of the segment."""
    size: int = 0
    """Of the segment, or the memory that nobody owns."""
    memory: int = 0
    """Resident, of the process with its children."""
    gpus: tuple[int, ...] = ()
    """NVML's index of those that it holds."""
    gpu_memory: int = 0
    ports: tuple[int, ...] = ()
    segments: tuple[str, ...] = ()
    """Paths in /dev/shm that it has mapped or open."""
    lacks_its_launcher: bool = False
    """It had one, which is gone, whoever adopted it: below a subreaper it stays in doubt all the same."""

    @property
    def proven(self) -> bool:
        return self.certainty is Certainty.PROVEN

    @property
    def fails(self) -> bool:
        """Whether it is a failure: a doubt of who adopted it is one whether it may be ended, not whether it is left over."""
        return self.proven or self.lacks_its_launcher

    @property
    def group_key(self) -> tuple[object, ...]:
        """What is equal for those that are left over for the same reason and with the same certainty: the ranks of one run."""
        return self.kind, self.certainty, self.why, self.owner

    @property
    def pid(self) -> int:
        """0 where it is no process."""
        return self.identity.pid if self.identity else 0


def kill_command(leftovers: Sequence[Leftover]) -> str:
    """Word `ddpdoctor zombies --kill` with the pids and paths of the first of these."""
    named = [str(leftover.pid or leftover.path) for leftover in leftovers[:MAX_NAMED]]
    return shlex.join(["ddpdoctor", "zombies", "--kill", *named])
