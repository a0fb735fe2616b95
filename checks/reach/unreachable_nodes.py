"""Nodes that the others can't dial, or that can't take part: behind NAT, or without sockets."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.checks.reach.firewalls import NOT_DIALLED
from ddpdoctor.checks.shared_fixes import raised_for_new_logins
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.snapshot import Container, Meeting
from ddpdoctor.knowledge.node_words import NO_FLEET, called, names
from ddpdoctor.knowledge.privileges import runtime_of
from ddpdoctor.network_check.analysis.fault_location import locate_faults
from ddpdoctor.network_check.analysis.tried_addresses import DIALLED

OUT_OF_FILES = "Too many open files"


@check("node-behind-nat", severity=FAIL, owner=Owner.NODE)
def node_behind_nat(fleet: Fleet, meeting: Meeting, container: Maybe[Container]) -> Iterator[Finding]:
    """The other nodes see this one at an address that isn't its own, and can't dial its own one.

    ## What breaks
    The rendezvous passes, since this node dials the master. Then the others dial the address that gloo and NCCL offer for
    it, which means nothing outside, or another host: they hang, or end with "No route to host" or "Connection refused".

    ## Why
    A container with a network of its own (docker without `--network=host`) or a virtual machine behind NAT has an address
    like 172.17.0.2; what it sends comes out under the address of the machine around it. Published ports don't help: gloo and
    NCCL listen on ports that the kernel chooses.

    ## Fix
    Give the container the host's network, `docker run --network=host`, on Kubernetes `hostNetwork: true`; a virtual machine
    a bridged network instead of NAT.
    """
    requires(fleet.nodes, NO_FLEET)
    requires(fleet.routes, NOT_DIALLED)
    own = fleet.place_of(meeting.node_rank)
    peers = next((behind.peers for behind in locate_faults(fleet).behind_nat if behind.node == own), ())
    if not peers:
        return
    node, inside = fleet.nodes[own], fleet.routes[0].addresses[own]
    name, whom = called(node), names(fleet.nodes[at] for at in peers)
    ends = f"its own end of the connection to node 0: {inside}; the end that node 0 sees: {node.address}"
    yield Finding.of(
        f"{name} is behind NAT: it listens at {inside}, and node 0 sees it as {node.address}; "
        f"{plural(len(peers), 'node')} can't dial it",
        Evidence(ends, "TCP"),
        Evidence(f"{whom} dialled {inside}, and {name} wasn't met there", DIALLED),
        _own_network(name, container),
    )


def _own_network(name: str, container: Maybe[Container]) -> tuple[Fix, ...]:
    docker = Fix(f"Start the container of {name} with the host's network: add `--network=host` to `docker run`")
    kubernetes = Fix(
        f"Give the pod of {name} the host's network: `hostNetwork: true` and `dnsPolicy: ClusterFirstWithHostNet` in its spec"
    )
    machine = Fix(f"Outside of a container: give {name} a bridged network or a routed address instead of NAT")
    runtime = runtime_of(container)
    if runtime == "kubernetes":
        return (kubernetes,)
    if runtime in ("docker", "podman"):
        return (docker,)
    return (docker, kubernetes, machine)


@check("peers-not-dialled", severity=FAIL, owner=Owner.NODE)
def peers_not_dialled(fleet: Fleet, meeting: Meeting, container: Maybe[Container]) -> Iterator[Finding]:
    """This node could not listen for the others, or not dial them.

    ## What breaks
    Nobody knows whether the other nodes reach this one: what netcheck could not do, NCCL and gloo can't do either. They
    end with "Too many open files" or "Cannot assign requested address", or their peers wait in silence.

    ## Why
    A job needs some sockets for each peer, and a hard limit of a few dozen open files (`ulimit -Hn`) leaves none; netcheck
    raises the soft one by itself. Or an address that a library would offer can't be bound on this host, or its kernel has
    no memory for sockets.

    ## Fix
    Raise the hard limit of open files on that node, log in again and run netcheck once more.
    """
    requires(fleet.nodes, NO_FLEET)
    requires(fleet.routes or any(node.troubles for node in fleet.nodes), NOT_DIALLED)
    node = fleet.by_rank.get(meeting.node_rank)  # type: ignore[arg-type]
    if node is None or not node.troubles:
        return
    name = called(node)
    yield Finding.of(
        f"{name} could not listen for the other nodes, or dial them: {node.troubles[0]}",
        Evidence(listed(node.troubles), "socket(), bind(), connect() and accept() on this host"),
        _files_or_sockets(name, node, container),
    )


def _files_or_sockets(name: str, node: Node, container: Maybe[Container]) -> Fix:
    if not any(trouble.endswith(OUT_OF_FILES) for trouble in node.troubles):
        return Fix(f"See {name}'s addresses and sockets, and run netcheck again", ("ip -brief address show", "ss -s"))
    if runtime_of(container):
        return Fix("Start the container with `--ulimit nofile=65536:65536`")
    return raised_for_new_logins("nofile", "65536", "1048576", "90-nofile", f"the hard limit of open files on {name}")
