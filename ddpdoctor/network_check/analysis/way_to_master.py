"""This node's way to the master, in words that several checks share. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import Evidence, Finding, Fix
from ddpdoctor.base.text import plural
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome, Meeting
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.knowledge.firewall_fixes import LOOK, opening
from ddpdoctor.knowledge.job_intent import is_loopback, means_each_node_itself, own_address
from ddpdoctor.knowledge.netcheck_command import DEFAULT_PORT, netcheck_command
from ddpdoctor.knowledge.privileges import by_root

OURS = "ddpdoctor"
STORE = "torch's TCPStore"

MOST_TELLING = (
    ConnectOutcome.CONNECTED,
    ConnectOutcome.RESET,
    ConnectOutcome.REFUSED,
    ConnectOutcome.PROHIBITED,
    ConnectOutcome.SILENT,
    ConnectOutcome.NO_HOST,
    ConnectOutcome.NO_ROUTE,
    ConnectOutcome.FAILED,
)
"""Where a name has several addresses, the one that got furthest speaks for all."""


def tried(meeting: Maybe[Meeting]) -> Meeting | None:
    """The meeting, where the master was really dialled."""
    return meeting if isinstance(meeting, Meeting) and meeting.master and meeting.attempts else None


def furthest(meeting: Meeting) -> Attempt:
    """The attempt that got furthest."""
    return min(meeting.attempts, key=lambda attempt: MOST_TELLING.index(attempt.met))


def was_greeted(meeting: Meeting) -> bool:
    """Whether another ddpdoctor answered."""
    return meeting.joined or meeting.answered_by == OURS


def place(address: str, port: int) -> str:
    """ "10.0.0.11 port 29500"."""
    return f"{address} port {port}"


def how_often(attempt: Attempt, meeting: Meeting) -> str:
    """ "12 tries in 8 s"."""
    return f"{plural(attempt.tries, 'try', 'tries')} in {meeting.waited:.0f} s"


def attempts_seen(meeting: Meeting) -> Iterator[Evidence]:
    """Evidence of what each of the master's addresses came to."""
    for attempt in meeting.attempts:
        words = f" ({attempt.words})" if attempt.words else ""
        text = f"{place(attempt.address, meeting.port)}: {attempt.met.value}{words}; {how_often(attempt, meeting)}"
        yield Evidence(text, "connect()")


def who_listens(port: int) -> Fix:
    """The look at who holds the port, to be run on the master."""
    return by_root(f"On the master, show who holds port {port}", (f"sudo ss -tlnp 'sport = :{port}'",))


def another_port(meeting: Meeting, *, alone: bool = False) -> Fix:
    """One that is far enough from this one that a neighbour who goes the same way out doesn't meet us there. A rule and no
    chance, so that all nodes name the same.

    alone: nothing else goes before it.
    """
    port = meeting.port + 100 if meeting.port + 100 < 65536 else meeting.port - 100
    port = port if meeting.port >= 1024 else DEFAULT_PORT  # Those below are for root.
    command = netcheck_command(meeting, meeting.nnodes, meeting.node_rank, port=port)
    let = "Let" if alone else "Or let"
    return Fix(
        f"{let} the job meet at another port, on all nodes alike, and this{', on each node with its own rank' if meeting.nnodes else ''}",
        (f"export MASTER_PORT={port}", command),
    )


def port_among(label: str, port: int) -> bool:
    """Whether a packet filter's ports, "29500", "29400,29500" or "1-32767", take in that one."""
    ranges = [part.partition("-") for part in label.split(",")]
    numbers = [(first, last or first) for first, _, last in ranges]
    return any(first.isdecimal() and last.isdecimal() and int(first) <= port <= int(last) for first, last in numbers)


def start_node_0(meeting: Meeting, master: str = "") -> Fix:
    """master: to meet there. Looking alone, nobody said of how many nodes the job is."""
    if meeting.nnodes:
        return Fix("Start node 0, if it isn't there yet", (netcheck_command(meeting, meeting.nnodes, 0),))
    alone = netcheck_command(meeting, None, None, master=master)
    return Fix(
        "Start node 0, if it isn't there yet, with the number of the job's nodes for N",
        (f"{alone} --nnodes N --node-rank 0",),
    )


def own_port_shut(attempt: Attempt, meeting: Meeting, network: Network, firewall: Maybe[Firewall]) -> Finding:
    """Nobody is met at an address that is this host's own."""
    host, where = network.hostname, place(attempt.address, meeting.port)
    seen = tuple(attempts_seen(meeting))
    if attempt.met is not ConnectOutcome.REFUSED:
        return Finding(
            summary=f"{host} is the master itself and can't reach {where}: {attempt.words or attempt.met.value} ({how_often(attempt, meeting)})",
            cause="What a host sends to itself leaves it on no wire: its own packet filter takes it.",
            evidence=seen,
            fixes=opening(f"Let TCP in on {host}", firewall, (), inbound=True)
            or (by_root(f"On {host}, look for rules that drop or reject TCP", LOOK),),
        )
    cause = "The address is this host's own, so no other host and no network is in between: the job's node 0 hasn't been started here, or with another port."
    if is_loopback(attempt.address):
        cause += " On any other host it would mean that one, not this."
    master = network.master
    own = own_address(network) if isinstance(master, Resolution) and means_each_node_itself(master, network) else None
    return Finding(
        summary=f"{host} is the master itself, and nobody listens at {where} ({how_often(attempt, meeting)})",
        cause=cause,
        evidence=seen,
        fixes=(start_node_0(meeting, own or ""), Fix("See what listens here, and where", ("ss -tlnp",))),
    )
