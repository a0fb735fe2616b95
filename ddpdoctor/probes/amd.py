"""AMD GPUs as the amdgpu and kfd drivers show them in sysfs."""

from __future__ import annotations

from pathlib import Path

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import NOT_REPORTED, Gpu
from ddpdoctor.facts.pci import PciDevice
from ddpdoctor.probes.context import Context

NODES = "/sys/class/kfd/kfd/topology/nodes"


def gpus(context: Context, devices: tuple[PciDevice, ...]) -> tuple[Gpu, ...]:
    """Those AMD functions that the amdgpu driver runs, in PCI order."""
    architectures = _architectures(context)
    served = [device for device in devices if device.driver == "amdgpu"]
    return tuple(_gpu(context, index, one.address, architectures) for index, one in enumerate(served))


def _gpu(context: Context, index: int, address: str, architectures: dict[str, str]) -> Gpu:
    folder = context.path(f"/sys/bus/pci/devices/{address}")
    sensors = next(iter(sorted(folder.glob("hwmon/hwmon*"))), folder / "hwmon")
    architecture = architectures.get(address)
    return Gpu(
        index=index,
        name=_text(folder / "product_name") or " ".join(["AMD GPU", *filter(None, [architecture])]),
        uuid=_text(folder / "unique_id"),
        bus_id=address,
        architecture=architecture,
        memory_total=_number(folder / "mem_info_vram_total"),
        memory_used=_number(folder / "mem_info_vram_used"),
        temperature=_degrees(sensors / "temp1_input"),
        power=_watts(sensors / "power1_average", sensors / "power1_input"),
        power_limit=_watts(sensors / "power1_cap"),
        power_limit_default=_watts(sensors / "power1_cap_default"),
        utilisation=_number(folder / "gpu_busy_percent"),
    )


def _architectures(context: Context) -> dict[str, str]:
    """PCI address to "gfx942", from the topology that ROCm itself reads."""
    found = {}
    for file in context.path(NODES).glob("*/properties"):
        pairs = (line.split() for line in _text(file).splitlines())
        node = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        version, place = node.get("gfx_target_version", 0), node.get("location_id", 0)
        if version:
            address = f"{node.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
            found[address] = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return found


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(file: Path) -> int | Unknown:
    text = _text(file)
    return int(text) if text.isdigit() else NOT_REPORTED


def _degrees(file: Path) -> int | Unknown:
    millidegrees = _number(file)
    return millidegrees if isinstance(millidegrees, Unknown) else millidegrees // 1000


def _watts(*files: Path) -> float | Unknown:
    """The first that there is: older kernels average the power, newer ones give it as it is."""
    for file in files:
        microwatts = _number(file)
        if not isinstance(microwatts, Unknown):
            return microwatts / 1e6
    return NOT_REPORTED
