"""The small parts of the network's probe, over made-up trees of /proc and /etc. Whole hosts are in tests/real/test_network.py."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.network import Network
from ddpdoctor.knowledge.launchers import split_endpoint
from ddpdoctor.probes import network
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.taken_ports import port_holders

ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def tree(root: Path, files: dict[str, str]) -> Context:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Context("python", root=root, environ={})


def probed(context: Context) -> Network:
    found = network.probe(context)
    assert isinstance(found, Network)
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("node01:29400", ("node01", 29400)),
        ("node01", ("node01", None)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("[fe80::1]:29400", ("fe80::1", 29400)),
        ("[::1]", ("::1", None)),
        ("", ("", None)),
        ("a:b:c", ("a:b:c", None)),
        ("node01:x", ("node01:x", None)),
    ],
)
def test_endpoints(text: str, wanted: tuple[str, int]) -> None:
    assert split_endpoint(text) == wanted


def test_the_route_with_the_lowest_metric_is_the_default(tmp_path: Path) -> None:
    rows = (
        "docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
        "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
        "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth9\t00000000\t0100000A\t0002\t0\t0\t1\t00000000\t0\t0\t0\n"
    )
    assert probed(tree(tmp_path, {"proc/net/route": ROUTES + rows})).default_interface == "eth0"


def test_a_host_with_ipv6_alone_has_a_default_too(tmp_path: Path) -> None:
    zeros = "0" * 32
    rows = (
        f"{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200       lo\n"
        f"{zeros} 00 {zeros} 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"
    )
    context = tree(tmp_path, {"proc/net/route": ROUTES, "proc/net/ipv6_route": rows})
    assert probed(context).default_interface == "eth0"


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    found = probed(tree(tmp_path, {}))
    for fact in (found.default_interface, found.ephemeral_range, found.reserved_ports, found.hosts_lines):
        assert isinstance(fact, Unknown)
    assert found.ipv6_disabled is True
    assert found.interfaces


def test_lines_of_the_hosts_file_that_name_this_host(tmp_path: Path) -> None:
    name = socket.gethostname()
    text = f"127.0.0.1 localhost\n127.0.1.1\t{name}.lan {name} # ours\n10.0.0.9 {name}2\n# {name}\n"
    found = probed(tree(tmp_path, {"etc/hosts": text, "proc/sys/net/ipv4/ip_local_port_range": "1024\t65000\n"}))
    assert found.hosts_lines == (f"127.0.1.1 {name}.lan {name}",)
    assert found.ephemeral_range == (1024, 65000)


@pytest.mark.parametrize("port", ["", "0", "70000", "-1", "x", "29500"])
def test_a_master_port_that_is_none(port: str, tmp_path: Path) -> None:
    context = tree(tmp_path, {})
    context.environ["MASTER_PORT"] = port
    assert probed(context).wanted_ports == (29400, 29500)


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({"PET_MASTER_PORT": "1234"}, (29400, 29500, 1234)),
        ({"PET_RDZV_ENDPOINT": "localhost:1234"}, (29400, 29500, 1234)),
        ({"PET_RDZV_ENDPOINT": "localhost:0"}, (29400, 29500)),
        ({"PET_RDZV_ENDPOINT": "localhost:2379", "PET_RDZV_BACKEND": "etcd-v2"}, (29400, 29500)),
    ],
)
def test_the_ports_that_torchruns_settings_name(
    settings: dict[str, str], ports: tuple[int, ...], tmp_path: Path
) -> None:
    context = tree(tmp_path, {})
    context.environ.update(settings)
    found = probed(context)
    assert found.wanted_ports == ports
    assert (found.rendezvous is None) is ("localhost:2379" in settings.values() or "PET_MASTER_PORT" in settings)


def test_the_table_of_sockets(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    tcp = head + (
        "   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n"
        "   1: 0100007F:733C 0100007F:D431 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n"
        "   2: 0B00000A:733C 0C00000A:0016 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n"
        "   3: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0\n"
    )
    tcp6 = head + (
        "   0: 00000000000000000000000001000000:733C 00000000000000000000000000000000:0000 0A 00000000:00000000"
        " 00:00000000 00000000     0        0 4714 1 0\n"
    )
    context = tree(tmp_path, {"proc/net/tcp": tcp, "proc/net/tcp6": tcp6, "proc/12/comm": "python\n"})
    (tmp_path / "proc/12/fd").mkdir()
    (tmp_path / "proc/12/fd/3").symlink_to("socket:[4711]")
    (tmp_path / "proc/12/cmdline").write_text("python\0train.py\0--api-key=abcdef0123\0")
    found = port_holders(context, [29500])
    assert isinstance(found, tuple)
    assert [(row.address, row.listening, row.pid) for row in found] == [
        ("127.0.0.1", True, 12),
        ("10.0.0.11", False, 0),
        ("::1", True, 0),
    ]
    assert found[0].process == "python"
    assert found[0].command.startswith("python train.py")
    assert "abcdef0123" not in found[0].command


@pytest.mark.parametrize(("uid", "ours"), [(os.geteuid(), True), (os.geteuid() + 1, False)])
def test_what_a_ddpdoctor_of_ours_has_started_lies_in_nobodys_way(tmp_path: Path, uid: int, ours: bool) -> None:
    """A rank of `smoke` at the master's port. Another user's word for it counts for nothing."""
    row = f"   0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  {uid}        0 4711 1 0\n"
    files = {"proc/net/tcp": "  sl  local_address\n" + row, "proc/12/environ": "DDPDOCTOR_INQUIRY=1\0RANK=0\0"}
    context = tree(tmp_path, files)
    (tmp_path / "proc/12/fd").mkdir()
    (tmp_path / "proc/12/fd/3").symlink_to("socket:[4711]")
    found = port_holders(context, [29500])
    assert isinstance(found, tuple)
    assert [(row.pid, row.same_job) for row in found] == [(12, ours)]


def test_a_resolver_that_hangs_does_not_hold_us(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "RESOLVER_SECONDS", 0.2)
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: over.wait(30) and [])
    monkeypatch.setattr(socket, "getfqdn", lambda: str(over.wait(30)))
    started = time.monotonic()
    context = tree(tmp_path, {})
    context.environ.update(MASTER_ADDR="node-0", PET_RDZV_ENDPOINT="node-1:29400")
    found = probed(context)
    assert time.monotonic() - started < 2
    assert found.fqdn == found.hostname
    # What a host calls itself is compared with other hosts, and nobody knows it.
    assert found.own_name == Unknown("no answer within 0 s")
    for one in (found.master, found.rendezvous):
        assert one is not None
        assert not isinstance(one, Unknown)
        assert "no answer within" in one.error
    over.set()


@pytest.mark.parametrize("hostname", ["n" * 64, "a..b"])
def test_a_hostname_that_can_be_no_name_in_dns_fails_no_probe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hostname: str
) -> None:
    """The kernel takes 64 characters, and IDNA 63 in a label, of which none may be empty."""
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    found = probed(tree(tmp_path, {}))
    assert (found.hostname, found.fqdn) == (hostname, hostname)
    assert found.own_name.error
