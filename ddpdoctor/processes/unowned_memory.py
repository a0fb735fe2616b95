"""Memory of a GPU that no process holds as far as NVML tells. Pure."""

from __future__ import annotations

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.gpus import Gpu

RESERVE = 1 << 30
"""Bytes that the driver, and what its processes share, may take without an owner: some 600 MB were seen on an idle H100."""

RESERVED_SHARE = 0.02
"""The same, as a share of the GPU's memory, where that is more: page tables and ECC grow with it."""


def unowned(gpu: Gpu) -> Maybe[int]:
    """Bytes in use that nobody who is listed holds; 0 where it is no more than what the driver keeps for itself."""
    if gpu.lost:
        return Unknown(f"GPU {gpu.index} doesn't answer")
    if gpu.integrated:
        return Unknown("its memory is the host's")
    used, total, holders = gpu.memory_used, gpu.memory_total, gpu.holders
    if isinstance(used, Unknown):
        return used
    if isinstance(total, Unknown):
        return total
    if isinstance(holders, Unknown):
        return holders
    if gpu.mig_enabled is True:
        return Unknown(f"GPU {gpu.index} is in MIG mode, and who is on its slices may be told to root alone")
    if gpu.virtualization in ("host-vgpu", "host-vsga"):
        return Unknown(f"GPU {gpu.index} is lent to virtual machines, whose memory has no process here")
    if any(isinstance(holder.memory, Unknown) for holder in holders):
        return Unknown(f"the driver doesn't tell how much each process holds on GPU {gpu.index}")
    rest = used - sum(holder.memory for holder in holders if not isinstance(holder.memory, Unknown))
    return rest if rest > max(RESERVE, RESERVED_SHARE * total) else 0
