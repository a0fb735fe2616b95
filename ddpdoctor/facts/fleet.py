"""Findings of a job's nodes together: who came, who reaches whom, how fast. Filled in by `netcheck`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source, Unknown
from ddpdoctor.facts.environment import Setting

NOT_ASKED = Unknown("not asked")


class Cell(str, Enum):
    """Result of a node's dialling another one: one character of a row of a matrix."""

    OK = "."
    """Connected, the right node answered, and a large message arrived whole."""
    SILENT = "t"
    """No answer within the limit, twice."""
    REFUSED = "r"
    PROHIBITED = "u"
    """No route to host, network unreachable, administratively prohibited."""
    RESET = "x"
    """Connected, then cut off."""
    OTHER = "w"
    """Something answered that isn't that node: the address means another host here."""
    STALLED = "s"
    """Connected, small messages pass, a large one (64 KiB) never arrives whole."""
    NOT_TRIED = "-"
    """Itself, a lost node, or a node without such an address."""


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """One round of dialling, every ordered pair: `rows[i][j]` is the `Cell` of node i dialling node j (by their place in
    `Fleet.nodes`).

    kind: "route" (the address at which the node meets the master), "nccl" or "gloo" (the address that it would offer,
    where that is another one).
    addresses, ports: where node j listened; "" and 0 where it didn't.
    """

    kind: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    rows: tuple[str, ...]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the fleet sees it. Versions are None where the thing isn't installed."""

    rank: int
    host: str
    address: str
    """Its own end of the connection to the hub; of node 0, the master's address."""
    interface: str = ""
    """The one that holds `address`."""
    mtu: int = 0
    speed: int = -1
    """Of that interface, Mbit/s; -1 unknown."""
    virtual: bool = False
    """That interface has no hardware behind it, or none of its own."""
    qdisc: str = ""
    """The queueing discipline at the root of that interface; "" unknown."""
    port_range: tuple[int, int] = (32768, 60999)
    nccl_interface: str | None = None
    nccl_address: str | None = None
    gloo_address: str | None = None
    families: str = "4"
    """"4", "6" or "46": of which families it has addresses that aren't loopback or link-local."""
    ddpdoctor: str = ""
    python: Maybe[str | None] = NOT_ASKED
    torch: Maybe[str | None] = NOT_ASKED
    nccl: Maybe[str | None] = NOT_ASKED
    cuda: Maybe[str | None] = NOT_ASKED
    """The CUDA that torch was built for."""
    driver: Maybe[str | None] = NOT_ASKED
    settings: tuple[Setting, ...] = ()
    """Those of its settings that matter to a job over several nodes."""
    clock_offset: float = 0.0
    """Seconds that its clock is ahead of node 0's."""
    clock_error: float = 0.0
    """Half the shortest round trip: the offset is right within this many seconds."""
    undelivered: int | None = None
    """IP packets that its kernel received and didn't hand on while the nodes dialled three times what had failed, so briefly
    that nothing was sent again: a packet filter on its input takes them. None: nothing had failed, or the kernel's counters
    could not be read."""
    untransmitted: int | None = None
    """IP packets that its kernel was to send and didn't. None: as above, or the counters don't say (before Linux 6.8)."""
    idle_undelivered: int = 0
    """As many of a time as long just before, in which no node dialled another: the noise."""
    idle_untransmitted: int = 0
    troubles: tuple[str, ...] = ()
    """What kept it from listening for its peers, or from dialling them, in the system's words."""
    lost: str = ""
    """When and how it went away, in words; "" while it is there."""


class MissingNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was expected and didn't come. `host` where the launcher's list of nodes names it."""

    rank: int
    host: str = ""


class RejectedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the job that came and wasn't let in: mostly because another one had its rank already.

    rank: -1 where it named none, or didn't come so far.
    code: as in `netcheck.messages.TurnedAway`.
    """

    rank: int
    host: str
    address: str
    holder: str = ""
    """The host that came first with that rank; "" where that isn't why."""
    code: str = "rank-taken"
    text: str = ""
    """What it was told."""
    nnodes: int | None = None
    """The number of nodes by its own account; None: it didn't say."""
    proved: bool = True
    """It showed that it knows the job's token, where there is one. Else it is whoever came to the port, and called itself
    that."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of nodes, `a` < `b`, measured while no other pair of theirs was. Rates in Mbit/s; -1: not measured."""

    a: int
    b: int
    round_trip: float
    """Seconds, the shortest of the ping-pongs: the others waited for a CPU, not for the link."""
    forth: float = -1.0
    """From a to b."""
    back: float = -1.0
    resent: float = 0.0
    """The share of TCP segments that had to be sent again, 0 to 1."""
    error: str = ""
    """Why it could not be measured."""


class TriedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one rank in the real store and collectives.

    stage: the last one that it began: "import", "store", "group", "all_reduce of 4 B", "all_reduce of 4 MiB", "end".
    """

    node: int
    backend: str
    """"gloo" or "nccl"."""
    stage: str
    ok: bool
    words: str = ""
    """What torch itself said."""
    seconds: float = 0.0
    hung: bool = False
    """It had to be killed at the deadline."""


class Passed(str, Enum):
    """End of a phase. A phase that wasn't run has passed nothing."""

    PASS = "pass"
    FAIL = "fail"
    NOT_TESTED = "not tested"


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of netcheck. `reason` says why it wasn't run, or what failed, in a few words."""

    name: str
    passed: Passed
    seconds: float = 0.0
    reason: str = ""


class Fleet(Facts, frozen=True, kw_only=True):
    """All nodes of a job, in the order of their ranks. `nodes` is empty where nobody looked further than one host."""

    nodes: Annotated[tuple[Node, ...], Source("the nodes' own words")] = ()
    seat: Annotated[str, Source("the launcher's settings")] = "node"
    """What each of them is called: "rank" where each is one that a launcher has started."""
    expected: Annotated[int, Source("--nnodes, the launcher's settings")] = 0
    absent: Annotated[tuple[MissingNode, ...], Source("who joined the hub")] = ()
    doubles: Annotated[tuple[RejectedNode, ...], Source("who joined the hub")] = ()
    strangers: Annotated[tuple[str, ...], Source("who knocked at the hub")] = ()
    """Who was not let in, and why, at most 20."""
    reach: Annotated[tuple[Reach, ...], Source("TCP connections between all nodes")] = ()
    links: Annotated[tuple[Link, ...], Source("ping-pong and bulk transfer over TCP")] = ()
    collectives: Annotated[tuple[TriedCollective, ...], Source("torch.distributed, in a subprocess on each node")] = ()
    phases: Annotated[tuple[Phase, ...], Source("netcheck")] = ()

    @property
    def routes(self) -> list[Reach]:
        """Who reaches whom at the addresses at which the nodes meet the master."""
        return [reach for reach in self.reach if reach.kind == "route"]

    @property
    def by_rank(self) -> dict[int, Node]:
        return {node.rank: node for node in self.nodes}

    def place_of(self, rank: int | None) -> int:
        """The place in `nodes` of the node of that rank; -1 where there is none."""
        return next((place for place, node in enumerate(self.nodes) if node.rank == rank), -1)

    def __hash__(self) -> int:
        """Hash a few figures only, since checks cache by it and a large fleet has a million pairs."""
        return hash((self.expected, len(self.nodes), len(self.reach), len(self.links)))
