"""Tells which versions of torch talk to each other, and which one of several the nodes should all have. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.fleet import Node
from ddpdoctor.knowledge.node_words import names
from ddpdoctor.knowledge.wheels import cuda_tag, release

K = TypeVar("K", bound=Hashable)

STORE_WITH_HANDSHAKE = (2, 2)
"""From here on, clients of torch's TCPStore open with a handshake that older servers don't know, and newer servers turn
away clients without it. Tried: 2.0.1 and 2.1.2 against 2.2.0 to 2.13, both ways."""

STORE_WITH_NEW_QUERIES = (2, 5)
"""From here on, clients send a query that servers before 2.5 don't know. Tried: 2.5 to 2.13 against servers of 2.2 to
2.4.1. Older clients with a newer server work."""

BUILD = re.compile(r"cpu|cu\d+|rocm[\d.]+")

COMPARED = {"torch": "torch", "python": "Python", "nccl": "NCCL", "cuda": "CUDA", "driver": "driver"}
"""A node's versions, and how they are written."""


def stores_meet(server: str, client: str) -> bool:
    """Whether a client of torch `client` can use the store of torch `server`; True where a version can't be read."""
    parsed = [(torch.major, torch.minor) for torch in (release(server), release(client)) if torch]
    if len(parsed) < 2:
        return True
    theirs, ours = parsed
    if (theirs < STORE_WITH_HANDSHAKE) != (ours < STORE_WITH_HANDSHAKE):
        return False
    return not theirs < STORE_WITH_NEW_QUERIES <= ours


def torch_release(version: str) -> str:
    """The version without its local part: "2.13.0" of "2.13.0+cu130"."""
    return version.partition("+")[0]


def torch_build(node: Node) -> str:
    """Target of the node's torch build: "cu130", "rocm7.0", "cpu"; another local part as it stands; "" unknown."""
    local = node.torch.partition("+")[2] if isinstance(node.torch, str) else ""
    if BUILD.fullmatch(local):
        return local
    return cuda_tag(node.cuda) if isinstance(node.cuda, str) else local


def platform(build: str) -> str:
    """Maker of the GPUs that a build is for: "cuda", "rocm", "cpu", or "" where it doesn't tell."""
    if build.startswith("cu"):
        return "cuda"
    return "rocm" if build.startswith("rocm") else build if build == "cpu" else ""


def to_agree_on(values: Mapping[int, K]) -> K:
    """Choose from each node's value, by rank, the one that all should have: the majority's; on a tie that of the lowest rank that
    has one of the most frequent, so node 0's where it is among them."""
    counts = Counter(values.values())
    most = max(counts.values())
    return next(values[rank] for rank in sorted(values) if counts[values[rank]] == most)


def versions_compared(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Name the programs of which each node tells its version, or that it isn't there; without what none of them has."""
    versions = {name: [getattr(node, name) for node in nodes] for name in COMPARED}
    return tuple(
        word
        for name, word in COMPARED.items()
        if any(isinstance(version, str) for version in versions[name])
        and not any(isinstance(version, Unknown) for version in versions[name])
    )


def versions_unknown(nodes: Sequence[Node]) -> str:
    """Say which versions could not be compared on which nodes, and why; "" where all are known. What no node at all has, as a
    GPU's driver, isn't missed; torch and Python are."""
    found: dict[str, tuple[dict[str, None], dict[int, Node]]] = {}
    for name, word in COMPARED.items():
        if name not in ("torch", "python") and not any(isinstance(getattr(node, name), str) for node in nodes):
            continue
        for node in nodes:
            if isinstance(why := getattr(node, name), Unknown):
                words, nodes_without = found.setdefault(why.reason, ({}, {}))
                words[word] = None
                nodes_without[node.rank] = node
    return "; ".join(
        f"{listed(words)} of {names(nodes_without.values(), most=3)}: {why}"
        for why, (words, nodes_without) in found.items()
    )
