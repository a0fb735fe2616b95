"""Lists the GPUs: NVIDIA's as NVML tells them, AMD's from sysfs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import NOT_REPORTED, Gpu, Gpus
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists
from ddpdoctor.probes.nvidia_libraries import nvml

DEADLINE = 25.0

AMD_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


def probe(context: Context) -> Gpus | Unknown:
    answers = nvml.ask(context)
    if answers.status == 0 and not answers.failure:
        if answers.gpus:
            return _nvidia(answers, context)
        failure = ""
    else:
        failure = answers.failure or _why_not(answers)
    if failure and (jetson := _jetson_name(context)):
        gpu = Gpu(index=0, name=jetson, integrated=True)
        return Gpus(devices=(gpu,), vendor="nvidia", p2p=(("self",),))
    pci = context.facts(Pci)
    if failure and exists(context.path("/dev/dxg")) and answers.path:
        return Unknown(failure)
    if isinstance(pci, Unknown):
        return Unknown(f"{failure or 'NVML lists no GPU'}; {pci.reason}")
    if failure and pci.nvidia_gpus:
        return Unknown(f"there is an NVIDIA GPU on the PCI bus, but {failure}")
    if pci.amd_gpus:
        devices = _amd_gpus(context, pci.amd_gpus)
        return Gpus(devices=devices, vendor="amd" if devices else None)
    if answers.failure:
        return Unknown(answers.failure)
    return Gpus(devices=(), vendor="nvidia" if pci.nvidia_gpus else None)


def _why_not(answers: nvml.NvmlAnswers) -> str:
    if answers.status is None:
        return "there is no NVML (libnvidia-ml.so.1) to ask about it"
    return f"NVML failed to start: {answers.message or 'no message'} (code {answers.status})"


def _nvidia(answers: nvml.NvmlAnswers, context: Context) -> Gpus:
    integrated = _jetson_name(context) is not None
    devices = tuple(_nvidia_gpu(gpu, integrated) for gpu in answers.gpus)
    return Gpus(
        devices=devices, vendor="nvidia", p2p=msgspec.convert(answers.p2p, tuple[tuple[str, ...], ...] | Unknown)
    )


def _nvidia_gpu(answer: dict[str, Any], integrated: bool) -> Gpu:
    return msgspec.convert({**answer, "integrated": integrated and not answer.get("bus_id")}, Gpu)


def _jetson_name(context: Context) -> str | None:
    """ "NVIDIA Jetson AGX Orin Developer Kit"; None on anything that isn't a Tegra."""
    kind = context.read("/proc/device-tree/compatible")
    if isinstance(kind, Unknown) or not re.search(r"\bnvidia,tegra", kind):
        return None
    model = context.read("/proc/device-tree/model")
    return "NVIDIA Tegra" if isinstance(model, Unknown) else model.strip("\0\n ")


def _amd_gpus(context: Context, devices: tuple[PciDevice, ...]) -> tuple[Gpu, ...]:
    """Those AMD functions that the amdgpu driver runs, in PCI order."""
    architectures = _amd_architectures(context)
    served = [device for device in devices if device.driver == "amdgpu"]
    return tuple(_amd_gpu(context, index, device.address, architectures) for index, device in enumerate(served))


def _amd_gpu(context: Context, index: int, address: str, architectures: dict[str, str]) -> Gpu:
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


def _amd_architectures(context: Context) -> dict[str, str]:
    """PCI address to "gfx942", from the topology that ROCm itself reads."""
    found = {}
    for file in context.path(AMD_TOPOLOGY).glob("*/properties"):
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
