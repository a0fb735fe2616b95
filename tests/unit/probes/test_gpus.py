"""The GPU probe where NVML has no say: AMD, Jetson, WSL, nothing at all."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.base.unknown import Facts, Unknown
from ddpdoctor.facts.gpus import NOT_REPORTED, Gpu, Gpus
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.probes import gpus
from ddpdoctor.probes.context import Context

MI300X = PciDevice(address="0000:05:00.0", vendor=0x1002, device=0x74A1, class_code=0x120000, driver="amdgpu")
H100 = PciDevice(address="0000:1b:00.0", vendor=0x10DE, device=0x2330, class_code=0x030200)
INTEL = PciDevice(address="0000:00:02.0", vendor=0x8086, device=0x9A49, class_code=0x030000, driver="i915")


def look(root: Path, *devices: PciDevice) -> Gpus | Unknown:
    one = Context("python", root=root, environ={})

    def ask(group: str) -> Facts:
        assert group == "pci"
        return Pci(devices=devices)

    one.answered_by(ask)
    return gpus.probe(one)


def write(root: Path, folder: str, **files: str) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / folder / name).write_text(text + "\n")


def test_no_gpu(tmp_path: Path) -> None:
    assert look(tmp_path) == Gpus(devices=())
    assert look(tmp_path, INTEL) == Gpus(devices=())


def test_nvidia_gpu_without_a_driver(tmp_path: Path) -> None:
    assert look(tmp_path, INTEL, H100) == Unknown(
        "there is an NVIDIA GPU on the PCI bus, but there is no NVML (libnvidia-ml.so.1) to ask about it"
    )


def test_amd_gpu(tmp_path: Path) -> None:
    write(
        tmp_path,
        "sys/bus/pci/devices/0000:05:00.0",
        product_name="AMD Instinct MI300X OAM",
        unique_id="a41c5be39f7d2200",
        mem_info_vram_total="206141652992",
        mem_info_vram_used="311427072",
        gpu_busy_percent="7",
    )
    write(
        tmp_path,
        "sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon4",
        temp1_input="41500",
        power1_input="138000000",
        power1_cap="750000000",
    )
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(tmp_path, f"{nodes}/0", properties="cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\nlocation_id 0")
    write(tmp_path, f"{nodes}/1", properties="simd_count 1216\ngfx_target_version 90402\nlocation_id 1280\ndomain 0")
    assert look(tmp_path, MI300X) == Gpus(
        vendor="amd",
        devices=(
            Gpu(
                index=0,
                name="AMD Instinct MI300X OAM",
                uuid="a41c5be39f7d2200",
                bus_id="0000:05:00.0",
                architecture="gfx942",
                memory_total=206141652992,
                memory_used=311427072,
                temperature=41,
                power=138.0,
                power_limit=750.0,
                utilisation=7,
            ),
        ),
    )


def test_amd_architecture_with_a_hexadecimal_step(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(tmp_path, f"{nodes}/1", properties="gfx_target_version 90010\nlocation_id 1280\nrubbish\nname aldebaran")
    found = look(tmp_path, MI300X)
    assert isinstance(found, Gpus)
    assert (found.devices[0].architecture, found.devices[0].name) == ("gfx90a", "AMD GPU gfx90a")
    assert found.devices[0].memory_total == found.devices[0].power == NOT_REPORTED


def test_amd_gpu_handed_to_a_virtual_machine_is_not_ours(tmp_path: Path) -> None:
    passed_on = PciDevice(address="0000:05:00.0", vendor=0x1002, device=0x74A1, class_code=0x120000, driver="vfio-pci")
    assert look(tmp_path, passed_on) == Gpus(devices=())


def test_jetson_without_nvml(tmp_path: Path) -> None:
    write(tmp_path, "proc/device-tree", compatible="nvidia,p3737-0000\0nvidia,tegra234\0", model="NVIDIA Orin\0")
    assert look(tmp_path) == Gpus(
        devices=(Gpu(index=0, name="NVIDIA Orin", integrated=True),), vendor="nvidia", p2p=(("self",),)
    )


def test_other_board_with_a_device_tree(tmp_path: Path) -> None:
    write(tmp_path, "proc/device-tree", compatible="raspberrypi,5-model-b\0brcm,bcm2712\0", model="Raspberry Pi 5\0")
    assert look(tmp_path) == Gpus(devices=())
