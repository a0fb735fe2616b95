"""Rules that checks on NVIDIA hardware share: is there any to judge, and how its GPUs are named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from ddpdoctor.base.text import listed
from ddpdoctor.base.unknown import Maybe, NotKnown, Unknown, if_known, known
from ddpdoctor.engine.registry import requires
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.pci import Pci, PciDevice

NO_GPU = "no NVIDIA GPU on this host"
NO_DRIVER = "this host has no NVIDIA driver"
NO_NODES = "there are no GPU device nodes here"
IN_CONTAINER = "in a container this is the host's matter"


NVML_CODES = {
    1: "NVML says that it was not initialised",
    2: "NVML got an argument that it doesn't know; its version and the driver's may differ",
    3: "this NVML doesn't support the call",
    4: "this user has no permission to talk to the driver",
    8: "a GPU's extra power cables are not plugged in properly",
    9: "the NVIDIA driver is not loaded",
    10: "the driver did not answer in time",
    11: "the kernel has a problem with the GPU's interrupts",
    12: "libnvidia-ml.so.1 can't be loaded",
    13: "this libnvidia-ml.so.1 lacks a function: it is too old, or no driver's",
    14: "the information ROM of a GPU is corrupted",
    16: "a GPU needs a reset before it can be used again",
    17: "the operating system (a cgroup) blocks access to the GPU",
    18: "the driver's libraries and its kernel part are of different versions",
    20: "there is not enough memory",
    23: "the driver ran out of resources",
    27: "the system is not ready yet",
    999: "the driver reports an error without a name",
}
"""NVML return codes in plain words; 15 has a check of its own, and so has 18 but under WSL."""

INSTALL = {
    "ubuntu": ("sudo ubuntu-drivers install --gpgpu", "sudo reboot"),
    "debian": ("sudo apt-get install linux-headers-amd64 nvidia-driver", "sudo reboot"),
    "rhel": ("sudo dnf module install nvidia-driver:open-dkms", "sudo reboot"),
    "rocky": ("sudo dnf module install nvidia-driver:open-dkms", "sudo reboot"),
    "almalinux": ("sudo dnf module install nvidia-driver:open-dkms", "sudo reboot"),
    "fedora": ("sudo dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda", "sudo reboot"),
    "arch": ("sudo pacman -S nvidia-open nvidia-utils", "sudo reboot"),
}
"""ID of the distribution to the commands that install the driver."""


def nvidia_gpus(gpus: Gpus) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that answer.

    It ends the check where there is none on this host.

    Raises:
        NotKnown: there are some, and the driver shows none of them.
    """
    requires(gpus.vendor != "amd" and (gpus.devices or gpus.vendor), NO_GPU)
    if not gpus.devices:
        raise NotKnown("the NVIDIA driver lists no GPU")
    if not gpus.answering:
        raise NotKnown("no NVIDIA GPU answers")
    return gpus.answering


def compute_capability(gpu: Gpu) -> tuple[int, int]:
    """A GPU's compute capability.

    Raises:
        NotKnown: it isn't reported; says so in words that need no knowledge of NVML.
    """
    if isinstance(gpu.compute_capability, Unknown):
        raise NotKnown(f"the compute capability of GPU {gpu.index} is not reported")
    return gpu.compute_capability


def own_gpus(pci: Pci) -> tuple[PciDevice, ...]:
    """The NVIDIA GPUs on the bus that this system itself may use: those lent to virtual machines don't count."""
    return tuple(nvidia_gpu for nvidia_gpu in pci.nvidia_gpus if not nvidia_gpu.is_lent)


def needs_bus_gpus(pci: Pci, machine: Machine) -> None:
    """End the check where no NVIDIA GPU is on the PCI bus. One that is there tells that this is neither WSL nor a Jetson."""
    wsl, jetson = if_known(lambda: (machine.wsl, machine.jetson), default=(False, False))
    requires(not wsl, "WSL has no PCI bus of its own")
    requires(not jetson, "a Jetson's GPU is not on the PCI bus")
    requires(pci.nvidia_gpus, NO_GPU)


def bus_gpus(pci: Pci, machine: Machine) -> tuple[PciDevice, ...]:
    """The NVIDIA GPUs on the PCI bus that this system itself may use. It ends the check, with the reason, where there is none."""
    needs_bus_gpus(pci, machine)
    requires(own_gpus(pci), "all NVIDIA GPUs are lent to virtual machines")
    return own_gpus(pci)


def driver_loaded(driver: Driver) -> bool:
    """Whether the nvidia kernel module is loaded, by either of its two traces. It ends the check where neither could be read."""
    if isinstance(driver.kernel_version, Unknown):
        return "nvidia" in known(driver.loaded_modules)
    loaded = () if isinstance(driver.loaded_modules, Unknown) else driver.loaded_modules
    return driver.kernel_version is not None or "nvidia" in loaded


def shut_nodes(driver: Driver) -> list[str]:
    """The nodes without which CUDA can't work and that this user may not open.

    A batch system shuts the other jobs' GPUs: as long as one is open, that is as it should be.
    """
    shut = set(driver.unreadable_nodes)
    numbered = set(driver.gpu_nodes)
    needed = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg", "/dev/nvmap"} & shut
    return sorted(needed | (numbered & shut)) if needed or (numbered and numbered <= shut) else []


def is_compat(path: str | None) -> bool:
    """Whether a libcuda is one for forward compatibility: /usr/local/cuda/compat/..., conda's /opt/conda/cuda-compat/..."""
    return path is not None and re.search(r"[/-]compat/", path) is not None


def called(gpus: Sequence[Gpu]) -> str:
    """ "GPU 3", "GPUs 0, 1 and 5", "GPUs 0-7"."""
    indices = [gpu.index for gpu in gpus]
    if len(indices) > 2 and indices == list(range(indices[0], indices[0] + len(indices))):
        return f"GPUs {indices[0]}-{indices[-1]}"
    return ("GPU " if len(indices) == 1 else "GPUs ") + listed(indices, most=8)


def older(version: str | None, than: str) -> bool:
    """Whether a driver version such as "525.60.13" is older; False for what is no version."""
    try:
        return version is not None and Version(version) < Version(than)
    except InvalidVersion:
        return False


def without(all_of: Iterable[Gpu], bad: Iterable[Gpu]) -> str:
    """The command that leaves the bad ones out of the next run."""
    lost = {gpu.index for gpu in bad}
    return "export CUDA_VISIBLE_DEVICES=" + ",".join(str(gpu.index) for gpu in all_of if gpu.index not in lost)


def said(value: Maybe[object]) -> str:
    """A value for an evidence line, or why there is none."""
    return value.reason if isinstance(value, Unknown) else "none" if value is None else str(value)
