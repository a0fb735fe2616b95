"""The GPUs, as NVML (NVIDIA) or sysfs (AMD) describes them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Source, Unknown

NOT_REPORTED = Unknown("this GPU or driver doesn't report it")


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    name: str = ""
    memory_total: int = 0


class GpuHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A process that NVML lists on a GPU. pid: in the namespace of NVML's asker, 0 where that can't see it. memory: bytes."""

    pid: int
    memory: Maybe[int] = NOT_REPORTED
    kind: str = "compute"
    """"compute", "graphics", "mps server", "mps client"."""
    mig_uuid: str = ""
    """Of the MIG instance on which it is, "" on the whole GPU."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Memory in bytes, temperature in degrees Celsius, clocks in MHz, power in watts.

    A GPU that no longer answers has `lost` True and little else.
    """

    index: int
    """NVML's index, that is PCI bus order; for AMD the order of the PCI bus as well."""
    name: str = ""
    uuid: str = ""
    bus_id: str = ""
    """"0000:17:00.0", as sysfs writes it."""
    vbios: Maybe[str] = NOT_REPORTED
    """The version of its firmware: "96.00.89.00.01"."""
    compute_capability: Maybe[tuple[int, int]] = NOT_REPORTED
    memory_total: Maybe[int] = NOT_REPORTED
    memory_used: Maybe[int] = NOT_REPORTED
    compute_mode: Maybe[str] = NOT_REPORTED
    """"default", "exclusive-process", "exclusive-thread", "prohibited"."""
    mig_enabled: Maybe[bool] = NOT_REPORTED
    mig_instances: tuple[MigInstance, ...] = ()
    ecc_enabled: Maybe[bool] = NOT_REPORTED
    ecc_corrected_volatile: Maybe[int] = NOT_REPORTED
    ecc_uncorrected_volatile: Maybe[int] = NOT_REPORTED
    ecc_uncorrected_aggregate: Maybe[int] = NOT_REPORTED
    row_remap_pending: Maybe[bool] = NOT_REPORTED
    row_remap_failed: Maybe[bool] = NOT_REPORTED
    retired_pages_pending: Maybe[bool] = NOT_REPORTED
    throttle_reasons: Maybe[tuple[str, ...]] = NOT_REPORTED
    """Active ones: "gpu-idle", "app-clocks", "sw-power-cap", "hw-slowdown", "sync-boost", "sw-thermal", "hw-thermal", "hw-power-brake"."""
    temperature: Maybe[int] = NOT_REPORTED
    power: Maybe[float] = NOT_REPORTED
    power_limit: Maybe[float] = NOT_REPORTED
    power_limit_default: Maybe[float] = NOT_REPORTED
    sm_clock: Maybe[int] = NOT_REPORTED
    sm_clock_max: Maybe[int] = NOT_REPORTED
    utilisation: Maybe[int] = NOT_REPORTED
    """Percent of the last sample period in which a kernel ran."""
    pcie_generation: Maybe[int] = NOT_REPORTED
    pcie_generation_max: Maybe[int] = NOT_REPORTED
    """What GPU and slot can do together."""
    pcie_width: Maybe[int] = NOT_REPORTED
    pcie_width_max: Maybe[int] = NOT_REPORTED
    nvlinks_active: Maybe[int] = NOT_REPORTED
    nvlinks_total: Maybe[int] = NOT_REPORTED
    nvlink_errors: Maybe[int] = NOT_REPORTED
    """CRC, replay and recovery errors of all links since the driver was loaded."""
    fabric_state: Maybe[str] = NOT_REPORTED
    """"not-supported", "not-started", "in-progress", "completed"."""
    fabric_status: Maybe[int] = NOT_REPORTED
    """NVML return code of the fabric registration; 0 is good."""
    processes: Maybe[int] = NOT_REPORTED
    """How many compute processes NVML lists on it. A container sees none but its own."""
    processes_memory: Maybe[int] = NOT_REPORTED
    """What these hold together, in bytes."""
    holders: Maybe[tuple[GpuHolder, ...]] = NOT_REPORTED
    """All processes that NVML lists on it, graphics' too."""
    mps_server: bool = False
    """One of these is the server of CUDA's Multi-Process Service, which lets others in through itself."""
    virtualization: Maybe[str] = NOT_REPORTED
    """"none", "passthrough", "vgpu", "host-vgpu", "host-vsga"."""
    architecture: str | None = None
    """AMD: "gfx942"."""
    integrated: bool = False
    """Part of the system on a chip (Jetson): shares the host's memory, is on no PCI bus."""
    lost: bool = False
    """NVML_ERROR_GPU_IS_LOST or the like at any of the questions."""
    error: str = ""
    """NVML's words where a handle or a basic question failed."""


class Gpus(Facts, frozen=True, kw_only=True):
    """All GPUs of this host. `devices` is empty where there is none; `Unknown` instead of the group where nobody could say."""

    devices: Annotated[tuple[Gpu, ...], Source("NVML")]
    vendor: Annotated[str | None, Source("PCI bus")] = None
    """"nvidia", "amd", None without any."""
    p2p: Annotated[Maybe[tuple[tuple[str, ...], ...]], Source("nvmlDeviceGetP2PStatus")] = ()
    """Matrix [i][j] of "ok", "chipset-not-supported", "gpu-not-supported", "disabled-by-regkey", "not-supported", "unknown", "self"."""

    @property
    def answering(self) -> tuple[Gpu, ...]:
        """Those that still answer."""
        return tuple(device for device in self.devices if not device.lost)
