"""Nodes whose address is one that only they know: containers with a network of their own, and machines behind NAT."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.network_check.analysis.reachability import locate_faults


@check("node-behind-nat", severity=FAIL)
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
    requires(fleet.nodes, "only netcheck looks at other nodes")
    routes = [one for one in fleet.reach if one.kind == "route"]
    requires(routes, "the nodes didn't dial each other")
    me = next((at for at, one in enumerate(fleet.nodes) if one.rank == meeting.node_rank), -1)
    peers = next((one.peers for one in locate_faults(fleet).behind_nat if one.node == me), ())
    if not peers:
        return
    node, inside = fleet.nodes[me], routes[0].addresses[me]
    name = node.host or f"node {node.rank}"
    whom = listed(fleet.nodes[at].host or f"node {fleet.nodes[at].rank}" for at in peers)
    yield Finding(
        summary=f"{name} is behind NAT: it listens at {inside}, and node 0 sees it as {node.address}; "
        f"{plural(len(peers), 'node')} can't dial it"[:160],
        evidence=(
            Evidence(
                f"its own end of the connection to node 0: {inside}; the end that node 0 sees: {node.address}", "TCP"
            ),
            Evidence(f"{whom} dialled {inside}, and {name} wasn't met there", "TCP connections between all nodes"),
        ),
        fixes=_fixes(name, container),
    )


def _fixes(name: str, container: Maybe[Container]) -> tuple[Fix, ...]:
    docker = Fix(f"Start the container of {name} with the host's network: add `--network=host` to `docker run`")
    kubernetes = Fix(
        f"Give the pod of {name} the host's network: `hostNetwork: true` and `dnsPolicy: ClusterFirstWithHostNet` in its spec"
    )
    machine = Fix(f"Outside of a container: give {name} a bridged network or a routed address instead of NAT")
    runtime = None if isinstance(container, Unknown) else container.runtime
    if runtime == "kubernetes":
        return (kubernetes,)
    if runtime in ("docker", "podman"):
        return (docker,)
    return (docker, kubernetes, machine)
