"""The bus bandwidth that an all_reduce of large messages normally reaches over a kind of link, and who says so. Pure.

No figure is here without a public source. For CPUs and their loopback interface, AMD's links and several hosts there is none.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.visible import visible_gpus

GB: Final = 1e9

NVLINKS: Final = (((10, 0), 40.1), ((9, 0), 20.6), ((8, 7), 20.0), ((8, 6), 12.0), ((7, 0), 20.0), ((6, 0), 18.0))
"""From this compute capability on: GB/s of one NVLink in one direction, as NCCL itself reckons with them."""
NVLINK_8_0: Final = 20.0
NCCL_SOURCE: Final = "NCCL 2.28, src/graph/topo.h"

PCIE_3_X16: Final = 12.0
"""GB/s in one direction, from the same file; each generation doubles it, and half the lanes halve it."""

SHARP_WORDS: Final = "With NVLink SHARP an all_reduce over 8 H100 shows up to 480 GB/s (NVIDIA's Sylvain Jeaugey in nccl-tests issue 212)"
PCIE_WORDS: Final = "That is the most: where GPUs meet in the CPU it depends on CPU and memory (NVIDIA's Sylvain Jeaugey in nccl issue 1639)"


class Norm(msgspec.Struct, frozen=True, kw_only=True):
    """link: "18 NVLinks a GPU". bus: bytes a second. at_most: a healthy host may well stay below. words: more, or ""."""

    link: str
    bus: float
    source: str
    at_most: bool = False
    words: str = ""


def normal_bandwidth(gpus: Maybe[Gpus], environment: Maybe[Environment], backend: str, ranks: int) -> Norm | str:
    """The norm for that many ranks, one a GPU, on one host; or why there is none."""
    if backend != "nccl":
        return (
            "gloo moves data through this host's CPU and memory, for which nobody publishes a norm: nothing is compared"
        )
    if isinstance(gpus, Unknown):
        return f"nothing is known of the GPUs' links ({gpus.reason}): nothing is compared"
    if gpus.vendor != "nvidia":
        return "no public figures for these GPUs' links are known to ddpdoctor: nothing is compared"
    visible = visible_gpus(gpus, environment)[:ranks]
    if len(visible) < max(2, ranks) or any(visible_gpu.slice for visible_gpu in visible):
        return "these ranks don't have a whole GPU each: nothing is compared"
    used = [visible_gpu.gpu for visible_gpu in visible]
    if all(_nvlinks(gpu) for gpu in used) and _meet_over_nvlink(used):
        return _over_nvlink(used)
    if not any(_nvlinks(gpu) for gpu in used):
        return _over_pcie(used)
    return "some of these GPUs are joined by NVLink and others are not: nothing is compared"


def _nvlinks(gpu: Gpu) -> int:
    return 0 if isinstance(gpu.nvlinks_active, Unknown) else gpu.nvlinks_active


def _meet_over_nvlink(gpus: list[Gpu]) -> bool:
    """Two with links have them to each other; more need a switch, as SXM boards have it, or bridges lead to a neighbour only."""
    return len(gpus) == 2 or all(
        "SXM" in gpu.name or "HBM3" in gpu.name or gpu.fabric_state == "completed" for gpu in gpus
    )


def _over_nvlink(gpus: list[Gpu]) -> Norm | str:
    rates: list[tuple[float, Gpu]] = []
    for gpu in gpus:
        rate = nvlink_of(gpu)
        if rate is None:
            return f"no public figure for the NVLinks of {gpu.name} is known to ddpdoctor: nothing is compared"
        rates.append((rate, gpu))
    each, gpu = min(rates, key=lambda rate: rate[0] * _nvlinks(rate[1]))
    links = _nvlinks(gpu)
    hopper_or_later = not isinstance(gpu.compute_capability, Unknown) and gpu.compute_capability >= (9, 0)
    return Norm(
        link=f"{links} NVLink{'' if links == 1 else 's'} a GPU, {each:g} GB/s each",
        bus=each * links * GB,
        source=NCCL_SOURCE,
        words=SHARP_WORDS if hopper_or_later and len(gpus) > 2 else "",
    )


def nvlink_of(gpu: Gpu) -> float | None:
    """GB/s of one of its NVLinks, None where nobody says."""
    capability = gpu.compute_capability
    if isinstance(capability, Unknown):
        return None
    if capability == (8, 0):
        return NVLINK_8_0
    return next((rate for least, rate in NVLINKS if capability >= least), None)


def _over_pcie(gpus: list[Gpu]) -> Norm | str:
    rates: list[tuple[float, str]] = []
    for gpu in gpus:
        generation, width = gpu.pcie_generation_max, gpu.pcie_width_max
        if isinstance(generation, Unknown) or isinstance(width, Unknown) or not generation or not width:
            return "the GPUs don't say how wide their PCIe links are: nothing is compared"
        rates.append((PCIE_3_X16 * 2.0 ** (generation - 3) * width / 16, f"PCIe {generation}.0 x{width}"))
    rate, link = min(rates)
    return Norm(link=link, bus=rate * GB, source=NCCL_SOURCE, at_most=True, words=PCIE_WORDS)
