"""Another user of node 0's host takes the master's port first, where there is no token: what a node of root's then does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from ddpdoctor.network_check.protocol.messages import Collect, Dial, ListenAddress, Measure, Message, Open, Peer, Train
from tests.support.command import ROOT
from tests.support.namespaces import Host, network
from tests.support.netcheck_hosts import MASTER, Ran, Running
from tests.support.other_users import User, python_for_all

pytestmark = [pytest.mark.root, pytest.mark.tool("ip", "unshare", "setpriv")]

METADATA = "169.254.169.254"
SECRET = "SECRET-4711"
PORT = 8765
NEIGHBOUR = "10.77.0.13"

SERVICE = """
import socket, sys
one = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
one.bind((sys.argv[1], int(sys.argv[2])))
one.listen(1000)
print("listening", flush=True)
while True:
    there, name = one.accept()
    print(sys.argv[1], sys.argv[2], name[0], flush=True)
    there.sendall(b"SECRET-4711 of a service\\r\\n")
    there.close()
"""
"""Says a secret to whoever dials, and prints who did."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """n1 is node 0's, n2 root's, and n3 no node: it has the cloud's metadata service."""
    with network("n1", "n2", "n3") as made:
        made[2].ip(f"address add {METADATA}/32 dev lo")
        made[1].ip(f"route add {METADATA} via {NEIGHBOUR}")
        made[1].ip("link add docker0 type bridge")
        made[1].ip("address add 172.17.0.1/16 dev docker0")
        made[1].ip("link set docker0 up")
        yield made


class Services:
    """On some addresses and ports of some hosts."""

    def __init__(self, *places: tuple[Host, str, int]) -> None:
        self.processes = [
            host.start(sys.executable, "-c", SERVICE, address, str(port)) for host, address, port in places
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"

    def end(self) -> list[str]:
        """Ends them; who was dialled, and by whom."""
        for one in self.processes:
            one.kill()
        return [line for process in self.processes for line in process.communicate()[0].splitlines()]


def commanded(
    hosts: Sequence[Host], eve: User, orders: Sequence[Message], name: str = "netcheck", *more: str
) -> tuple[Ran, list[Any]]:
    """How the node of root's on n2 ended that met Eve in place of node 0, and what she was answered."""
    python, settings = python_for_all()
    as_eve = ("setpriv", f"--reuid={eve.uid}", f"--regid={eve.gid}", "--clear-groups")
    words = hosts[0].command(*as_eve, python, str(ROOT / "tests" / "support" / "false_hub.py"), MASTER, "29500")
    said = b"\n".join(map(msgspec.json.encode, orders)).decode()
    hub = subprocess.Popen(
        words, env=settings | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, stdin=-1, stdout=-1, text=True
    )
    assert hub.stdin is not None
    assert hub.stdout is not None
    hub.stdin.write(said)
    hub.stdin.close()
    hub.stdin = None
    try:
        assert hub.stdout.readline() == "listening\n"
        given = ("--json", "--master-addr", MASTER, "--nnodes", "2", "--node-rank", "1", "--wait", "8", *more)
        ran = Running(hosts[1], given, {}, name).end(120)
    finally:
        hub.kill()
        heard = hub.communicate()[0]
    assert SECRET not in heard
    first, *answers = heard.splitlines()
    assert "hostfacts" in first
    return ran, [json.loads(answer) for answer in answers if answer]


def dial(address: str, *ports: int, kind: str = "route") -> Dial:
    return Dial(peers=(Peer(0, "n1", (ListenAddress(kind, address, ports),)),), seconds=1.0, again=False)


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("127.0.0.1", PORT),
        ("10.77.0.12", PORT),
        ("172.17.0.1", PORT),
        ("::ffff:127.0.0.1", PORT),
        (METADATA, PORT),
        (METADATA, 80),
        (NEIGHBOUR, 22),
    ],
)
@pytest.mark.parametrize("kind", ["route", "nccl"])
def test_it_dials_no_service_of_its_own_and_none_of_the_cloud(
    hosts: list[Host], eve: User, address: str, port: int, kind: str
) -> None:
    at = hosts[2] if address in (METADATA, NEIGHBOUR) else hosts[1]
    services = Services((at, address, port))
    try:
        _, answers = commanded(hosts, eve, [dial(address, port, kind=kind)], "netcheck", "--quick")
    finally:
        dialled = services.end()
    assert dialled == []
    (answer,) = answers
    assert set("".join(met["cells"] for met in answer["met"])) <= {"-", "w"}


def test_it_scans_no_ports_and_floods_nobody(hosts: list[Host], eve: User) -> None:
    """A host of the subnet could be a peer: it is dialled where it is first said to listen, and nowhere else."""
    services = Services(*((hosts[2], NEIGHBOUR, PORT + at) for at in range(4)))
    orders = [
        dial(NEIGHBOUR, PORT),
        dial(NEIGHBOUR, PORT + 1),
        Dial(peers=(Peer(0, "n1", (ListenAddress("nccl", NEIGHBOUR, (PORT + 2,)),)),), seconds=1.0),
        Dial(peers=dial(NEIGHBOUR, PORT).peers * 1000, seconds=1.0),
        Measure(peer=Peer(0, "n1", (ListenAddress("route", NEIGHBOUR, (PORT + 3,)),)), seconds=1.0),
        *[dial(NEIGHBOUR, PORT)] * 20,
        *[Open(ports=10)] * 3,
    ]
    try:
        ran, answers = commanded(hosts, eve, orders, "netcheck", "--quick")
    finally:
        dialled = services.end()
    assert {line.split()[1] for line in dialled} == {str(PORT)}
    assert len(dialled) < 10
    assert answers[0]["met"][0]["cells"] == "w"
    assert [answer["type"] for answer in answers[1:5]] == ["orderfailed"] * 4
    assert [answer["type"] for answer in answers[-3:]] == ["opened", "orderfailed", "orderfailed"]
    # Its user is told.
    assert "node 0 ordered what none of ours does, and it was not done: " in ran.stderr


def test_its_collectives_go_to_the_master_that_it_was_given(hosts: list[Host], eve: User) -> None:
    services = Services((hosts[2], NEIGHBOUR, PORT))
    elsewhere = {"backend": "gloo", "master": NEIGHBOUR, "port": PORT, "seconds": 8.0}
    orders = [Collect(rank=0, world_size=2, **elsewhere), Collect(rank=1, world_size=2, **elsewhere)]
    try:
        _, answers = commanded(hosts, eve, orders)
    finally:
        dialled = services.end()
    assert dialled == []
    host, peer = answers
    # Rank 0 would listen for others.
    assert host["type"] == "orderfailed"
    assert (peer["type"], peer["ok"]) == ("collected", False)


SMOKE = Train(
    backend="gloo",
    first_rank=1,
    nproc=1,
    world_size=2,
    node_rank=1,
    nnodes=2,
    master=NEIGHBOUR,
    port=PORT,
    stages=("import", "device", "rendezvous"),
    seconds=8.0,
    import_seconds=20.0,
)


def test_its_smoke_training_is_the_one_that_was_asked_for(hosts: list[Host], eve: User) -> None:
    services = Services((hosts[2], NEIGHBOUR, PORT))
    changed: list[dict[str, Any]] = [
        {"nproc": 100, "world_size": 101},
        {"first_rank": 0},
        {"node_rank": 0},
        {"nnodes": 3},
        {"stages": ("../../../tmp/x",)},
        {},
        {},
    ]
    try:
        orders = [msgspec.structs.replace(SMOKE, **one) for one in changed]
        _, answers = commanded(hosts, eve, orders, "smoke", "--nproc", "1", "--backend", "gloo")
    finally:
        dialled = services.end()
    assert dialled == []
    assert [answer["type"] for answer in answers] == ["orderfailed"] * 5 + ["trainingdone", "orderfailed"]
    assert "it is to run 100 ranks, and 1 at most are planned here" in answers[0]["why"]
