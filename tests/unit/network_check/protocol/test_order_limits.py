"""What a node does at node 0's word: in the limits of a test, and towards peers alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from ddpdoctor.facts.fleet import Cell
from ddpdoctor.facts.network import Interface, Network, Resolution
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.network_check.analysis.fault_location import COUNTED_DIALS
from ddpdoctor.network_check.job import NetcheckJob
from ddpdoctor.network_check.protocol.agent import HubGoneError, check_assigned_rank
from ddpdoctor.network_check.protocol.messages import (
    Collect,
    Count,
    Dial,
    ListenAddress,
    Measure,
    Open,
    Order,
    Peer,
    Welcome,
)
from ddpdoctor.network_check.protocol.order_limits import MAX_ORDERS, Master, OrderLimits, RefusedOrderError

NEAR, FAR = "10.0.0.12", "10.0.0.11"


def facts(*addresses: str) -> Snapshot:
    return Snapshot(
        host="n",
        network=Network(
            hostname="n",
            fqdn="n",
            own_name=Resolution(name="n"),
            interfaces=(Interface(name="lo", addresses=("127.0.0.1/8",)), Interface(name="eth0", addresses=addresses)),
        ),
    )


def limits(
    far: str = FAR, near: str = NEAR, node: int = 1, nnodes: int = 3, more: Iterable[str] = (), *, proved: bool = False
) -> OrderLimits:
    """Of a node that has the address `near` and `more`."""
    master = Master(address=far, own_address=near, host=far, port=29500, proved=proved)
    welcome = Welcome(node_rank=node, nnodes=nnodes, run="00", proof="", wait=1.0)
    return OrderLimits(facts(f"{near}/24", *more), master, welcome)


def peer(address: str, ports: Sequence[int] = (40000,), node: int = 2, kind: str = "route") -> Peer:
    return Peer(node, "n", (ListenAddress(kind, address, tuple(ports)),))


def dial(*peers: Peer) -> Dial:
    return Dial(peers=peers, seconds=1.0)


def cell(address: str, own: OrderLimits, port: int = 40000, kind: str = "route") -> Cell | None:
    """What a peer at that address counts as that isn't dialled; None where it is."""
    own.check(dial(peer(address, (port,), kind=kind)))
    refused = own.refused.get((2, kind))
    return refused.cell if refused else None


# --- whom it dials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.0.1.1",
        "::1",
        "::ffff:127.0.0.1",
        NEAR,
        f"::ffff:{NEAR}",
        "172.17.0.1",
    ],
)
@pytest.mark.parametrize("kind", ["route", "nccl"])
def test_its_own_addresses_are_another_host_to_its_peers(address: str, kind: str) -> None:
    assert cell(address, limits(more=("172.17.0.1/16",)), kind=kind) is Cell.OTHER


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "240.0.0.1",
        "localhost",
        "127.1",
        "0177.0.0.1",
        "10.0.0.13/24",
        "no address",
    ],
)
@pytest.mark.parametrize("proved", [False, True])
def test_what_is_nobodys_address_is_dialled_for_nobody(address: str, proved: bool) -> None:
    assert cell(address, limits(proved=proved)) is Cell.NOT_TRIED


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2001:4860::8", "64:ff9b::7f00:1", "2002:7f00:1::1", "169.254.3.4", "fe80::13%eth0"]
)
def test_without_a_token_it_dials_in_the_jobs_networks_alone(address: str) -> None:
    assert cell(address, limits()) is Cell.NOT_TRIED


@pytest.mark.parametrize(("port", "dialled"), [(22, False), (80, False), (1023, False), (1024, True), (65535, True)])
def test_no_node_listens_on_a_servers_port(port: int, dialled: bool) -> None:
    assert (cell("10.0.0.13", limits(), port) is None) is dialled


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("10.0.0.13", limits()),
        ("10.7.0.13", limits()),
        ("192.168.4.5", limits()),
        ("100.64.3.2", limits()),
        ("fd77::13", limits()),
        ("fd77::13", limits("fd77::11", "fd77::12")),
        # Behind another router's translation, node 0 has a public address.
        ("192.168.0.7", limits("203.0.113.11", "192.168.0.6")),
        ("203.0.113.13", limits("203.0.113.11", "203.0.113.12")),
        ("198.51.100.7", limits(more=("198.51.100.6/25",))),
        ("198.51.100.7", limits(proved=True)),
        ("2001:db8::13", limits("2001:db8::11", "2001:db8::12")),
        # Hosts that are connected directly give themselves such addresses.
        ("169.254.3.4", limits(more=("169.254.9.9/16",))),
        ("169.254.3.4", limits("169.254.3.3", "169.254.3.5", more=("169.254.3.5/16",))),
        ("fe80::13%eth0", limits("fe80::11%eth0", "fe80::12%eth0")),
        # All nodes on one host.
        ("127.0.0.1", limits("127.0.0.1", "127.0.0.1")),
        ("127.0.0.2", limits("127.0.0.1", "127.0.0.1")),
        ("127.0.1.1", limits("127.0.0.1", "127.0.0.1")),
        ("::1", limits("::1", "::1")),
        (NEAR, limits(NEAR, NEAR)),
    ],
    ids=lambda value: value if isinstance(value, str) else "job",
)
def test_peers_are_dialled_wherever_they_are(address: str, own: OrderLimits) -> None:
    assert cell(address, own) is None


def test_on_one_host_also_where_nccl_and_gloo_would_go() -> None:
    own = limits("127.0.0.1", "127.0.0.1", more=(f"{NEAR}/24",))
    places = (
        ListenAddress("route", "127.0.0.1", (40000,)),
        ListenAddress("nccl", NEAR, (40001,)),
        ListenAddress("gloo", "127.0.1.1", (40002,)),
    )
    own.check(dial(Peer(2, "n", places)))
    assert own.refused == {}


def test_a_peer_elsewhere_is_not_at_the_addresses_of_node_0() -> None:
    """Node 0 itself, where a node of the job says that NCCL would take an address which node 0 has, too."""
    own = limits(FAR, FAR, node=0, more=("172.17.0.1/16",))
    places = (
        ListenAddress("route", NEAR, (40000,)),
        ListenAddress("nccl", "172.17.0.1", (40001,)),
        ListenAddress("gloo", "127.0.0.1", (40002,)),
    )
    own.check(dial(Peer(2, "n", places)))
    assert {kind: one.cell for (_, kind), one in own.refused.items()} == {"nccl": Cell.OTHER, "gloo": Cell.OTHER}


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        ((dial(peer("10.0.0.13", node=1)),), "node 1 is no peer of node 1 of 3"),
        ((dial(peer("10.0.0.13", node=3)),), "node 3 is no peer of node 1 of 3"),
        ((dial(*[peer("10.0.0.13")] * 1000),), "node 2 was named twice"),
        ((dial(peer("10.0.0.13"), peer("10.0.0.14")),), "node 2 was named twice"),
        (
            (dial(peer("10.0.0.13", (40000, 40001), kind="nccl")),),
            "more ports of the peers were to be dialled than 320",
        ),
        ((dial(peer("10.0.0.13")), dial(peer("10.0.0.14"))), "is said to listen elsewhere than before"),
        ((dial(peer("10.0.0.13")), dial(peer("10.0.0.13", (40001,)))), "is said to listen elsewhere than before"),
        ((dial(peer("10.0.0.13")), dial(peer("10.0.0.11", node=0))), "is said to listen elsewhere than before"),
        ((dial(), dial(peer("10.0.0.13"))), "is said to listen elsewhere than before"),
        ((Measure(peer=peer("10.0.0.13"), seconds=0.25),), "is said to listen elsewhere than before"),
    ],
    ids=lambda value: value if isinstance(value, str) else "job",
)
def test_the_first_order_names_all_places_of_all_peers(orders: Sequence[Order], words: str) -> None:
    own = limits()
    for order in orders[:-1]:
        own.check(order)
    with pytest.raises(RefusedOrderError, match=words):
        own.check(orders[-1])


def test_a_port_scan_of_many_peers_is_cut() -> None:
    own = limits(nnodes=200)
    with pytest.raises(RefusedOrderError, match="than 600"):
        own.check(dial(*(peer(f"10.0.1.{node}", range(40000, 40010), node) for node in range(2, 200))))


@pytest.mark.parametrize("nnodes", [2, 3, 32, 33, 106, 107, 512, 4096])
def test_what_a_hub_orders_is_carried_out(nnodes: int) -> None:
    """As `reach_phase` and `network_programme` give the orders, whatever the number of nodes."""
    count = max(3, min(10, 320 // nnodes))

    def places(node: int) -> tuple[ListenAddress, ...]:
        address = f"10.1.{node // 250}.{1 + node % 250}"
        return ListenAddress("route", address, tuple(range(40000, 40000 + count))), ListenAddress(
            "nccl", "192.168.0.9", (50000,)
        )

    peers = [Peer(node, f"n{node}", places(node)) for node in range(nnodes) if node != 1]
    own = limits(nnodes=nnodes)
    own.check(Open(ports=count))
    own.check(dial(*peers))
    for _ in range(3):
        own.check(Count())
    for _ in range(COUNTED_DIALS):
        own.check(
            dial(
                *(
                    Peer(peer.node, peer.host, (ListenAddress("route", peer.places[0].address, (40001,)),))
                    for peer in peers
                )
            )
        )
    for _ in range(16 + 64):
        there = peers[-1].places[0]
        each = tuple(ListenAddress("route", there.address, (port,)) for port in there.ports)
        own.check(Measure(peer=Peer(peers[-1].node, "n", each), seconds=0.25))
    for backend in ("gloo", "nccl"):
        own.check(Collect(backend=backend, master=FAR, port=1, rank=1, world_size=nnodes, seconds=60))


# --- how often, how long ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [Open(ports=3), dial(), Count(), Measure(peer=None, seconds=0.25)], ids=str)
def test_orders_without_an_end_are_refused(order: Order) -> None:
    own = limits()
    for _ in range(MAX_ORDERS[type(order)]):
        own.check(order)
    with pytest.raises(RefusedOrderError, match="was ordered more than"):
        own.check(order)


def test_links_are_measured_for_so_long_and_no_longer() -> None:
    own = limits()
    own.check(dial(peer("10.0.0.13")))
    own.measured_seconds = 61.0
    with pytest.raises(RefusedOrderError, match="for more than 60 s"):
        own.check(Measure(peer=peer("10.0.0.13"), seconds=0.25))


# --- collectives --------------------------------------------------------------------------------------------------------


def collect(rank: int, world_size: int, backend: str = "gloo") -> Collect:
    return Collect(backend=backend, master="10.0.0.99", port=1, rank=rank, world_size=world_size, seconds=60)


@pytest.mark.parametrize("order", [collect(0, 3), collect(1, 4), collect(2, 2), collect(1, 4096)], ids=str)
def test_a_node_has_no_rank_but_one_of_its_job_and_hosts_no_store(order: Collect) -> None:
    with pytest.raises(RefusedOrderError, match="node 1 of 3 was to be rank"):
        limits().check(order)


def test_each_backend_runs_once() -> None:
    own = limits()
    own.check(collect(1, 3))
    own.check(collect(1, 2, "nccl"))
    with pytest.raises(RefusedOrderError):
        own.check(collect(1, 3, "nccl"))


# --- which node it is ---------------------------------------------------------------------------------------------------


def job(rank: int | None, nnodes: int = 3) -> NetcheckJob:
    return NetcheckJob(master=FAR, port=29500, nnodes=nnodes, node_rank=rank)


def seat(rank: int, nnodes: int = 3) -> Welcome:
    return Welcome(node_rank=rank, nnodes=nnodes, run="00", proof="", wait=1.0)


@pytest.mark.parametrize(
    ("welcome", "given", "own_hub"),
    [(seat(1), job(1), False), (seat(2), job(None), False), (seat(0), job(0), True), (seat(0), job(None), True)],
)
def test_a_rank_that_this_node_may_have(welcome: Welcome, given: NetcheckJob, own_hub: bool) -> None:
    check_assigned_rank(welcome, given, own_hub=own_hub)


@pytest.mark.parametrize(
    ("welcome", "given", "own_hub"),
    [
        (seat(2), job(1), False),
        (seat(0), job(None), False),
        (seat(0), job(0), False),
        (seat(3), job(None), False),
        (seat(1, 4096), job(1), False),
        (seat(1), job(None), True),
    ],
)
def test_a_rank_that_no_hub_of_this_job_gives(welcome: Welcome, given: NetcheckJob, own_hub: bool) -> None:
    with pytest.raises(HubGoneError, match="it is not ours"):
        check_assigned_rank(welcome, given, own_hub=own_hub)
