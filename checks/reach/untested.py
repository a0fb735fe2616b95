"""Nodes that could not take part when every node dialled every other one."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix
from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.privileges import by_root, on_the_host

OUT_OF_FILES = "Too many open files"
LIMITS = "/etc/security/limits.d/90-nofile.conf"


@check("peers-not-dialled", severity=FAIL)
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
    requires(fleet.nodes, "only netcheck looks at other nodes")
    requires(
        any(one.kind == "route" for one in fleet.reach) or _all_troubles(fleet), "the nodes didn't dial each other"
    )
    node = next((one for one in fleet.nodes if one.rank == meeting.node_rank), None)
    if node is None or not node.troubles:
        return
    name = node.host or f"node {node.rank}"
    yield Finding(
        summary=f"{name} could not listen for the other nodes, or dial them: {node.troubles[0]}"[:160],
        evidence=(Evidence(listed(node.troubles), "socket(), bind(), connect() and accept() on this host"),),
        fixes=_fixes(name, node, container),
    )


def _all_troubles(fleet: Fleet) -> bool:
    return any(node.troubles for node in fleet.nodes)


def _fixes(name: str, node: Node, container: Maybe[Container]) -> tuple[Fix, ...]:
    if not any(trouble.endswith(OUT_OF_FILES) for trouble in node.troubles):
        return (
            Fix(f"See {name}'s addresses and sockets, and run netcheck again", ("ip -brief address show", "ss -s")),
        )
    lines = "* soft nofile 65536\\n* hard nofile 1048576\\n"
    raised = by_root(
        f"Raise the hard limit of open files on {name} for new logins, then log in again",
        (f"printf '{lines}' | sudo tee {LIMITS}",),
    )
    in_container = Fix("Start the container with `--ulimit nofile=65536:65536`")
    return (raised,) if on_the_host(raised, container) is raised else (in_container,)
