"""Who is missing and who was turned away: each fault is said once, and one finding says both."""

from __future__ import annotations

import msgspec
import pytest

from ddpdoctor.base.findings import Finding
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.join.arrivals import duplicate_rank, rdzv_missing_node
from ddpdoctor.facts.fleet import Fleet, MissingNode, Node, RejectedNode
from ddpdoctor.facts.meeting import Meeting
from ddpdoctor.knowledge.netcheck_command import netcheck_command
from ddpdoctor.knowledge.node_words import bare_host, names_by_rank

NO_NETWORK = Unknown("not looked at")
ZERO = Meeting(master="10.0.0.11", port=29500, nnodes=4, node_rank=0, hosts_the_store=True, joined=True)


def away(host: str, code: str, rank: int = -1, **more: object) -> RejectedNode:
    return RejectedNode(
        rank=rank, host=host, address=f"10.0.0.{20 + len(host)}", code=code, text=f"{code}: because", **more
    )  # type: ignore[arg-type]


def found(there: tuple[int, ...], doubles: tuple[RejectedNode, ...], expected: int = 4) -> list[Finding]:
    nodes = tuple(Node(rank=rank, host=f"n{rank}", address=f"10.0.0.{11 + rank}") for rank in there)
    absent = tuple(MissingNode(rank=rank) for rank in range(expected) if rank not in there)
    fleet = Fleet(nodes=nodes, expected=expected, absent=absent, doubles=doubles)
    return [*rdzv_missing_node(fleet, ZERO, NO_NETWORK), *duplicate_rank(fleet, ZERO)]


@pytest.mark.parametrize(
    "refused",
    [
        away("a", "nnodes", 1, nnodes=2),  # 1 has come; its own seat is another one.
        away("a", "nnodes", 3, nnodes=2),
        away("a", "nnodes", nnodes=2),
        away("a", "version"),
        away("a", "closed", 3),
        away("a", "rank-taken", 1, holder="n1"),
        away("a", "rank-out-of-range", 4),
    ],
    ids=lambda one: f"{one.code} {one.rank}",
)
def test_a_node_that_was_turned_away_and_its_seat_are_one_fault(refused: RejectedNode) -> None:
    (finding,) = found((0, 1, 2), (refused,))
    assert "a (10.0.0.21)" in finding.summary
    assert "So node 3 is missing" in finding.cause
    # Nor does one that tries again in another way become two.
    assert len(found((0, 1, 2), (away("a", "version"), refused))) == 1


def test_who_never_came_is_missing_all_the_same() -> None:
    refused, missing = sorted(
        found((0, 1), (away("a", "nnodes", 3, nnodes=2),)), key=lambda one: "didn't" in one.summary
    )
    assert "So node 3 is missing" in refused.cause
    assert missing.summary == "node 2 didn't come: 2 of 4 nodes are here"
    misplaced, missing = sorted(
        found((0, 1), (away("a", "duplicate-rank", 1),)), key=lambda one: "didn't" in one.summary
    )
    assert "So one of node 2 and node 3 is missing" in misplaced.cause
    assert missing.summary == "1 more, of node 2 and node 3, didn't come: 2 of 4 nodes are here"


def test_each_is_given_a_seat_of_its_own() -> None:
    findings = found((0,), (away("a", "version"), away("bb", "version"), away("ccc", "duplicate-rank", 0)))
    commands = [command for finding in findings for fix in finding.fixes for command in fix.commands]
    seats = {netcheck_command(ZERO, 4, rank) for rank in (1, 2, 3)}
    assert sorted(command for command in commands if command in seats) == sorted(seats)


@pytest.mark.parametrize(
    ("allocated", "nodes", "words"),
    [
        (4, 4, "Let Slurm start it on all nodes"),
        (8, 4, "on all nodes"),
        (0, 4, "on all nodes"),
        (2, 2, "too few for --nnodes 4"),
    ],
)
def test_slurm_starts_it_where_it_meets_and_on_no_more_nodes_than_there_are(
    allocated: int, nodes: int, words: str
) -> None:
    here = msgspec.structs.replace(
        ZERO, launcher="Slurm", port=29611, options=("--wait 5", "--quick"), token=True, allocated=allocated
    )
    fleet = Fleet(
        nodes=(Node(rank=0, host="n0", address="10.0.0.11"),),
        expected=4,
        absent=tuple(MissingNode(rank=one) for one in (1, 2, 3)),
    )
    (finding,) = rdzv_missing_node(fleet, here, NO_NETWORK)
    start, *more = finding.fixes
    assert words in start.text
    assert start.commands == (
        f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 ddpdoctor netcheck --master-addr 10.0.0.11 "
        "--master-port 29611 --wait 5 --quick",
    )
    assert any("salloc or sbatch with --nodes=4" in one.text for one in more) == (nodes < 4)


def test_an_older_ddpdoctor_is_renewed_before_it_comes_again() -> None:
    older = away("a", "version")
    older = msgspec.structs.replace(older, text="0.0.1 here, 0.1.0 on node 0: pip install 'ddpdoctor==0.1.0' on both")
    (finding,) = found((0, 1, 2), (older,))
    assert [fix.commands for fix in finding.fixes] == [
        ("pip install 'ddpdoctor==0.1.0'",),
        (netcheck_command(ZERO, 4, 3),),
    ]


@pytest.mark.parametrize(
    ("code", "why"), [("token", "another token or none"), ("version", "another version and no proof")]
)
def test_who_proved_nothing_is_no_node_and_writes_no_command(code: str, why: str) -> None:
    """A node of the job with another token, or a stranger: both are told, and whose seat is free."""
    text = "ddpdoctor 6.6.6 here speaks protocol 99: pip install 'ddpdoctor==6.6.6' on both"
    odd = msgspec.structs.replace(away("gpu01", code, proved=False), text=text)
    (finding,) = found((0, 1), (odd, msgspec.structs.replace(odd, text="again")), expected=3)
    assert finding.summary == f"node 2 didn't come: 2 of 3 nodes are here; gpu01 (10.0.0.25) came with {why}"
    assert "or a stranger" in finding.cause
    assert not any("6.6.6" in command for fix in finding.fixes for command in fix.commands)
    assert (netcheck_command(ZERO, 3, 2),) in [fix.commands for fix in finding.fixes]
    assert not found((0, 1, 2), (odd,), expected=3)


@pytest.mark.parametrize(
    ("lost", "cause"),
    [
        ("lost during join: its facts had not come after 30 s", "hangs on n1"),
        ("lost during gloo: the connection was closed", "Its process ended"),
    ],
)
def test_a_node_that_was_lost_says_when_and_how(lost: str, cause: str) -> None:
    nodes = tuple(Node(rank=rank, host=f"n{rank}", address=f"10.0.0.{11 + rank}", lost=lost * rank) for rank in (0, 1))
    (finding,) = rdzv_missing_node(Fleet(nodes=nodes, expected=2), ZERO, NO_NETWORK)
    assert finding.summary == f"n1 was {lost}"
    assert cause in finding.cause


def test_nodes_of_one_name_are_told_apart() -> None:
    """Also when one of them came again after it had been turned away."""
    assert names_by_rank({0: "n0", 1: "n1", 5: ""}) == {0: "n0", 1: "n1", 5: ""}
    names = names_by_rank({0: "gpu", 1: "gpu", 2: "n2", 3: "", 4: ""})
    assert names == {0: "gpu (node 0)", 1: "gpu (node 1)", 2: "n2", 3: "", 4: ""}
    nodes = tuple(Node(rank=rank, host=names[rank], address=f"10.0.0.{11 + rank}") for rank in range(2))
    assert [bare_host(node) for node in nodes] == ["gpu", "gpu"]
    before = RejectedNode(rank=0, host="gpu", address="10.0.0.12", holder="gpu")
    assert not list(duplicate_rank(Fleet(nodes=nodes, expected=2, doubles=(before,)), ZERO))
