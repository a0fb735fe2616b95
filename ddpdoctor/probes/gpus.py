"""Lists the GPUs: NVIDIA's as NVML tells them, AMD's from sysfs."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.pci import Pci
from ddpdoctor.probes import amd, nvml
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists

DEADLINE = 25.0


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
        devices = amd.gpus(context, pci.amd_gpus)
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
    devices = tuple(_gpu(gpu, integrated) for gpu in answers.gpus)
    return Gpus(
        devices=devices, vendor="nvidia", p2p=msgspec.convert(answers.p2p, tuple[tuple[str, ...], ...] | Unknown)
    )


def _gpu(answer: dict[str, Any], integrated: bool) -> Gpu:
    return msgspec.convert({**answer, "integrated": integrated and not answer.get("bus_id")}, Gpu)


def _jetson_name(context: Context) -> str | None:
    """ "NVIDIA Jetson AGX Orin Developer Kit"; None on anything that isn't a Tegra."""
    kind = context.read("/proc/device-tree/compatible")
    if isinstance(kind, Unknown) or not re.search(r"\bnvidia,tegra", kind):
        return None
    model = context.read("/proc/device-tree/model")
    return "NVIDIA Tegra" if isinstance(model, Unknown) else model.strip("\0\n ")
