"""The PCIe links of GPUs and network cards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.knowledge.privileges import by_root, runtime_of

RESEAT = "Ask the administrator to reseat the card or to give it a slot with all lanes; this shows its link (LnkSta)"


@check("pcie-link-degraded", severity=WARN, owner=Owner.NODE)
def pcie_link_degraded(pci: Pci, gpus: Maybe[Gpus]) -> Iterator[Finding]:
    """A GPU or network card has fewer PCIe lanes, or a slower link, than it and its slot can do.

    ## What breaks
    Nothing dies; batches arrive late and gradients travel slowly, for all ranks, since they wait for each other.

    ## Why
    The card isn't seated well, is in the wrong slot, or on a bad riser; or the firmware gave its lanes to another card. An idle
    GPU that lowers its generation to save power is fine.

    ## Fix
    Reseat the card, use a slot that is wired to the processor with all lanes, set the slot to its full generation in
    the firmware.
    """
    cards = _cards(pci)
    apart = set() if isinstance(gpus, Unknown) else {device.bus_id for device in gpus.devices if _off_slot(device)}
    # Without the slot's own word one can't tell eight lanes that are wired from eight that are lost.
    at_slots = [card for card in cards if card.address not in apart]
    known_links = tuple(card for card in at_slots if card.link_width and card.parent_link_width_max)
    if not known_links:
        leave_untested("sysfs doesn't say how the cards and their slots are linked")
    answering = () if isinstance(gpus, Unknown) else gpus.answering
    busy = {gpu.bus_id: gpu for gpu in answering if known_or(gpu.utilisation, 0) >= 50}
    narrow = tuple(card for card in known_links if card.link_width < _best_width(card))
    in_use = [card for card in known_links if card not in narrow and (card.address in busy or not _is_gpu(card))]
    slow = tuple(card for card in in_use if card.link_speed < _best_speed(card))
    for card in (*narrow, *slow):
        width, speed = _best_width(card), _best_speed(card)
        has = f"a PCIe link of {card.link_speed:g} of {speed:g} GT/s, though it is in use"
        if card in narrow:
            has = f"{card.link_width} of {width} PCIe lanes"
        link = f"x{card.link_width}, {card.link_speed:g} GT/s; card and slot can do x{width}, {speed:g} GT/s"
        gpu = busy.get(card.address)
        yield Finding.of(
            f"{'GPU' if _is_gpu(card) else 'Network card'} {card.address} runs with {has}",
            Evidence(f"{card.address}: {link}", "/sys/bus/pci/devices"),
            Evidence(f"the GPU is {gpu.utilisation} % busy", "NVML") if gpu else None,
            Fix(RESEAT, (f"sudo lspci -vvs {shlex.quote(card.address)}",)),
        )
    if not narrow and not slow:
        if unread := [card.address for card in at_slots if card not in known_links]:
            leave_untested(f"sysfs doesn't say how {listed(unread, most=4)} and the slot are linked")
        _assert_idle(known_links, gpus)


def _assert_idle(links: tuple[PciDevice, ...], gpus: Maybe[Gpus]) -> None:
    """Leave the check untested where a GPU's link is slow, which is fine while it idles, and nobody said whether it does."""
    lowered = {link.address for link in links if link.link_speed < _best_speed(link)}
    if lowered:
        for gpu in known(gpus).answering:
            if gpu.bus_id in lowered:
                known(gpu.utilisation)


def _cards(pci: Pci) -> tuple[PciDevice, ...]:
    """The GPUs and Mellanox cards that this system itself may use; ends the check where there are none."""
    mellanox = [card for card in pci.devices if card.vendor == 0x15B3 and card.class_code >> 16 == 0x02]
    cards = tuple(card for card in pci.devices if (_is_gpu(card) or card in mellanox) and not card.is_lent)
    requires(cards, "no GPU and no InfiniBand card on this host")
    return cards


def _is_gpu(card: PciDevice) -> bool:
    return card.is_nvidia_gpu or card.is_amd_gpu


def _off_slot(gpu: Gpu) -> bool:
    """Whether its slot says nothing: made up in a virtual machine, and beside the real link (C2C) of Grace's GPUs."""
    if re.search(r"\bG[HB]\d{2,3}\b", gpu.name):
        return True
    return known_or(gpu.virtualization, "none") != "none"


def _best_width(card: PciDevice) -> int:
    """Lanes that both card and slot have; a bridge that says nothing limits nothing."""
    return min(card.link_width_max, card.parent_link_width_max or card.link_width_max)


def _best_speed(card: PciDevice) -> float:
    """GT/s that both card and slot can do."""
    return min(card.link_speed_max, card.parent_link_speed_max or card.link_speed_max)


NONFATAL_FLOOR = 10
"""Probing of devices at boot leaves one such error or a few (unsupported request); a link that loses packets, dozens."""


@check("pcie-aer-errors", severity=WARN, owner=Owner.NODE)
def pcie_aer_errors(pci: Pci, container: Maybe[Container]) -> Iterator[Finding]:
    """A GPU's PCIe link had errors that were not corrected.

    ## What breaks
    Transfers are repeated and slow; often the GPU falls off the bus some hours later.

    ## Why
    A bad riser, slot or cable, or a link that runs faster than it can. Errors that were corrected are normal, and so
    are a few that were not fatal: probing a device that isn't there, at boot, counts as one.

    ## Fix
    Reseat the card, replace the riser, or set the slot one generation lower in the firmware.
    """
    cards = _cards(pci)
    above = {card.parent for card in cards}
    watched = (*cards, *(device for device in pci.devices if device.address in above and device not in cards))
    if all(card.aer_fatal is None and card.aer_nonfatal is None for card in watched):
        leave_untested("the kernel doesn't count PCIe errors here")
    counted = tuple((card, card.aer_fatal or 0, card.aer_nonfatal or 0) for card in watched)
    bad = tuple(counts for counts in counted if counts[1] or counts[2] >= NONFATAL_FLOOR)
    if bad:
        counters = f"/sys/bus/pci/devices/{shlex.quote(bad[0][0].address)}/aer_dev_*"
        yield Finding.of(
            f"PCIe errors that were not corrected since boot: {plural(sum(fatal + nonfatal for _, fatal, nonfatal in bad), 'error')} at "
            f"{listed((card.address for card, _, _ in bad), most=4)}",
            (
                Evidence(
                    f"{card.address}: {fatal} fatal, {nonfatal} not fatal, {card.aer_correctable or 0} corrected",
                    f"/sys/bus/pci/devices/{card.address}/aer_dev_*",
                )
                for card, fatal, nonfatal in bad
            ),
            by_root(
                f"See whether the count grows{', on the host' if runtime_of(container) else ''}; if so, have riser, slot and "
                "cable looked at; the kernel log tells more",
                (f"grep TOTAL {counters}", "sudo dmesg | grep -i aer"),
            ),
        )
