"""The PCI probe over made-up sysfs trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.probes import pci
from ddpdoctor.probes.context import Context

GPU = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "revision": "0xa1", "numa_node": "1"}
BRIDGE = {"vendor": "0x1000", "device": "0xc030", "class": "0x060400", "max_link_speed": "32.0 GT/s PCIe"}


def add(root: Path, nested: str, driver: str = "", config: bytes = b"", **files: str) -> Path:
    """Adds a device at e.g. "0000:00:01.0/0000:01:00.0", as the kernel lays it out."""
    folder = root / "sys/devices/pci0000:00" / nested
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    if config:
        (folder / "config").write_bytes(config)
    if driver:
        (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / folder.name).symlink_to(f"../../../devices/pci0000:00/{nested}")
    return folder


def look(root: Path) -> Pci:
    found = pci.probe(Context("python", root=root))
    assert isinstance(found, Pci)
    return found


def only_gpu(root: Path) -> PciDevice:
    (gpu,) = look(root).nvidia_gpus
    return gpu


def capabilities(acs_control: int | None) -> bytes:
    """4 KiB of configuration space with an AER capability at 0x100 and, if asked for, ACS at 0x148."""
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 0x2 << 16 | (0x148 if acs_control is not None else 0) << 20).to_bytes(4, "little")
    if acs_control is not None:
        config[0x148:0x14C] = (0x000D | 0x1 << 16).to_bytes(4, "little")
        config[0x14E:0x150] = acs_control.to_bytes(2, "little")
    return bytes(config)


def test_gpu_below_a_bridge(tmp_path: Path) -> None:
    add(tmp_path, "0000:00:01.0", driver="pcieport", **BRIDGE, max_link_width="16")
    add(
        tmp_path,
        "0000:00:01.0/0000:01:00.0",
        driver="nvidia",
        **GPU,
        current_link_speed="2.5 GT/s PCIe",
        max_link_speed="32.0 GT/s PCIe",
        current_link_width="8",
        max_link_width="16",
        aer_dev_fatal="Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 2",
        aer_dev_nonfatal="Undefined 0\nTOTAL_ERR_NONFATAL 0",
        aer_dev_correctable="RxErr 7\nTOTAL_ERR_COR 71",
    )
    found = look(tmp_path)
    assert [device.address for device in found.devices] == ["0000:00:01.0", "0000:01:00.0"]
    assert found.nvidia_gpus == (
        PciDevice(
            address="0000:01:00.0",
            vendor=0x10DE,
            device=0x2330,
            class_code=0x030200,
            driver="nvidia",
            revision=0xA1,
            link_speed=2.5,
            link_speed_max=32.0,
            link_width=8,
            link_width_max=16,
            parent="0000:00:01.0",
            parent_link_speed_max=32.0,
            parent_link_width_max=16,
            numa_node=1,
            aer_fatal=2,
            aer_correctable=71,
        ),
    )


def test_only_what_matters_is_kept(tmp_path: Path) -> None:
    add(tmp_path, "0000:00:02.0", vendor="0x8086", device="0x9a49", **{"class": "0x030000"})
    add(tmp_path, "0000:00:03.0", vendor="0x10de", device="0x22a3", **{"class": "0x068000"})
    add(tmp_path, "0000:00:04.0", vendor="0x15b3", device="0x1021", **{"class": "0x020700"})
    add(tmp_path, "0000:00:05.0", vendor="0x1002", device="0x74a1", **{"class": "0x120000"})
    add(tmp_path, "0000:00:06.0", vendor="0x8086", device="0x1533", **{"class": "0x020000"})
    add(tmp_path, "0000:00:07.0", vendor="0x10de", device="0x10f0", **{"class": "0x040300"})
    add(tmp_path, "0000:00:08.0", vendor="0x8086", device="0x0680", **{"class": "0x068000"})
    add(tmp_path, "0000:00:09.0", vendor="0x144d", device="0xa80a", **{"class": "0x010802"})
    add(tmp_path, "0000:00:0a.0", **BRIDGE)
    add(tmp_path, "0000:00:0a.0/0000:0a:00.0", vendor="0x15b3", device="0x1021", **{"class": "0x020700"})
    found = look(tmp_path)
    assert [device.address[5:10] for device in found.devices] == ["00:02", "00:03", "00:04", "00:05", "0a:00"]
    assert [nvswitch.address[5:10] for nvswitch in found.nvswitches] == ["00:03"]
    assert [gpu.address[5:10] for gpu in found.amd_gpus] == ["00:05"]
    assert found.nvidia_gpus == ()


def test_virtual_functions_of_a_gpu_that_is_here_are_not_gpus(tmp_path: Path) -> None:
    add(tmp_path, "0000:01:00.0", **GPU)
    (add(tmp_path, "0000:01:00.4", **GPU) / "physfn").symlink_to("../0000:01:00.0")
    assert only_gpu(tmp_path).address == "0000:01:00.0"


def test_half_broken_files(tmp_path: Path) -> None:
    add(
        tmp_path,
        "0000:01:00.0",
        **{**GPU, "device": "", "revision": "rubbish", "numa_node": "-1"},
        current_link_speed="Unknown",
        current_link_width="63",
        aer_dev_fatal="no total here",
    )
    (tmp_path / "sys/bus/pci/devices/rubbish").mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:09:00.0").symlink_to("../../../devices/gone")
    gpu = only_gpu(tmp_path)
    assert (gpu.device, gpu.revision, gpu.numa_node, gpu.driver) == (0, 0, -1, None)
    assert (gpu.link_speed, gpu.link_width, gpu.link_speed_max, gpu.aer_fatal) == (0.0, 0, 0.0, None)


@pytest.mark.parametrize(("config", "revision"), [(b"\xff" * 64, 0xFF), (b"\xde\x10\x30\x23" + b"\0" * 60, 0xA1)])
def test_gpu_that_answers_only_ones_has_revision_ff(tmp_path: Path, config: bytes, revision: int) -> None:
    add(tmp_path, "0000:01:00.0", config=config, **GPU)
    assert only_gpu(tmp_path).revision == revision


def test_sleeping_device_is_left_asleep(tmp_path: Path) -> None:
    folder = add(tmp_path, "0000:01:00.0", config=b"\xff" * 64, **GPU)
    (folder / "power").mkdir()
    (folder / "power/runtime_status").write_text("suspended\n")
    assert only_gpu(tmp_path).revision == 0xA1


@pytest.mark.parametrize(
    ("config", "redirects"),
    [
        (b"\0" * 64, None),
        (b"", None),
        (capabilities(acs_control=None), False),
        (capabilities(acs_control=0x0000), False),
        (capabilities(acs_control=0x0001), False),
        (capabilities(acs_control=0x001D), True),
        (b"\xff" * 4096, False),
        (b"\0" * 256, False),
    ],
    ids=["not root", "unreadable", "no ACS", "off", "source validation only", "on", "all ones", "no extended space"],
)
def test_acs_of_the_bridge_above(tmp_path: Path, config: bytes, redirects: bool | None) -> None:
    add(tmp_path, "0000:00:01.0", config=config, **BRIDGE)
    add(tmp_path, "0000:00:01.0/0000:01:00.0", **GPU)
    assert look(tmp_path).devices[0].acs_redirect is redirects


def test_capability_list_that_bites_its_tail_ends(tmp_path: Path) -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    add(tmp_path, "0000:00:01.0", config=bytes(config), **BRIDGE)
    add(tmp_path, "0000:00:01.0/0000:01:00.0", **GPU)
    assert look(tmp_path).devices[0].acs_redirect is False


def test_iommu_groups_are_counted(tmp_path: Path) -> None:
    (tmp_path / "sys/bus").mkdir(parents=True)
    for group in range(3):
        (tmp_path / f"sys/kernel/iommu_groups/{group}").mkdir(parents=True)
    assert look(tmp_path).iommu_groups == 3


def test_host_without_a_pci_bus(tmp_path: Path) -> None:
    (tmp_path / "sys/bus").mkdir(parents=True)
    assert look(tmp_path) == Pci(devices=(), iommu_groups=0)


def test_host_without_sysfs_is_unknown_rather_than_without_gpus(tmp_path: Path) -> None:
    assert pci.probe(Context("python", root=tmp_path)) == Unknown("/sys is not mounted here")


def test_bus_that_is_no_folder_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").write_text("")
    assert isinstance(pci.probe(Context("python", root=tmp_path)), Unknown)


def test_this_host_can_be_read() -> None:
    assert isinstance(pci.probe(Context("python")), Pci)
