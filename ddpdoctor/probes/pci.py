"""Reads the PCI bus from sysfs: displays, accelerators, NVSwitches, the bridges above them, Mellanox adapters."""

from __future__ import annotations

import os
import re

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import isdir

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
NVIDIA, AMD, MELLANOX = 0x10DE, 0x1002, 0x15B3

ACS = 0x000D
"""Number of the extended capability "Access Control Services"."""
ACS_REDIRECT = 0b1100
"""Its control bits "P2P Request Redirect" and "P2P Completion Redirect"."""
MAX_LANES = 32
"""Of the widest link there is; a dead device answers 63."""


BUS = "/sys/bus/pci/devices"


def probe(context: Context) -> Pci | Unknown:
    try:
        names = {entry.name for entry in context.path(BUS).iterdir() if ADDRESS.fullmatch(entry.name)}
    except FileNotFoundError:
        if not isdir(context.path("/sys/bus")):
            return Unknown("/sys is not mounted here")
        names = set()  # A machine without a PCI bus.
    except OSError as error:
        return Unknown(f"{BUS}: {error.strerror}")
    chosen = {name: _bridges(context, name) for name in names if _matters(context, name)}
    for name in [address for address in chosen if context.number(f"{BUS}/{address}/vendor") != MELLANOX]:
        for bridge in chosen[name]:
            chosen.setdefault(bridge, _bridges(context, bridge))
    return Pci(
        devices=tuple(_device(context, name, chosen[name]) for name in sorted(chosen)),
        iommu_groups=_iommu_groups(context),
    )


def _matters(context: Context, name: str) -> bool:
    folder = f"{BUS}/{name}"
    code = context.number(f"{folder}/class")
    interesting = code >> 16 == 0x03 or code >> 8 == 0x1200
    if code >> 8 == 0x0680:
        interesting = context.number(f"{folder}/vendor") == NVIDIA
    elif code >> 16 == 0x02:
        interesting = context.number(f"{folder}/vendor") == MELLANOX
    # A virtual function beside its physical one (SR-IOV) is nothing that this host itself trains on.
    return interesting and not os.path.lexists(context.path(f"{folder}/physfn"))


def _bridges(context: Context, name: str) -> tuple[str, ...]:
    """Addresses of the bridges above, topmost first: sysfs nests a device's folder in that of its bridge."""
    return tuple(part for part in context.link(f"{BUS}/{name}").split("/")[:-1] if ADDRESS.fullmatch(part))


def _device(context: Context, name: str, bridges: tuple[str, ...]) -> PciDevice:
    folder = f"{BUS}/{name}"
    parent = f"{BUS}/{bridges[-1]}" if bridges else ""
    vendor, class_code = context.number(f"{folder}/vendor"), context.number(f"{folder}/class")
    # sysfs has noted the revision at boot; a GPU that answers nothing but ones today is dead.
    is_gpu = vendor in (NVIDIA, AMD) and class_code >> 16 in (0x03, 0x12)
    is_dead = is_gpu and _config(context, folder)[:4] == b"\xff\xff\xff\xff"
    return PciDevice(
        address=name,
        vendor=vendor,
        device=context.number(f"{folder}/device"),
        class_code=class_code,
        driver=context.link(f"{folder}/driver").rpartition("/")[2] or None,
        revision=0xFF if is_dead else context.number(f"{folder}/revision"),
        link_speed=_speed(context, f"{folder}/current_link_speed"),
        link_speed_max=_speed(context, f"{folder}/max_link_speed"),
        link_width=_width(context, f"{folder}/current_link_width"),
        link_width_max=_width(context, f"{folder}/max_link_width"),
        parent=bridges[-1] if bridges else None,
        parent_link_speed_max=_speed(context, f"{parent}/max_link_speed") if parent else 0.0,
        parent_link_width_max=_width(context, f"{parent}/max_link_width") if parent else 0,
        numa_node=context.number(f"{folder}/numa_node", -1),
        acs_redirect=_acs_redirect(_config(context, folder)) if class_code >> 8 == 0x0604 else None,
        iommu_domain=context.text(f"{folder}/iommu_group/type") or None,
        aer_fatal=_errors(context, f"{folder}/aer_dev_fatal"),
        aer_nonfatal=_errors(context, f"{folder}/aer_dev_nonfatal"),
        aer_correctable=_errors(context, f"{folder}/aer_dev_correctable"),
    )


def _speed(context: Context, file: str) -> float:
    """ "16.0 GT/s PCIe" as 16.0; "Unknown", which sysfs says of a sleeping or dead device, as 0."""
    try:
        return float(context.text(file).split(" ")[0])
    except ValueError:
        return 0.0


def _width(context: Context, file: str) -> int:
    lanes = context.number(file)
    return lanes if 0 < lanes <= MAX_LANES else 0


def _config(context: Context, folder: str) -> bytes:
    """The configuration space: 64 bytes for everyone, up to 4096 for root. Nothing where reading would wake it up."""
    if context.text(f"{folder}/power/runtime_status") == "suspended":
        return b""
    try:
        return context.path(f"{folder}/config").read_bytes()
    except OSError:
        return b""


def _acs_redirect(config: bytes) -> bool | None:
    if len(config) <= 64:
        return None
    offset, seen = 0x100, set[int]()
    while 0x100 <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == ACS:
            return bool(int.from_bytes(config[offset + 6 : offset + 8], "little") & ACS_REDIRECT)
        offset = header >> 20
    return False


def _errors(context: Context, file: str) -> int | None:
    """The total of an AER counter file: its last line, "TOTAL_ERR_FATAL 0". None where there is no such file."""
    total = re.search(r"^TOTAL\S* (\d+)$", context.text(file), re.MULTILINE)
    return int(total[1]) if total else None


def _iommu_groups(context: Context) -> int | Unknown:
    try:
        return sum(1 for _ in context.path("/sys/kernel/iommu_groups").iterdir())
    except FileNotFoundError:
        return 0
    except OSError as error:
        return Unknown(f"/sys/kernel/iommu_groups: {error.strerror}")
