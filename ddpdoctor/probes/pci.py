"""Reads the PCI bus from sysfs: displays, accelerators, NVSwitches, the bridges above them, Mellanox adapters."""

from __future__ import annotations

import os
import re
from pathlib import Path

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


def probe(context: Context) -> Pci | Unknown:
    bus = context.path("/sys/bus/pci/devices")
    try:
        names = {entry.name for entry in bus.iterdir() if ADDRESS.fullmatch(entry.name)}
    except FileNotFoundError:
        if not isdir(context.path("/sys/bus")):
            return Unknown("/sys is not mounted here")
        names = set()  # A machine without a PCI bus.
    except OSError as error:
        return Unknown(f"/sys/bus/pci/devices: {error.strerror}")
    chosen = {name: _bridges(bus / name) for name in names if _matters(bus / name)}
    for name in [address for address in chosen if _number(bus / address, "vendor") != MELLANOX]:
        for bridge in chosen[name]:
            chosen.setdefault(bridge, _bridges(bus / bridge))
    return Pci(
        devices=tuple(_device(bus, name, chosen[name]) for name in sorted(chosen)),
        iommu_groups=_iommu_groups(context),
    )


def _matters(folder: Path) -> bool:
    code = _number(folder, "class")
    interesting = code >> 16 == 0x03 or code >> 8 == 0x1200
    if code >> 8 == 0x0680:
        interesting = _number(folder, "vendor") == NVIDIA
    elif code >> 16 == 0x02:
        interesting = _number(folder, "vendor") == MELLANOX
    # A virtual function beside its physical one (SR-IOV) is nothing that this host itself trains on.
    return interesting and not os.path.lexists(folder / "physfn")


def _bridges(folder: Path) -> tuple[str, ...]:
    """Addresses of the bridges above, topmost first: sysfs nests a device's folder in that of its bridge."""
    try:
        nested = folder.readlink().parts[:-1]
    except OSError:
        return ()
    return tuple(part for part in nested if ADDRESS.fullmatch(part))


def _device(bus: Path, name: str, bridges: tuple[str, ...]) -> PciDevice:
    folder = bus / name
    vendor, class_code = _number(folder, "vendor"), _number(folder, "class")
    parent = bridges[-1] if bridges else None
    return PciDevice(
        address=name,
        vendor=vendor,
        device=_number(folder, "device"),
        class_code=class_code,
        driver=_driver(folder),
        revision=_revision(folder, vendor, class_code),
        link_speed=_speed(folder, "current_link_speed"),
        link_speed_max=_speed(folder, "max_link_speed"),
        link_width=_width(folder, "current_link_width"),
        link_width_max=_width(folder, "max_link_width"),
        parent=parent,
        parent_link_speed_max=_speed(bus / parent, "max_link_speed") if parent else 0.0,
        parent_link_width_max=_width(bus / parent, "max_link_width") if parent else 0,
        numa_node=_number(folder, "numa_node", -1),
        acs_redirect=_acs_redirect(folder) if class_code >> 8 == 0x0604 else None,
        iommu_domain=_text(folder, "iommu_group/type") or None,
        aer_fatal=_errors(folder, "aer_dev_fatal"),
        aer_nonfatal=_errors(folder, "aer_dev_nonfatal"),
        aer_correctable=_errors(folder, "aer_dev_correctable"),
    )


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(folder: Path, name: str, otherwise: int = 0) -> int:
    try:
        return int(_text(folder, name), 0)
    except ValueError:
        return otherwise


def _speed(folder: Path, name: str) -> float:
    """ "16.0 GT/s PCIe" as 16.0; "Unknown", which sysfs says of a sleeping or dead device, as 0."""
    try:
        return float(_text(folder, name).split(" ")[0])
    except ValueError:
        return 0.0


def _width(folder: Path, name: str) -> int:
    lanes = _number(folder, name)
    return lanes if 0 < lanes <= MAX_LANES else 0


def _driver(folder: Path) -> str | None:
    try:
        return (folder / "driver").readlink().name
    except OSError:
        return None


def _revision(folder: Path, vendor: int, class_code: int) -> int:
    """Read what sysfs noted at boot, or 0xff where a GPU answers nothing but ones today."""
    if vendor in (NVIDIA, AMD) and class_code >> 16 in (0x03, 0x12) and _config(folder)[:4] == b"\xff\xff\xff\xff":
        return 0xFF
    return _number(folder, "revision")


def _config(folder: Path) -> bytes:
    """The configuration space: 64 bytes for everyone, up to 4096 for root. Nothing where reading would wake it up."""
    if _text(folder, "power/runtime_status") == "suspended":
        return b""
    try:
        return (folder / "config").read_bytes()
    except OSError:
        return b""


def _acs_redirect(folder: Path) -> bool | None:
    config = _config(folder)
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


def _errors(folder: Path, name: str) -> int | None:
    """The total of an AER counter file: its last line, "TOTAL_ERR_FATAL 0". None where there is no such file."""
    total = re.search(r"^TOTAL\S* (\d+)$", _text(folder, name), re.MULTILINE)
    return int(total[1]) if total else None


def _iommu_groups(context: Context) -> int | Unknown:
    try:
        return sum(1 for _ in context.path("/sys/kernel/iommu_groups").iterdir())
    except FileNotFoundError:
        return 0
    except OSError as error:
        return Unknown(f"/sys/kernel/iommu_groups: {error.strerror}")
