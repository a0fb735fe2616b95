"""Devices on the PCI bus, as sysfs shows it to everyone."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One display, 3D, bridge or InfiniBand function. Link speeds in GT/s, widths in lanes; 0 if sysfs doesn't say."""

    address: str
    """"0000:17:00.0", as sysfs writes it."""
    vendor: int
    """0x10de is NVIDIA, 0x1002 AMD, 0x8086 Intel, 0x15b3 Mellanox."""
    device: int
    class_code: int
    """24 bits: 0x030000 VGA, 0x030200 3D controller, 0x068000 NVSwitch bridge, 0x060400 PCI bridge."""
    driver: str | None = None
    """The kernel driver bound to it: "nvidia", "nouveau", "vfio-pci", None."""
    revision: int = 0
    """0xff: the device no longer answers."""
    link_speed: float = 0.0
    link_speed_max: float = 0.0
    link_width: int = 0
    link_width_max: int = 0
    parent: str | None = None
    """Address of the bridge above it."""
    parent_link_speed_max: float = 0.0
    parent_link_width_max: int = 0
    numa_node: int = -1
    acs_redirect: bool | None = None
    """For bridges: whether ACS sends peer-to-peer traffic up to the root. None: not readable (needs root)."""
    iommu_domain: str | None = None
    """Type of its IOMMU group's domain: "identity" (passed through), "DMA", "DMA-FQ"; None: no group, or not readable."""
    aer_fatal: int | None = 0
    """Errors since boot; None: the kernel or the firmware doesn't count them for this device."""
    aer_nonfatal: int | None = 0
    aer_correctable: int | None = 0

    @property
    def is_nvidia_gpu(self) -> bool:
        """An NVIDIA display or 3D controller (not its audio function, not an NVSwitch)."""
        return self.vendor == 0x10DE and self.class_code >> 16 == 0x03

    @property
    def is_amd_gpu(self) -> bool:
        """An AMD display, 3D or accelerator function."""
        return self.vendor == 0x1002 and (self.class_code >> 16 == 0x03 or self.class_code >> 8 == 0x1200)

    @property
    def is_lent(self) -> bool:
        """Whether it is set aside for virtual machines, so that this system can't use it."""
        return self.driver in ("vfio-pci", "pci-stub")

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == 0x10DE and self.class_code >> 8 == 0x0680


class Pci(Facts, frozen=True, kw_only=True):
    """The functions that matter here (displays, accelerators, NVSwitches, bridges above them, HCAs)."""

    devices: Annotated[tuple[PciDevice, ...], Source("/sys/bus/pci/devices")]
    iommu_groups: Annotated[Maybe[int], Source("/sys/kernel/iommu_groups")] = 0
    """How many IOMMU groups there are; 0 means that the IOMMU is off."""

    @property
    def nvidia_gpus(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.devices if device.is_nvidia_gpu)

    @property
    def amd_gpus(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.devices if device.is_amd_gpu)

    @property
    def nvswitches(self) -> tuple[PciDevice, ...]:
        return tuple(device for device in self.devices if device.is_nvswitch)
