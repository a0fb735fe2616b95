"""The host itself: operating system, processors, memory, and what kind of machine it is."""

from __future__ import annotations

from typing import Annotated

from ddpdoctor.base.unknown import Facts, Maybe, Source


class Machine(Facts, frozen=True, kw_only=True):
    """Sizes in bytes. `usable_cores` is what this process may run on (its affinity), not what the machine has."""

    system: Annotated[str, Source("uname")]
    """"Linux", "Darwin", "Windows"."""
    kernel: Annotated[str, Source("uname -r")]
    architecture: Annotated[str, Source("uname -m")]
    os_name: Annotated[Maybe[str], Source("/etc/os-release")]
    """PRETTY_NAME, such as "Ubuntu 22.04.5 LTS"."""
    os_id: Annotated[Maybe[str], Source("/etc/os-release")]
    """ID, such as "ubuntu", "debian", "rhel"."""
    logical_cores: Annotated[Maybe[int], Source("/proc/cpuinfo")]
    usable_cores: Annotated[Maybe[int], Source("sched_getaffinity")]
    memory_total: Annotated[Maybe[int], Source("/proc/meminfo")]
    memory_available: Annotated[Maybe[int], Source("/proc/meminfo")]
    wsl: Annotated[bool, Source("/proc/sys/kernel/osrelease")] = False
    """Windows Subsystem for Linux: the driver is Windows' own, libcuda lies in /usr/lib/wsl/lib."""
    jetson: Annotated[bool, Source("/etc/nv_tegra_release or the device tree")] = False
    """NVIDIA Jetson: an integrated GPU, not on the PCI bus, no NVML before JetPack 6."""
    user_id: Annotated[int, Source("geteuid")] = 0
    boot_id: Annotated[Maybe[str | None], Source("/proc/sys/kernel/random/boot_id")] = None
    kernel_command_line: Annotated[Maybe[str], Source("/proc/cmdline")] = ""
