"""Lists the GPUs: NVIDIA's as NVML tells them, AMD's from sysfs."""

from __future__ import annotations

import re

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import NOT_REPORTED, Gpu, Gpus
from ddpdoctor.facts.pci import Pci
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists
from ddpdoctor.probes.nvidia_libraries import nvml

DEADLINE = 25.0

AMD_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


def probe(context: Context) -> Gpus | Unknown:
    answers = nvml.ask(context)
    failure = answers.failure or _why_not(answers)
    if answers.gpus and not failure:
        return _nvidia(answers, context)
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
        architectures = _amd_architectures(context)
        # Those that the amdgpu driver runs, in PCI order.
        served = [device.address for device in pci.amd_gpus if device.driver == "amdgpu"]
        devices = tuple(_amd_gpu(context, *numbered, architectures) for numbered in enumerate(served))
        return Gpus(devices=devices, vendor="amd" if devices else None)
    if answers.failure:
        return Unknown(answers.failure)
    return Gpus(devices=(), vendor="nvidia" if pci.nvidia_gpus else None)


def _why_not(answers: nvml.NvmlAnswers) -> str:
    if answers.status == 0:
        return ""
    if answers.status is None:
        return "there is no NVML (libnvidia-ml.so.1) to ask about it"
    return f"NVML failed to start: {answers.message or 'no message'} (code {answers.status})"


def _nvidia(answers: nvml.NvmlAnswers, context: Context) -> Gpus:
    jetson = _jetson_name(context) is not None
    gpus = [{**answer, "integrated": jetson and not answer.get("bus_id")} for answer in answers.gpus]
    return msgspec.convert({"type": "gpus", "devices": gpus, "vendor": "nvidia", "p2p": answers.p2p}, Gpus)


def _jetson_name(context: Context) -> str | None:
    """ "NVIDIA Jetson AGX Orin Developer Kit"; None on anything that isn't a Tegra."""
    if not re.search(r"\bnvidia,tegra", context.text("/proc/device-tree/compatible")):
        return None
    model = context.read("/proc/device-tree/model")
    return "NVIDIA Tegra" if isinstance(model, Unknown) else model.strip("\0\n ")


def _amd_gpu(context: Context, index: int, address: str, architectures: dict[str, str]) -> Gpu:
    folder = f"/sys/bus/pci/devices/{address}"
    sensors = f"{folder}/hwmon/{next(iter(context.names(f'{folder}/hwmon')), '')}"
    architecture = architectures.get(address)
    return Gpu(
        index=index,
        name=context.text(f"{folder}/product_name") or " ".join(["AMD GPU", *filter(None, [architecture])]),
        uuid=context.text(f"{folder}/unique_id"),
        bus_id=address,
        architecture=architecture,
        memory_total=_number(context, f"{folder}/mem_info_vram_total"),
        memory_used=_number(context, f"{folder}/mem_info_vram_used"),
        temperature=_number(context, f"{sensors}/temp1_input", 1000),
        # Older kernels average the power, newer ones give it as it is.
        power=_watts(context, f"{sensors}/power1_average", f"{sensors}/power1_input"),
        power_limit=_watts(context, f"{sensors}/power1_cap"),
        power_limit_default=_watts(context, f"{sensors}/power1_cap_default"),
        utilisation=_number(context, f"{folder}/gpu_busy_percent"),
    )


def _amd_architectures(context: Context) -> dict[str, str]:
    """PCI address to "gfx942", from the topology that ROCm itself reads."""
    found = {}
    for name in context.names(AMD_TOPOLOGY):
        pairs = (line.split() for line in context.text(f"{AMD_TOPOLOGY}/{name}/properties").splitlines())
        node = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        version, place = node.get("gfx_target_version", 0), node.get("location_id", 0)
        if version:
            address = f"{node.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
            found[address] = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return found


def _number(context: Context, file: str, divisor: int = 1) -> int | Unknown:
    text = context.text(file)
    return int(text) // divisor if text.isdigit() else NOT_REPORTED


def _watts(context: Context, *files: str) -> float | Unknown:
    """The first that there is."""
    found = (_number(context, file) for file in files)
    return next((microwatts / 1e6 for microwatts in found if isinstance(microwatts, int)), NOT_REPORTED)
