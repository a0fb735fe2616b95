"""Reasons, known before, why torch's own collectives can't work, so that nobody waits for their timeouts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ddpdoctor.facts.fleet import Link, Node, Reach
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.rdma import Rdma
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.node_words import called, names
from ddpdoctor.knowledge.settings_agreement import deviations, pattern_of
from ddpdoctor.knowledge.version_agreement import stores_meet
from ddpdoctor.network_check.phases.reach_phase import count_failures

MIN_RATE = 20.0
"""Mbit/s over which an all_reduce of 4 MiB takes some seconds; over less it isn't tried."""

NO_INTERFACE = 5
"""ncclInvalidUsage: what ncclGetUniqueId says where no interface fits."""


def why_no_gloo(
    nodes: Sequence[Node], snapshots: Mapping[int, Snapshot], reach: Sequence[Reach], links: Sequence[Link]
) -> str:
    """Why gloo isn't tried on nodes that reach each other; "" where it is. nodes: those that are there."""
    return next(_against_gloo(nodes, snapshots, reach, links), "")


def _against_gloo(
    nodes: Sequence[Node], snapshots: Mapping[int, Snapshot], reach: Sequence[Reach], links: Sequence[Link]
) -> Iterator[str]:
    if lacking := [node for node in nodes if node.torch is None]:
        yield "torch is not installed" + ("" if len(lacking) == len(nodes) else f" on {names(lacking, most=3)}")
    for node in nodes:
        nccl = snapshots[node.rank].nccl
        if isinstance(nccl, Nccl) and nccl.gloo_interface is None:
            yield f"gloo finds no address on {called(node)}"
    server = nodes[0].torch
    for node in nodes:
        if isinstance(server, str) and isinstance(node.torch, str) and not stores_meet(server, node.torch):
            yield f"torch {node.torch} can't use the store of torch {server}"
    yield from _fatal_settings(nodes, snapshots, "gloo")
    if any(link.error for link in links):
        yield "a link between two nodes could not be measured"
    slowest = min((rate for link in links for rate in (link.forth, link.back) if rate >= 0), default=MIN_RATE)
    if slowest < MIN_RATE:
        yield f"4 MiB would take too long over the slowest link, {slowest:.1f} Mbit/s"
    yield from _unreached(reach, "gloo", "gloo's")


def why_no_nccl(nodes: Sequence[Node], snapshots: Mapping[int, Snapshot], reach: Sequence[Reach]) -> str:
    """Why NCCL isn't tried after gloo has passed; "" where it is. nodes: those that are there."""
    return next(_against_nccl(nodes, snapshots, reach), "")


def _against_nccl(nodes: Sequence[Node], snapshots: Mapping[int, Snapshot], reach: Sequence[Reach]) -> Iterator[str]:
    for node in nodes:
        gpus, nccl = snapshots[node.rank].gpus, snapshots[node.rank].nccl
        if not isinstance(gpus, Gpus) or not gpus.devices:
            yield f"no NVIDIA GPU on {called(node)}"
        if isinstance(nccl, Nccl) and nccl.library is None:
            yield f"no libnccl on {called(node)}"
    # NCCL's nodes must have the very same version; some of the older ones hang.
    versions: dict[str, list[Node]] = {}
    for node in nodes:
        if isinstance(node.nccl, str):
            versions.setdefault(node.nccl, []).append(node)
    if len(versions) > 1:
        which = (f"{version} on {names(having, most=3)}" for version, having in versions.items())
        yield f"NCCL differs: {'; '.join(which)}"
    for node in nodes:
        nccl = snapshots[node.rank].nccl
        if isinstance(nccl, Nccl) and nccl.answer_status == NO_INTERFACE:
            yield f"NCCL finds no interface on {called(node)}"
    yield from _fatal_settings(nodes, snapshots, "NCCL")
    yield from _unreached(reach, "nccl", "NCCL's")


def _fatal_settings(nodes: Sequence[Node], snapshots: Mapping[int, Snapshot], library: str) -> Iterator[str]:
    """Settings in which a node differs so that the others would wait for it."""
    pattern = pattern_of(nodes)
    for node in nodes:
        rdma = snapshots[node.rank].rdma
        no_infiniband = isinstance(rdma, Rdma) and rdma.ports == ()
        for found in deviations(node.settings, pattern):
            read = found.hits_gloo if library == "gloo" else found.hits_nccl
            if read and found.fatal and not (found.of_infiniband and no_infiniband):
                yield f"{called(node)} differs from the others in {found.name}, and {library} would hang"


def _unreached(reach: Sequence[Reach], kind: str, whose: str) -> Iterator[str]:
    if failing := count_failures(matrix for matrix in reach if matrix.kind == kind):
        yield f"{whose} addresses don't reach each other ({failing} connections fail)"
