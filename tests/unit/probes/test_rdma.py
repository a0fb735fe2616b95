"""InfiniBand and RoCE ports as sysfs shows them, from trees laid out as the kernel's documentation and drivers do."""

from __future__ import annotations

import sys
from pathlib import Path

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.rdma import Gid, RdmaPort
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.rdma import probe

EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:a288:c2ff:fe3e:7010"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:000b"


def look(root: Path) -> tuple[RdmaPort, ...]:
    ports = probe(Context(sys.executable, environ={}, root=root)).ports
    assert isinstance(ports, tuple)
    return ports


def lay(root: Path, device: str, files: dict[str, str], port: int = 1) -> None:
    for name, text in files.items():
        path = root / "sys/class/infiniband" / device / "ports" / str(port) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def active(link_layer: str = "InfiniBand") -> dict[str, str]:
    return {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": link_layer,
    }


def test_a_host_without_such_devices_has_no_ports(tmp_path: Path) -> None:
    assert look(tmp_path) == ()


def test_a_port_tells_state_rate_counters_and_addresses(tmp_path: Path) -> None:
    lay(
        tmp_path,
        "mlx5_0",
        active("Ethernet")
        | {
            "counters/symbol_error": "12",
            "counters/link_downed": "0",
            "counters/port_rcv_data": "123456789",
            "hw_counters/local_ack_timeout_err": "7",
            "gids/0": LINK_LOCAL,
            "gids/1": EMPTY,
            "gids/3": IPV4,
            "gid_attrs/types/0": "IB/RoCE v1",
            "gid_attrs/types/3": "RoCE v2",
            "gid_attrs/ndevs/3": "eth0",
        },
    )
    (tmp_path / "sys/class/infiniband/mlx5_0/device/net/eth0").mkdir(parents=True)
    assert look(tmp_path) == (
        RdmaPort(
            device="mlx5_0",
            port=1,
            link_layer="Ethernet",
            state="ACTIVE",
            physical="LinkUp",
            rate="400 Gb/sec (4X NDR)",
            counters=(("symbol_error", 12), ("local_ack_timeout_err", 7)),
            gids=(
                Gid(index=0, gid=LINK_LOCAL, type="IB/RoCE v1"),
                Gid(index=3, gid=IPV4, type="RoCE v2", interface="eth0"),
            ),
            interfaces=("eth0",),
        ),
    )


def test_devices_and_ports_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for device in ("mlx5_10", "mlx5_9"):
        for port in (2, 1):
            lay(tmp_path, device, active(), port)
    assert [(one.device, one.port) for one in look(tmp_path)] == [
        ("mlx5_9", 1),
        ("mlx5_9", 2),
        ("mlx5_10", 1),
        ("mlx5_10", 2),
    ]


def test_counters_that_older_drivers_keep_beside_the_ports_are_found(tmp_path: Path) -> None:
    lay(tmp_path, "mlx5_0", active())
    folder = tmp_path / "sys/class/infiniband/mlx5_0/hw_counters"
    folder.mkdir()
    (folder / "packet_seq_err").write_text("3\n")
    assert look(tmp_path)[0].counters == (("packet_seq_err", 3),)


def test_a_virtual_device_without_files_is_a_port_that_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/rxe0/ports/1").mkdir(parents=True)
    assert look(tmp_path) == (RdmaPort(device="rxe0", port=1, link_layer="", state=""),)


def test_a_folder_that_is_none_gives_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "sys/class/infiniband"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert probe(Context(sys.executable, environ={}, root=tmp_path)).ports == Unknown(
        "/sys/class/infiniband: Not a directory"
    )
