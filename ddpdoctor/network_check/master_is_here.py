"""What is said where this host looks for the master alone, and is the master itself. Pure."""

from __future__ import annotations

from ddpdoctor.base.findings import Finding, Fix
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.facts.firewall import Firewall
from ddpdoctor.facts.meeting import Attempt, ConnectOutcome, Meeting
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.knowledge.firewall_fixes import LOOK, opening
from ddpdoctor.knowledge.job_intent import is_loopback, means_each_node_itself, own_address
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.network_check.rendezvous_words import attempts_seen, how_often, place


def start_node_0(meeting: Meeting, master: str = "") -> Fix:
    """master: to meet there. Looking alone, nobody said of how many nodes the job is."""
    if meeting.nnodes:
        return Fix("Start node 0, if it isn't there yet", (netcheck_command(meeting, meeting.nnodes, 0),))
    alone = netcheck_command(meeting, None, None, master=master)
    return Fix(
        "Start node 0, if it isn't there yet, with the number of the job's nodes for N",
        (f"{alone} --nnodes N --node-rank 0",),
    )


def own_port_shut(one: Attempt, meeting: Meeting, network: Network, firewall: Maybe[Firewall]) -> Finding:
    """Nobody is met at an address that is this host's own."""
    host, where = network.hostname, place(one.address, meeting.port)
    seen = tuple(attempts_seen(meeting))
    if one.met is not ConnectOutcome.REFUSED:
        return Finding(
            summary=f"{host} is the master itself and can't reach {where}: {one.words or one.met.value} ({how_often(one, meeting)})",
            cause="What a host sends to itself leaves it on no wire: its own packet filter takes it.",
            evidence=seen,
            fixes=opening(f"Let TCP in on {host}", firewall, (), inbound=True)
            or (by_root(f"On {host}, look for rules that drop or reject TCP", LOOK),),
        )
    cause = "The address is this host's own, so no other host and no network is in between: the job's node 0 hasn't been started here, or with another port."
    if is_loopback(one.address):
        cause += " On any other host it would mean that one, not this."
    master = network.master
    own = own_address(network) if isinstance(master, Resolution) and means_each_node_itself(master, network) else None
    return Finding(
        summary=f"{host} is the master itself, and nobody listens at {where} ({how_often(one, meeting)})",
        cause=cause,
        evidence=seen,
        fixes=(start_node_0(meeting, own or ""), Fix("See what listens here, and where", ("ss -tlnp",))),
    )
