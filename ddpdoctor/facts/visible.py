"""GPUs that a rank may use: what the driver lists, cut down by CUDA_VISIBLE_DEVICES and its relatives."""

from __future__ import annotations

import re

import msgspec

from ddpdoctor.base.unknown import Maybe, NotKnown, Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpu, Gpus, MigInstance

SELECTORS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Variables by which a user chooses GPUs. ROCm reads several; the first that is set counts here."""


class VisibleGpu(msgspec.Struct, frozen=True):
    """One device as CUDA counts them: a whole GPU, or a MIG slice of it."""

    gpu: Gpu
    slice: MigInstance | None = None


def selector(gpus: Gpus, environment: Maybe[Environment]) -> str | None:
    """The variable that chooses among these GPUs, None where all are visible."""
    if isinstance(environment, Unknown):
        return None
    return next((name for name in SELECTORS.get(gpus.vendor or "nvidia", ()) if name in environment), None)


def visible_gpus(gpus: Gpus, environment: Maybe[Environment]) -> tuple[VisibleGpu, ...]:
    """List the GPUs that answer and are left by CUDA_VISIBLE_DEVICES; a GPU in MIG mode stands for its slices.

    Numbers are taken as NVML's: among unequal GPUs CUDA may count in another order (CUDA_DEVICE_ORDER).
    """
    name = selector(gpus, environment)
    if name is None or isinstance(environment, Unknown):
        return tuple(visible_gpu for gpu in gpus.answering for visible_gpu in _whole(gpu))
    chosen: list[VisibleGpu] = []
    for token in environment.get(name).split(","):
        found = _named(token.strip(), gpus)
        if not found:
            break  # CUDA stops at the first that it doesn't know
        chosen.extend(visible_gpu for visible_gpu in found if visible_gpu not in chosen)
    return tuple(chosen)


def needs_certain_order(gpus: Gpus, environment: Maybe[Environment]) -> None:
    """For a verdict on some of several unequal GPUs.

    Raises:
        NotKnown: numbers choose among them, and CUDA may count in another order than NVML.
    """
    name = selector(gpus, environment)
    if name is None or isinstance(environment, Unknown) or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return
    if re.search(r"(^|,)\s*\d", environment.get(name)):
        raise NotKnown(
            f"{name} holds numbers, which CUDA and the driver count differently unless CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )


def _whole(gpu: Gpu) -> tuple[VisibleGpu, ...]:
    if gpu.mig_instances:
        return tuple(VisibleGpu(gpu, mig_instance) for mig_instance in gpu.mig_instances)
    return (VisibleGpu(gpu),)


def _named(token: str, gpus: Gpus) -> tuple[VisibleGpu, ...]:
    if token.startswith("MIG-"):
        return _slice(token, gpus)
    number = int(token) if token.isdecimal() else -1
    named = (
        gpu for gpu in gpus.answering if gpu.index == number or (token[:4] == "GPU-" and gpu.uuid.startswith(token))
    )
    return next(map(_whole, named), ())


def _slice(token: str, gpus: Gpus) -> tuple[VisibleGpu, ...]:
    """NVML may list no slices to a user without rights, so that an unlisted one is believed where MIG is on."""
    for gpu in gpus.answering:
        for mig_instance in gpu.mig_instances:
            if mig_instance.uuid.startswith(token):
                return (VisibleGpu(gpu, mig_instance),)
    sliced = next((gpu for gpu in gpus.answering if gpu.mig_enabled is True), None)
    return (VisibleGpu(sliced, MigInstance(uuid=token)),) if sliced else ()
