"""Nodes of a smoke training over several hosts, as far as node 0 needs them to plan and to judge."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.smoke_training.training_order import SmokeOptions
from tests.support.fixture_hosts import healthy_facts, to_snapshot

TERMS = SmokeOptions(python="/opt/env/bin/python")


def meeting(node: int, nproc: int | None = None, *, launched: bool = False) -> Meeting:
    return Meeting(
        master="n1", port=29500, nnodes=2, node_rank=node, joined=True, command="smoke", nproc=nproc, launched=launched
    )


class Nodes:
    """As much of a hub as planning needs."""

    def __init__(self, count: int) -> None:
        guest = type("Peer", (), {"lost": "", "host": "n", "dialled_address": "10.0.0.1"})
        self.peers = {rank: guest() for rank in range(count)}
        self.nnodes = count


def cpu(node: int, nproc: int | None = None) -> Snapshot:
    facts = to_snapshot(healthy_facts("cloud-cpu"))
    return msgspec.structs.replace(facts, host=f"n{node}", meeting=meeting(node, nproc))


def gpus(node: int, nproc: int | None = None) -> Snapshot:
    facts = to_snapshot(healthy_facts("h100x8-bare-metal"))
    return msgspec.structs.replace(facts, host=f"n{node}", meeting=meeting(node, nproc))


def named(snapshot: Snapshot, host: str) -> Snapshot:
    assert not isinstance(snapshot.network, Unknown)
    return msgspec.structs.replace(snapshot, network=msgspec.structs.replace(snapshot.network, hostname=host))
