"""Messages between the hub on node 0 and the agents on all nodes: one JSON object a line, of bounded length.

A line is data and nothing else: it is decoded into one of these types, or its sender is turned away.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ddpdoctor.base.findings import Finding
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Skipped
from ddpdoctor.facts.burn_in import BurnIn
from ddpdoctor.facts.fleet import Link
from ddpdoctor.facts.smoke import Leftovers, RankRun

PROTOCOL: Final = 2
"""Raised when a message changes its form or meaning. Nodes with another one are turned away with a sentence."""

MAX_BYTES_BEFORE_WELCOME: Final = 2048
"""Bytes of a line from somebody who hasn't shown yet that he belongs here."""

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of any line: the verdict for one node."""

MAX_FACTS_BYTES: Final = 256 * 1024
"""Bytes of a line with the facts of one node, deflated: real ones have some ten kilobytes."""

MAX_ANSWER_BYTES: Final = 64 * 1024
"""Bytes of any other line from an agent, but for what it met and what its ranks came to: these grow with their number."""

MAX_OUTCOME_BYTES: Final = 768
"""Bytes of what was met at one node."""

MAX_RANK_RUN_BYTES: Final = 8 * 1024
"""Bytes of what one rank of a smoke training came to."""

MAX_NODES: Final = 4096
MAX_HOST_LENGTH: Final = 253
"""Characters of a host's name, as in DNS."""
MAX_RANKS: Final = 65536
MAX_RANKS_PER_HOST: Final = 120
"""On one host. torch gives each rank two descriptors of every rank of its host, and the kernel passes 253 at once."""
MAX_STAGES: Final = 64
MAX_WATCH_BYTES: Final = 512 * 1024
"""Bytes of what a host was like during a burn-in: 64 GPUs, each looked at 61 times."""
MAX_REPORT_LINES: Final = 1000
"""Of NCCL's own diagnosis."""
MAX_BURN_IN_SECONDS: Final = 7 * 86400
MAX_LEFTOVERS: Final = 16
MAX_PORTS: Final = 10
"""On which a node listens at one address."""
MAX_KINDS: Final = 3
MAX_WORDS_LENGTH: Final = 160
"""Characters of the words of one failure."""

MAX_REASON_LENGTH: Final = 1000
"""Characters of why an order failed."""

ErrorWords = Annotated[tuple[Annotated[str, Meta(max_length=MAX_WORDS_LENGTH)], ...], Meta(max_length=MAX_PORTS)]
"""What a node could not do, in the system's words."""

PortNumber = Annotated[int, Meta(ge=1, le=65535)]
Kind = Annotated[str, Meta(pattern="^(route|nccl|gloo)$")]
Number = Annotated[int, Meta(gt=-(2**62), lt=2**62)]
"""What a node may say of ranks, nodes and packets, right or wrong: differences of counters may be less than nothing."""
Rank = Annotated[int, Meta(ge=0, lt=MAX_NODES)]
Seconds = Annotated[float, Meta(gt=0, le=600)]
"""More than any phase takes."""
StageSeconds = Annotated[float, Meta(gt=0, le=86400)]
"""What a stage of a training may take, by the user's own word."""
JobRank = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]


UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Raised where a line is no message."""

ABORTED: Final = "node 0 has had enough"
"""The message of the cancellation of an order that is to end at once and may still be answered; see `Abort`."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """Base of all messages; `type` is the class's name in lower case."""


# --- the door ---------------------------------------------------------------------------------------------------------


class Greeting(Message, frozen=True):
    """Hub, at once: so that whoever dials knows what listens here. `nonce` is fresh for every connection."""

    ddpdoctor: str
    """The hub's version."""
    protocol: int
    nonce: str


class Hello(Message, frozen=True):
    """Agent: who it is. `proof`: `tokens.proof()` over both nonces, keyed with the token."""

    ddpdoctor: str
    protocol: int
    nonce: str
    proof: str
    host: str
    node_rank: Number | None
    """None: the hub gives it one, in order of arrival."""
    nnodes: Number | None
    command: Annotated[str, Meta(max_length=20)] = "netcheck"
    """What it was started for."""


class Welcome(Message, frozen=True):
    """Hub: the agent is in. `run` (32 hex digits) is what nodes of this run show each other when they dial."""

    node_rank: Rank
    nnodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    run: str
    proof: str
    """The hub knows the token, too."""
    wait: Annotated[float, Meta(ge=0, le=86400)]
    """Seconds for which it waits for the others from now on."""


class Rejected(Message, frozen=True):
    """Hub: the agent isn't let in. `code`: "version", "token", "rank-taken", "rank-out-of-range", "full", "nnodes",
    "closed", "command"."""

    code: str
    text: str


# --- while it lasts ---------------------------------------------------------------------------------------------------


class Ping(Message, frozen=True):
    """Hub, every few seconds and for comparing clocks: its own time.time() and a number."""

    number: int
    sent: float


class Pong(Message, frozen=True):
    """Agent: the Ping's number, and its own time.time() when it came and when the answer went."""

    number: int
    came: float
    went: float


class Goodbye(Message, frozen=True):
    """Agent: it goes away on purpose, as after Ctrl-C."""

    why: str


class NoVerdict(Message, frozen=True):
    """Hub: there will be no verdict on this node. `exit_code` is 1 where node 0 has found why and ends so itself, 2 where
    there is no verdict at all."""

    why: str
    exit_code: Literal[1, 2] = 2


class Waiting(Message, frozen=True):
    """Hub: the phase that the fleet is in and who is waited for, for the agents' live view."""

    phase: str
    waited_for: tuple[str, ...] = ()
    first: Rank | None = None
    """Of the nodes that haven't come, the lowest rank."""


class HostFacts(Message, frozen=True):
    """Agent, after the Welcome: the Snapshot of its host, as JSON, deflated (zlib) and in base64."""

    snapshot: bytes


# --- the phases: an order from the hub, an answer from the agent ---------------------------------------------------------


class ListenAddress(msgspec.Struct, frozen=True):
    """One place where a node listens for its peers: an address of kind "route", "nccl" or "gloo", and its ports."""

    kind: Kind
    address: Annotated[str, Meta(max_length=64)]
    ports: Annotated[tuple[PortNumber, ...], Meta(max_length=MAX_PORTS)]


class Open(Message, frozen=True):
    """Hub: listen for your peers. `ports`: on how many at the address of kind "route"."""

    ports: Annotated[int, Meta(ge=1, le=MAX_PORTS)]


class Opened(Message, frozen=True):
    """Agent: where it listens. `errors`: what it could not listen on and why."""

    places: Annotated[tuple[ListenAddress, ...], Meta(max_length=MAX_KINDS)]
    errors: ErrorWords = ()


class Peer(msgspec.Struct, frozen=True):
    """One node and the places where it listens."""

    node: Rank
    host: str
    places: Annotated[tuple[ListenAddress, ...], Meta(max_length=MAX_KINDS * MAX_PORTS)]


class Dial(Message, frozen=True):
    """Hub: dial all of these at every place. `seconds` a try; `again`: one more try after silence."""

    peers: Annotated[tuple[Peer, ...], Meta(max_length=MAX_NODES)]
    seconds: Annotated[float, Meta(gt=0, le=5)]
    at_once: Annotated[int, Meta(ge=1, le=64)] = 64
    again: bool = True


class DialOutcome(msgspec.Struct, frozen=True):
    """Outcome of one place of one peer: a `facts.fleet.Cell` value for each of its ports, in their order."""

    node: Rank
    kind: Kind
    cells: Annotated[str, Meta(max_length=MAX_PORTS)]
    words: Annotated[str, Meta(max_length=MAX_WORDS_LENGTH)] = ""
    """The system's own words for the first failure."""


class Dialled(Message, frozen=True):
    """Agent: what it met. `errors`: why it could not even dial, in the system's words."""

    met: Annotated[tuple[DialOutcome, ...], Meta(max_length=MAX_KINDS * MAX_NODES)]
    errors: ErrorWords = ()


class Count(Message, frozen=True):
    """Hub: read the kernel's counters of IP packets, and say what your listeners had trouble with."""


class Counted(Message, frozen=True):
    """Agent: packets since boot; None where they can't be read, or this kernel doesn't count them. `errors`: why visitors
    could not be let in, in the system's words."""

    undelivered: Number | None
    untransmitted: Number | None
    errors: ErrorWords = ()


class Measure(Message, frozen=True):
    """Hub: one round of the tournament. `peer` None: sit this one out or be measured; else measure the link to it."""

    peer: Peer | None
    seconds: Annotated[float, Meta(gt=0, le=1)]
    """For both directions together."""


class Measured(Message, frozen=True):
    """Agent: the link it measured."""

    link: Link | None


class Collect(Message, frozen=True):
    """Hub: run the real store and an all_reduce of 4 B and of 4 MiB in the target Python, as rank `rank` of `world_size`."""

    backend: Annotated[str, Meta(pattern="^(gloo|nccl)$")]
    master: Annotated[str, Meta(max_length=255)]
    port: PortNumber
    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    seconds: Seconds


class Collected(Message, frozen=True):
    """Agent: what it came to; see `facts.fleet.Collective`."""

    stage: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]
    ok: bool
    words: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]
    seconds: float
    hung: bool = False


class Train(Message, frozen=True):
    """Hub: run your ranks of the smoke training, `first_rank` and the `nproc` - 1 behind it, and watch them. Their store is
    at master and port. seconds: what a stage may take, import_seconds: what the first one may. duration: of the burn-in. diagnoses: switch NCCL's own
    diagnosis on. node_rank, nnodes: of those
    that take part."""

    backend: Annotated[str, Meta(pattern="^(gloo|nccl)$")]
    first_rank: JobRank
    nproc: Annotated[int, Meta(ge=1, le=MAX_RANKS_PER_HOST)]
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)]
    node_rank: Rank
    nnodes: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    master: Annotated[str, Meta(max_length=255)]
    port: PortNumber
    stages: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=MAX_STAGES)]
    seconds: StageSeconds
    import_seconds: StageSeconds
    duration: Annotated[float, Meta(ge=0, le=MAX_BURN_IN_SECONDS)] = 0.0
    diagnoses: bool = False


class TrainingDone(Message, frozen=True):
    """Agent: what its ranks came to, each in at most MAX_RANK_RUN_BYTES bytes. began: its own time.time(). problem: why they could not
    even be started. folder: where their files were, as in `facts.smoke.Smoke`."""

    runs: Annotated[tuple[RankRun, ...], Meta(max_length=MAX_RANKS_PER_HOST)]
    began: float
    torch: Annotated[str, Meta(max_length=64)] = ""
    problem: Annotated[str, Meta(max_length=1000)] = ""
    folder: Annotated[str, Meta(max_length=500)] = ""
    leftovers: Leftovers = Leftovers()
    """At most MAX_LEFTOVERS of a kind."""
    nccl_report: Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(max_length=MAX_REPORT_LINES)] = ()
    burn_in: BurnIn = BurnIn()
    """With at most this node's own host."""


class Abort(Message, frozen=True):
    """Hub: end the order that you are carrying out, and answer. It has failed elsewhere, and would wait in vain."""


class OrderFailed(Message, frozen=True):
    """Agent: it could not carry out the order at all, and why; a crash of one phase is that phase's result."""

    why: Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]


# --- the end ----------------------------------------------------------------------------------------------------------


class CheckVerdict(msgspec.Struct, frozen=True):
    """One check's result, as `registry.Result` without the code."""

    slug: str
    findings: tuple[Finding, ...]
    not_tested: Skipped | None


class NodeVerdict(Message, frozen=True):
    """Hub: this node's part of the verdict, and the exit code of all."""

    results: tuple[CheckVerdict, ...]
    verdict: Verdict
    """Of the whole fleet."""
    exit_code: Annotated[int, Meta(ge=0, le=2)]
    lines: tuple[str, ...]
    """The phases and the outcome of the others, as sentences."""
    hosts: Annotated[tuple[Annotated[str, Meta(max_length=MAX_HOST_LENGTH)], ...], Meta(max_length=MAX_NODES)] = ()
    """What nodes are called in all of this, so that a report for strangers can leave it out."""


Order = Open | Dial | Count | Measure | Collect | Train
Answer = Opened | Dialled | Counted | Measured | Collected | TrainingDone | OrderFailed


def encode(message: Message) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"
