"""Our reading of NCCL's rules against libnccl's own answer, in hosts made of network namespaces.

libnccl is 200 MB and more, so this runs where `DDPDOCTOR_LIBNCCL` names one or several (with ":" between them), or where
torch came with one: `pip download --no-deps nvidia-nccl-cu13==2.28.9`, unzip, and give nvidia/nccl/lib/libnccl.so.2. It
needs no GPU. NCCL listens on the address that it takes, so it is asked in namespaces alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.facts.nccl import Nccl
from ddpdoctor.facts.snapshot import Snapshot
from tests.support.libnccl import HOW_TO_GET_ONE, real_libraries
from tests.support.namespaces import Host, network

LIBRARIES = real_libraries()

pytestmark = [
    pytest.mark.root,
    pytest.mark.tool("ip", "unshare"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not LIBRARIES, reason=HOW_TO_GET_ONE),
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


CASES = (
    *({"NCCL_SOCKET_IFNAME": value} for value in VALUES),
    *({"NCCL_SOCKET_FAMILY": one} for one in ("AF_INET", "AF_INET6")),
    *(
        {"NCCL_COMM_ID": one}
        for one in ("10.77.0.99:5000", "172.18.0.7:5000", "192.168.122.9:5000", "[fd00:7::9]:5000")
    ),
    {"NCCL_COMM_ID": "172.18.0.7:5000", "NCCL_SOCKET_IFNAME": "eth0"},
    {"NCCL_SOCKET_FAMILY": "AF_INET6", "NCCL_SOCKET_IFNAME": "eth"},
)

ASK = """
import json, sys, msgspec
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot
for settings in json.loads(sys.argv[1]):
    snapshot = take_snapshot(Context(sys.executable, environ=settings), ("environment", "network", "nccl"))
    print(msgspec.json.encode(snapshot).decode(), flush=True)
"""


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: str(path.parent)[-40:])
@pytest.mark.parametrize("arrange", [only_eth0, containers, eth0_down, infiniband, only_virbr, ipv6, alias])
def test_prediction_is_what_nccl_answers(library: Path, arrange: Callable[[Host], None]) -> None:
    assert library.is_file(), f"there is no {library}"
    with network("n1") as (host,):
        arrange(host)
        host.run("sleep", "2")  # The kernel takes its time over carriers and IPv6 addresses.
        asked = [{**case, "LD_LIBRARY_PATH": str(library.parent), "PATH": os.environ["PATH"]} for case in CASES]
        answers = host.run(sys.executable, "-c", ASK, json.dumps(asked), seconds=300).stdout.splitlines()
        assert len(answers) == len(CASES)
        for case, answer in zip(CASES, answers, strict=True):
            snapshot = msgspec.json.decode(answer, type=Snapshot)
            found = snapshot.nccl
            assert isinstance(found, Nccl)
            assert found.library == str(library)
            said = (found.answer_interface, found.answer_address)
            assert (found.predicted_interface, found.predicted_address) == said, (case, found, snapshot.network)
            assert (found.answer_status == 0) is (found.predicted_interface is not None), (case, found)
