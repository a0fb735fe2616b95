"""What earlier runs left behind on this host, and how sure that is. In doubt it is named, and left alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from ddpdoctor.base.unknown import Maybe
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Identity, Processes
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.knowledge.same_facts import remembered


class Kind(str, Enum):
    """What sort of thing was left over."""

    RANK = "orphaned rank"
    WORKER = "DataLoader worker without its rank"
    HELPER = "helper without its rank"
    HOLDER = "orphaned process that holds a GPU"
    ENDED = "ended process that nobody collects"
    MEMORY = "GPU memory that nobody owns"
    SEGMENT = "shared memory that nobody uses"


class Certainty(str, Enum):
    """How sure it is that something is left over, and whether it is the caller's to end."""

    PROVEN = "proven"
    DOUBT = "doubt"
    NOT_OURS = "not-ours"


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was left over. Sizes in bytes, age in seconds.

    identity: of the process, None where it is none. children: those that end with it. path: of the segment, "" else.
    why: why it is thought dead. doubts: why that is not certain, or why it is left to another; empty where it is proven.
    command: to do it by hand; in doubt, to look at it. then: what ends it after that look; "" where it may still work.
    """

    kind: Kind
    certainty: Certainty
    what: str
    why: str
    doubts: tuple[str, ...] = ()
    command: str = ""
    then: str = ""
    owner: str = ""
    age: float | None = None
    identity: Identity | None = None
    children: tuple[Identity, ...] = ()
    mates: tuple[Identity, ...] = ()
    """The other ranks that may be of its job: while one of them works, it is none."""
    path: str = ""
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
    def pid(self) -> int:
        """0 where it is no process."""
        return self.identity.pid if self.identity else 0


def leftovers_of(
    processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]
) -> tuple[Leftover, ...]:
    """All that is left over as far as these facts tell, what is proven first. A group that is Unknown tells nothing."""
    found = tuple(_found(processes, gpus, shared_memory))
    order = list(Certainty)
    return tuple(sorted(found, key=lambda one: (order.index(one.certainty), list(Kind).index(one.kind), one.pid)))


@remembered
def left_by_processes(processes: Maybe[Processes], gpus: Maybe[Gpus]) -> tuple[Leftover, ...]:
    """The processes alone."""
    from ddpdoctor.processes.leftover_processes import left_processes

    return tuple(left_processes(processes, gpus)) if isinstance(processes, Processes) else ()


def _found(processes: Maybe[Processes], gpus: Maybe[Gpus], shared_memory: Maybe[SharedMemory]) -> Iterator[Leftover]:
    from ddpdoctor.processes.leftover_memory import left_memory
    from ddpdoctor.processes.leftover_segments import left_segments

    yield from left_by_processes(processes, gpus)
    if isinstance(gpus, Gpus):
        yield from left_memory(gpus, processes)
    if isinstance(shared_memory, SharedMemory):
        yield from left_segments(shared_memory, processes)
