"""Addresses where the hub shall listen: those of the master's addresses that are this host's own."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.network import Network, Resolution
from ddpdoctor.knowledge.interface_choice import as_address
from ddpdoctor.knowledge.job_intent import address_of, means_each_node_itself, own_address, way_to_the_others
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.network_check.job import NetcheckJob
from ddpdoctor.network_check.protocol.hub import Hub


def is_own(address: str) -> bool:
    """Whether this host could listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def hub_addresses(master: str, addresses: Sequence[str], network: Network) -> tuple[str, ...]:
    """The addresses to listen on, of those that the master's name has here; none, if the master is another host.

    Where the name leads to the loopback on its own host (Debian's 127.0.1.1) it leads elsewhere on the others: then the
    address by which this host reaches them. Asked for by number, or as localhost, the loopback is meant.
    """
    # IPv4 first: hosts that have IPv6 as well mostly have both, and others come without it.
    own = tuple(sorted((address for address in addresses if is_own(address)), key=lambda address: ":" in address))
    asked_for = master in ("localhost", *addresses)
    if asked_for or not own or not all(as_address(address).is_loopback for address in own):
        return own
    way = way_to_the_others(network)
    outer = (address_of(way, network) if way else None) or next(_outer(network), None)
    return (outer,) if outer else own


def master_warning(job: NetcheckJob, network: Network, command: str = "netcheck") -> str:
    """Say what is wrong with the master's name on each node, before anybody waits: it means that node itself, or this
    is node 0 and it means another host. "" where nothing is, or it isn't known. command: as in `Meeting.command`."""
    master = network.master
    if not isinstance(master, Resolution) or not master.addresses or (job.machines or job.nnodes or 1) < 2:
        return ""
    own = own_address(network)
    if means_each_node_itself(master, network):
        text = f"{job.master} means each node itself, so the nodes can't meet there."
        if not own:
            return f"{text} Start it on all nodes with an address of node 0, which `hostname -I` shows there."
        there = Meeting(command=command, master=own, port=job.port)
        which = "On node 0, whose address" if job.node_rank == 0 else "If this is node 0: its address"
        return f"{text} {which} is {own}: {netcheck_command(there, job.nnodes, 0)}; on the others the same with their own --node-rank."
    if job.node_rank == 0 and not any(is_own(address) for address in master.addresses):
        return f"{job.master} isn't an address of {network.hostname}, which was started as node 0: nobody can listen there for it."
    return ""


def node_0_address(hub: Hub, otherwise: str) -> str:
    """The address of node 0 at which most of the others came; `otherwise` where nobody has."""
    came = Counter(peer.dialled_address for rank, peer in hub.peers.items() if rank and not peer.lost)
    return came.most_common(1)[0][0] if came else otherwise


def _outer(network: Network) -> Iterator[str]:
    """Addresses that are neither the loopback's nor link-local."""
    for interface in network.interfaces:
        for text in interface.addresses:
            address = text.partition("/")[0]
            if not interface.loopback and not as_address(address).is_link_local:
                yield address
