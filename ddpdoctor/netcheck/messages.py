"""What the hub on node 0 and the agents on all nodes say to each other: one JSON object a line, of bounded length.

A line is data and nothing else: it is decoded into one of these types, or its sender is turned away.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ddpdoctor.facts.fleet import Link
from ddpdoctor.findings import Finding
from ddpdoctor.registry import NotTested

PROTOCOL: Final = 1
"""Raised when a message changes its meaning. Nodes with another one are turned away with a sentence."""

MOST_BEFORE_WELCOME: Final = 2048
"""Bytes of a line from somebody who hasn't shown yet that he belongs here."""

MOST: Final = 4 * 1024 * 1024
"""Bytes of any line: the verdict for, or the facts of, one node."""


ENOUGH: Final = "node 0 has had enough"
"""The message of the cancellation of an order that is to end at once and may still be answered; see `Enough`."""


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
    node_rank: int | None
    """None: the hub gives it one, in order of arrival."""
    nnodes: int | None


class Welcome(Message, frozen=True):
    """Hub: the agent is in. `run` (32 hex digits) is what nodes of this run show each other when they dial."""

    node_rank: int
    nnodes: int
    run: str
    proof: str
    """The hub knows the token, too."""


class TurnedAway(Message, frozen=True):
    """Hub: the agent isn't let in. `code`: "version", "token", "duplicate-rank", "rank-out-of-range", "full", "nnodes",
    "closed"."""

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


class Leaving(Message, frozen=True):
    """Agent: it goes away on purpose, as after Ctrl-C."""

    why: str


class Stopped(Message, frozen=True):
    """Hub: there will be no verdict."""

    why: str


class Waiting(Message, frozen=True):
    """Hub: the phase that the fleet is in and who is waited for, for the agents' live view."""

    phase: str
    waited_for: tuple[str, ...] = ()


class Manifest(Message, frozen=True):
    """Agent, after the Welcome: the Snapshot of its host, as JSON, deflated (zlib) and in base64."""

    snapshot: bytes


# --- the phases: an order from the hub, an answer from the agent ---------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """Where one node listens for its peers: an address of kind "route", "nccl" or "gloo", and its ports."""

    kind: str
    address: str
    ports: tuple[int, ...]


class Open(Message, frozen=True):
    """Hub: listen for your peers."""


class Opened(Message, frozen=True):
    """Agent: where it listens. `errors`: what it could not listen on and why."""

    places: tuple[Place, ...]
    errors: tuple[str, ...] = ()


class Peer(msgspec.Struct, frozen=True):
    """One node and the places where it listens."""

    node: int
    host: str
    places: tuple[Place, ...]


class Dial(Message, frozen=True):
    """Hub: dial all of these at every place. `seconds` a try, one more try after silence."""

    peers: tuple[Peer, ...]
    seconds: float
    at_once: int = 64


class Met(msgspec.Struct, frozen=True):
    """What one place of one peer came to: a `facts.fleet.Cell` value for each of its ports, in their order."""

    node: int
    kind: str
    cells: str
    words: str = ""
    """The system's own words for the first failure."""


class Dialled(Message, frozen=True):
    """Agent: what it met."""

    met: tuple[Met, ...]


class Count(Message, frozen=True):
    """Hub: read the kernel's counters of IP packets."""


class Counted(Message, frozen=True):
    """Agent: packets since boot; None where they can't be read, or this kernel doesn't count them."""

    undelivered: int | None
    untransmitted: int | None


class Measure(Message, frozen=True):
    """Hub: one round of the tournament. `peer` None: sit this one out or be measured; else measure the link to it."""

    peer: Peer | None
    seconds: float
    """For both directions together."""


class Measured(Message, frozen=True):
    """Agent: the link it measured."""

    link: Link | None


class Collect(Message, frozen=True):
    """Hub: run the real store and an all_reduce of 4 B and of 4 MiB in the patient, as rank `rank` of `world_size`."""

    backend: str
    master: str
    port: int
    rank: int
    world_size: int
    seconds: float


class Collected(Message, frozen=True):
    """Agent: what it came to; see `facts.fleet.Collective`."""

    stage: str
    ok: bool
    words: str
    seconds: float
    hung: bool = False


class Enough(Message, frozen=True):
    """Hub: end the order that you are carrying out, and answer. It has failed elsewhere, and would wait in vain."""


class Cannot(Message, frozen=True):
    """Agent: it could not carry out the order at all, and why; a crash of one phase is that phase's result."""

    why: str


# --- the end ----------------------------------------------------------------------------------------------------------


class Judged(msgspec.Struct, frozen=True):
    """One check's result, as `registry.Result` without the code."""

    slug: str
    findings: tuple[Finding, ...]
    not_tested: NotTested | None


class Part(Message, frozen=True):
    """Hub: this node's part of the verdict, and the exit code of all."""

    results: tuple[Judged, ...]
    verdict: str
    """An `examination.Verdict`, of the whole fleet."""
    exit_code: int
    lines: tuple[str, ...]
    """The phases and the outcome of the others, as sentences."""


Order = Open | Dial | Count | Measure | Collect
Answer = Opened | Dialled | Counted | Measured | Collected | Cannot
FromHub = Greeting | Welcome | TurnedAway | Ping | Stopped | Waiting | Order | Enough | Part
FromAgent = Hello | Pong | Leaving | Manifest | Answer


def encode(message: Message) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"
