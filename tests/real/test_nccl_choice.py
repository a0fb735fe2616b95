"""Our reading of NCCL's rules against libnccl's own answer, in hosts made of network namespaces.

libnccl is 200 MB and more, so this runs where `DDPDOCTOR_LIBNCCL` names one or several (with ":" between them):
`pip download --no-deps nvidia-nccl-cu13==2.28.9`, unzip, and give nvidia/nccl/lib/libnccl.so.2. It needs no GPU.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpdoctor.facts.nccl import Nccl
from tests.real.namespaces import Host, network
from tests.real.test_network import look

LIBRARIES = [Path(one) for one in os.environ.get("DDPDOCTOR_LIBNCCL", "").split(":") if one]

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not LIBRARIES, reason="DDPDOCTOR_LIBNCCL names no libnccl.so.2"),
]

VALUES = (
    "", "e", "e,foo", "foo,e", "^e", "^", "=", "=eth0", "=eth", "^=eth0", "^e,d", "eth0:1", "lo", "^lo,docker,br-", "eth9", "d",
    "docker", "virbr0,eth", "=ib0,eth0", ",,eth", "^docker,lo,virbr,br", "wg",
)  # fmt: skip


def only_eth0(host: Host) -> None:
    """Nothing more than there is."""


def bridge(host: Host, name: str, address: str, *, up: bool = True) -> None:
    host.ip(f"link add {name} type bridge")
    host.ip(f"address add {address} dev {name}{' nodad' if ':' in address else ''}")
    host.ip(f"link set {name} {'up' if up else 'down'}")


def containers(host: Host) -> None:
    bridge(host, "docker0", "172.17.0.1/16")
    bridge(host, "br-5c1d0f6ab3e2", "172.18.0.1/16")
    bridge(host, "virbr0", "192.168.122.1/24")


def eth0_down(host: Host) -> None:
    containers(host)
    host.ip("link set br-5c1d0f6ab3e2 down")
    host.ip("link set eth0 down")


def infiniband(host: Host) -> None:
    bridge(host, "ib0", "10.10.0.11/24")
    bridge(host, "wg0", "10.8.0.2/24")


def only_virbr(host: Host) -> None:
    host.ip("link delete eth0")
    bridge(host, "virbr0", "192.168.122.1/24")


def ipv6(host: Host) -> None:
    host.ip("address flush dev eth0")
    bridge(host, "br-6", "fd00:6::1/64")
    host.ip("address add fd00:7::1/64 dev eth0 nodad")


def alias(host: Host) -> None:
    host.ip("address add 10.78.0.1/24 dev eth0 label eth0:1")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: str(path.parent)[-40:])
@pytest.mark.parametrize("arrange", [only_eth0, containers, eth0_down, infiniband, only_virbr, ipv6, alias])
def test_prediction_is_what_nccl_answers(library: Path, arrange: object) -> None:
    assert library.is_file(), f"there is no {library}"
    assert callable(arrange)
    with network("n1") as (host,):
        arrange(host)
        for value in VALUES:
            agrees(host, library, NCCL_SOCKET_IFNAME=value)
        for family in ("AF_INET", "AF_INET6"):
            agrees(host, library, NCCL_SOCKET_FAMILY=family)
        for comm_id in ("10.77.0.99:5000", "172.18.0.7:5000", "192.168.122.9:5000"):
            agrees(host, library, NCCL_COMM_ID=comm_id)


def agrees(host: Host, library: Path, **settings: str) -> None:
    snapshot = look(host, LD_LIBRARY_PATH=str(library.parent), **settings)
    assert isinstance(snapshot.nccl, Nccl), snapshot.nccl
    found = snapshot.nccl
    assert found.library == str(library)
    said = (found.answer_interface, found.answer_address)
    assert (found.predicted_interface, found.predicted_address) == said, (settings, found, snapshot.network)
    assert (found.answer_status == 0) is (found.predicted_interface is not None), (settings, found)
