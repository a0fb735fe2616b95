"""What is said of nodes whose settings or clocks differ: who agrees with whom, and commands that do what they say."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import msgspec
import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.checks.compare.settings import clock_skew, env_not_propagated
from ddpdoctor.facts.environment import Environment, Setting
from ddpdoctor.facts.fleet import Fleet, Node
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.facts.rdma import Rdma

NOWHERE = Meeting(master="n0", port=29500, joined=True)


def by_clocks(*offsets: float) -> dict[str, Finding]:
    """What is said of each node whose clock is off."""
    nodes = tuple(
        Node(rank=rank, host=f"n{rank}", address=f"10.0.0.{rank}", clock_offset=offset, clock_error=0.001)
        for rank, offset in enumerate(offsets)
    )
    found = {}
    for node in nodes:
        meeting = msgspec.structs.replace(NOWHERE, node_rank=node.rank)
        for finding in clock_skew(Fleet(nodes=nodes), meeting, Environment(settings=())):
            found[node.host] = finding
    return found


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ((0, 0.01, 4.0), {"n2": "n2's clock is 4.0 s ahead of that of the other nodes"}),
        ((0, 4.0, 4.01), {"n0": "n0's clock is 4.0 s behind that of the other nodes"}),
        ((0, -4.0), {"n1": "n1's clock is 4.0 s behind that of n0"}),
        (
            (0, 0.01, 40.0, 40.2),
            {
                "n2": "n2's clock is 40.0 s ahead of that of n0 and n1",
                "n3": "n3's clock is 40.2 s ahead of that of n0 and n1",
            },
        ),
        ((0, 40.0, 40.2, 0), {"n1": "n1's clock is 40.0 s ahead of that of n0 and n3"}),
        ((0, 0.6, 1.2), {}),
        ((0, 0.9, 1.8), {}),
        ((0, 40.0, 80.0), {"n1": "n1's clock is 40.0 s ahead of that of n0"}),
    ],
)
def test_the_clock_that_most_go_by_counts_and_node_0_s_on_a_tie(offsets: Sequence[float], said: dict[str, str]) -> None:
    found = {host: finding.summary for host, finding in by_clocks(*offsets).items()}
    assert {host: found.get(host) for host in said} == said
    assert "n0" not in found or "n0" in said
    assert bool(found) == bool(said)


def test_where_no_clock_has_a_majority_it_is_open_who_is_right() -> None:
    open_, settled = by_clocks(0, 0, 40, 40.2)["n2"], by_clocks(0, 0, 0, 40)["n3"]
    assert open_.cause.startswith("No more than half of the nodes go by one clock, so it is open which one is right. ")
    assert open_.fixes[0].text.startswith("On n2, n0 and n1, see")
    assert "Ahead of node 0 by +0.0 s: n0 and n1; by +40.1 s: n2 and n3" in [
        evidence.text for evidence in open_.evidence
    ]
    assert "open" not in settled.cause
    assert settled.fixes[0].text.startswith("On n3, see")


@pytest.mark.parametrize("launcher", ["Slurm", "Open MPI", ""])
def test_a_list_reaches_all_nodes_whole(launcher: str) -> None:
    """Slurm cuts what stands behind `--export=` at every comma."""
    value = "Ring,Tree"
    nodes = (
        Node(rank=0, host="n0", address="10.0.0.1", settings=(Setting("NCCL_ALGO", value),)),
        Node(rank=1, host="n1", address="10.0.0.2"),
    )
    meeting = msgspec.structs.replace(NOWHERE, node_rank=1, launcher=launcher)
    (found,) = env_not_propagated(Fleet(nodes=nodes), meeting, Environment(settings=()), Rdma(ports=()))
    here, everywhere = found.fixes[:2]
    assert here.commands == (f"export NCCL_ALGO={value}",)
    if launcher:
        script = "\n".join([*everywhere.commands, "env"])
        shell = subprocess.run(["sh", "-ec", script], env={}, capture_output=True, text=True, check=True)
        assert f"NCCL_ALGO={value}" in shell.stdout.splitlines()
        assert ("SLURM_EXPORT_ENV=ALL" in shell.stdout) is (launcher == "Slurm")
    else:
        assert everywhere.commands == (f"echo NCCL_ALGO={value} >> ~/.deepspeed_env",)
