"""Attempts of this node to meet the others at the master's address and port: what `netcheck` tried there."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Source


class ConnectOutcome(str, Enum):
    """Outcome of a TCP connection, as the side that dialled saw it."""

    CONNECTED = "connected"
    REFUSED = "refused"
    """A reset in answer to the first packet: nobody listens there, or a filter rejects."""
    SILENT = "silent"
    """No answer at all: dropped by a filter, or there is no such host."""
    NO_ROUTE = "no route"
    """This host has no way there (ENETUNREACH, or EHOSTUNREACH from its own routes)."""
    NO_HOST = "no host"
    """Nobody has that address: no neighbour answered to ARP or neighbour discovery, here or at the last router."""
    PROHIBITED = "prohibited"
    """An ICMP message said no (EHOSTUNREACH at once, EACCES): a filter rejects."""
    RESET = "reset"
    """It was connected, and then cut off."""
    FAILED = "failed"
    """Anything else; the words of the system say what."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of dialling one address at last. `words` are the system's own; `seconds` how long the last try took."""

    address: str
    met: ConnectOutcome
    words: str = ""
    seconds: float = 0.0
    tries: int = 1


class Conflict(msgspec.Struct, frozen=True):
    """Two settings that contradict each other: a flag or variable that counts, and one that doesn't, with their values."""

    name: str
    value: str
    other_name: str
    other_value: str


class Meeting(Facts, frozen=True, kw_only=True):
    """One node's way to the master. `master` is "" where nothing was tried."""

    master: Annotated[str, Source("--master-addr, the launcher's settings")] = ""
    """A name or an address, as it was given."""
    port: Annotated[int, Source("--master-port, the launcher's settings")] = 0
    nnodes: Annotated[int | None, Source("--nnodes, the launcher's settings")] = None
    """None: only this side was looked at."""
    node_rank: Annotated[int | None, Source("--node-rank, the launcher's settings, the hub")] = None
    launcher: Annotated[str, Source("the launcher's settings")] = ""
    """"Slurm", "torchrun", "Open MPI" ...; "" by hand."""
    allocated: Annotated[int, Source("SLURM_JOB_NUM_NODES")] = 0
    """Nodes of the Slurm job that this process is part of; 0 outside of one."""
    conflicts: Annotated[tuple[Conflict, ...], Source("flags and the launchers' settings")] = ()
    command: Annotated[str, Source("the command line")] = "netcheck"
    """What is run on all nodes, "netcheck" or "smoke"."""
    nproc: Annotated[int | None, Source("--nproc")] = None
    """Ranks that smoke shall run on this node; None: nobody said."""
    launched: Annotated[bool, Source("the launcher's settings")] = False
    """Each node of the meeting is one rank that a launcher has started, and several of them may be on one host."""
    options: Annotated[tuple[str, ...], Source("the command line")] = ()
    """What else was asked for and holds for the other nodes, too: "--wait 300", "--quick"."""
    token: Annotated[bool, Source("--token, the launcher's job id, node 0")] = False
    """Whether the nodes show each other a token. Never the token itself."""
    hosts_the_store: Annotated[bool, Source("node rank, this host's addresses")] = False
    """This node is node 0, so the store (here: the hub) listens on it."""
    listen_error: Annotated[str, Source("bind() to the master's address and port")] = ""
    """Why the hub could not listen there, in the system's words."""
    unresolved: Annotated[str, Source("getaddrinfo of the master")] = ""
    """Why the master's name had no address until the end, in the resolver's words."""
    attempts: Annotated[tuple[Attempt, ...], Source("connect() to the master's address and port")] = ()
    """The last outcome for each of the master's addresses."""
    untransmitted: Annotated[int | None, Source("/proc/net/snmp")] = None
    """First packets to the master that the kernel was to send and didn't, at the least one a try: a packet filter on this
    host's output takes them. None: nobody looked, or the kernel doesn't count them (before Linux 6.8)."""
    undelivered: Annotated[int | None, Source("/proc/net/snmp")] = None
    """Answers of a silent master that the kernel received and handed to nobody, some at every try: this host's own packet
    filter on input takes them. None: nobody looked, or the counters can't be read."""
    answered_by: Annotated[str, Source("a conversation with what listens there")] = ""
    """"ddpdoctor", "torch's TCPStore", "an HTTP server", "an SSH server", "a TLS server", "something that says nothing",
    "something else"; "" where nobody could be asked."""
    banner: Annotated[str, Source("a conversation with what listens there")] = ""
    """The first line it said, printable, at most 80 characters."""
    joined: Annotated[bool, Source("the hub's welcome")] = False
    turned_away: Annotated[str, Source("the hub's answer")] = ""
    """Why the hub didn't let this node in."""
    refusal: Annotated[str, Source("the hub's answer")] = ""
    """The same as a code, as in `netcheck.messages.TurnedAway`."""
    own_python: Annotated[str, Source("sys.executable")] = ""
    """Where this ddpdoctor itself is installed; said where node 0 has another version."""
    left_behind: Annotated[str, Source("the hub, or its silence")] = ""
    """Why this node got no part of the verdict although there is one, after it was let in."""
    waited: Annotated[float, Source("our clock")] = 0.0
    """Seconds from the first try to the welcome, or to giving up."""
