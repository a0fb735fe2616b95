"""Names and words for the nodes of a fleet. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ddpdoctor.base.text import listed
from ddpdoctor.facts.fleet import Fleet, MissingNode, Node
from ddpdoctor.facts.meeting import Meeting

NO_FLEET = "only netcheck looks at other nodes"
"""The reason of checks that look at a fleet, where there is none."""

ONE_SIDE = "only this side was looked at"
"""The same where netcheck itself looks at the way to the master alone."""

NODE_0_SPEAKS = "node 0 speaks for the fleet"
"""The reason of checks of what no single node is to blame for, on all nodes but the first."""

ONE_THERE = "only one node is there"

HUB_CONNECTION = "its connection to the hub"
"""The source of the evidence that a node was lost. A finding that has it is of a loss."""

_LOST_DURING = "lost during "


def called(node: Node) -> str:
    """The node's hostname; "node 3" where it has none."""
    return node.host or f"node {node.rank}"


def names_by_rank(hosts: Mapping[int, str], seat: str = "node") -> dict[int, str]:
    """Hostnames by rank, each once: machines made from one image may all be called "localhost", and a launcher may have
    started several here. seat: what each of them is, "node" or "rank"."""
    count = Counter(hosts.values())
    return {rank: f"{host} ({seat} {rank})" if host and count[host] > 1 else host for rank, host in hosts.items()}


def bare_host(node: Node) -> str:
    """Its hostname as itself has it."""
    return node.host.removesuffix(f" (node {node.rank})").removesuffix(f" (rank {node.rank})")


def missing_name(node: MissingNode, seat: str = "node") -> str:
    """ "node 2", "node 2 (gpu07)"."""
    return f"{seat} {node.rank}" + (f" ({node.host})" if node.host else "")


def names(nodes: Iterable[Node], most: int = 5) -> str:
    return listed((called(node) for node in nodes), most)


def there(fleet: Fleet) -> tuple[Node, ...]:
    """The nodes that came and weren't lost."""
    return tuple(node for node in fleet.nodes if not node.lost)


def why_not_run(fleet: Fleet, phases: Collection[str], otherwise: str) -> str:
    """Why none of these phases was run; `otherwise` where none tells."""
    return next((phase.reason for phase in fleet.phases if phase.name in phases and phase.reason), otherwise)


def lost_phase(node: Node) -> str:
    """The name of the phase in which the node was lost; "" while it is there."""
    return node.lost.removeprefix(_LOST_DURING).partition(":")[0] if node.lost.startswith(_LOST_DURING) else ""


def own_node(fleet: Fleet, meeting: Meeting) -> Node | None:
    """The node whose facts are judged; None where it is lost, or isn't in the fleet."""
    return next((node for node in there(fleet) if node.rank == meeting.node_rank), None)
