"""The command that installs the right torch for a host: one place, since several checks prescribe it."""

from __future__ import annotations

from ddpdoctor.base.findings import Evidence, Fix
from ddpdoctor.base.text import dotted, plural
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.pci import Pci
from ddpdoctor.facts.target_python import TargetPython
from ddpdoctor.knowledge.evidence import libcuda, told
from ddpdoctor.knowledge.nvidia import own_gpus
from ddpdoctor.knowledge.python_commands import in_target_python, pip_install
from ddpdoctor.knowledge.wheels import DRIVER_FLOOR, JETSON_INDEX, best_tag, index_url, numbers, tag_cuda

ROCM_TAG = "rocm7.1"
MIN_ACCELERATOR_BYTES = 8 * 1024**3
"""An AMD processor's built-in graphics reserve less memory than this; cards that train have more."""


def nvidia_hardware(pci: Maybe[Pci], gpus: Maybe[Gpus], driver: Maybe[Driver]) -> Evidence | None:
    """Find evidence that this host has an NVIDIA GPU of its own; None: there is none.

    Under WSL /dev/dxg stands for a GPU of any maker: it is NVIDIA's where Windows also hands in libcuda.
    """
    if not isinstance(pci, Unknown) and (own := own_gpus(pci)):
        return told(pci, "devices", f"{plural(len(own), 'NVIDIA GPU')} on the PCI bus, the first at {own[0].address}")
    if not isinstance(gpus, Unknown) and gpus.vendor == "nvidia" and gpus.devices:
        return told(gpus, "devices", f"GPUs: {len(gpus.devices)} x {gpus.devices[0].name}")
    if not isinstance(driver, Unknown) and "/dev/dxg" in driver.device_nodes and isinstance(driver.libcuda_path, str):
        return libcuda(driver)
    return None


def amd_accelerator(pci: Maybe[Pci], gpus: Maybe[Gpus]) -> Evidence | None:
    """Find evidence of an AMD GPU that one would train on: an Instinct, or a card with memory of its own."""
    instinct = () if isinstance(pci, Unknown) else [gpu for gpu in pci.amd_gpus if gpu.class_code >> 8 == 0x1200]
    if instinct and not isinstance(pci, Unknown):
        return told(pci, "devices", f"{plural(len(instinct), 'AMD accelerator')}, the first at {instinct[0].address}")
    if not isinstance(gpus, Unknown) and gpus.vendor == "amd":
        for device in gpus.devices:
            if isinstance(device.memory_total, int) and device.memory_total >= MIN_ACCELERATOR_BYTES:
                return told(gpus, "devices", f"GPUs: {len(gpus.devices)} x {device.name}")
    return None


def driver_cuda(driver: Maybe[Driver], machine: Maybe[Machine]) -> tuple[int, int] | None:
    """The newest CUDA that the driver serves: its own word, else by its version number; None: not to be told.

    Version numbers of Windows' and Jetson's drivers follow other series, so only Linux' own count.
    """
    if isinstance(driver, Unknown):
        return None
    if isinstance(driver.cuda_version, tuple):
        return driver.cuda_version
    if isinstance(machine, Unknown) or machine.wsl or machine.jetson or driver.version is None:
        return None
    served = [major for major, floor in DRIVER_FLOOR.items() if numbers(driver.version) >= numbers(floor)]
    return (max(served), 0) if served else (0, 0)


def capabilities(gpus: Maybe[Gpus]) -> list[tuple[int, int]]:
    """Compute capabilities of the GPUs that tell theirs."""
    if isinstance(gpus, Unknown):
        return []
    return [device.compute_capability for device in gpus.devices if isinstance(device.compute_capability, tuple)]


def install_torch(
    target_python: TargetPython,
    driver: Maybe[Driver],
    gpus: Maybe[Gpus],
    pci: Maybe[Pci],
    machine: Maybe[Machine],
    packages: Maybe[Packages],
) -> Fix:
    """Install the newest torch that this host's driver and GPUs can run, with those of its companions that are there."""
    if target_python.externally_managed:
        return Fix(
            "Make an environment, since this system keeps pip out of its own Python (PEP 668), and check that one",
            (in_target_python(target_python, "-m", "venv", "ddp-env"), "ddpdoctor check --python ddp-env/bin/python"),
        )
    names = replacing(packages)
    if not isinstance(machine, Unknown) and machine.jetson:
        return jetson_fix(target_python, driver, packages)
    if nvidia_hardware(pci, gpus, driver):
        cuda = driver_cuda(driver, machine)
        tag = best_tag(cuda, capabilities(gpus))
        if tag is None:
            return Fix(
                "Ask the administrator for a newer driver first, and send what this prints: no current build of torch works "
                "with this driver and these GPUs",
                ("nvidia-smi",),
            )
        reason = (
            f"the driver serves CUDA {dotted(cuda)}" if cuda else "chosen by the GPU, since no driver could be asked"
        )
        name = dotted(tag_cuda(tag) or ())
        return Fix(f"Install the build for CUDA {name} ({reason})", _pip(target_python, index_url(tag), names))
    if amd_accelerator(pci, gpus):
        return rocm_fix(target_python, packages)
    return Fix("Install the CPU build (there is no GPU here)", _pip(target_python, index_url("cpu"), names))


def replacing(packages: Maybe[Packages], torch: str = "torch") -> tuple[str, ...]:
    """pip's arguments that put another torch in place of the one that is there, and its companions with it.

    `--force-reinstall`, because pip takes "2.13.0+cpu" for the 2.13.0 of any index; the companions, because each is
    compiled against one build of torch. torch: how it is named, perhaps with a version.
    """
    if isinstance(packages, Unknown):
        return (torch,)
    companions = [name for name in ("torchvision", "torchaudio") if packages.version(name)]
    return (*(["--force-reinstall"] if packages.version("torch") else []), torch, *companions)


def uninstall(target_python: TargetPython, *names: str) -> str:
    """The command that removes packages from the target Python, and from nowhere else."""
    return in_target_python(target_python, "-m", "pip", "uninstall", "-y", *names)


def rocm_fix(target_python: TargetPython, packages: Maybe[Packages]) -> Fix:
    """Install the build for AMD GPUs."""
    return Fix("Install the build for ROCm", _pip(target_python, index_url(ROCM_TAG), replacing(packages)))


def jetson_fix(target_python: TargetPython, driver: Maybe[Driver], packages: Maybe[Packages]) -> Fix:
    """Install NVIDIA's build for this Jetson, if it is one of JetPack 6."""
    cuda = None if isinstance(driver, Unknown) else driver.cuda_version
    if cuda == (12, 6):
        return Fix("Install NVIDIA's build for JetPack 6", _pip(target_python, JETSON_INDEX, replacing(packages)))
    return Fix(
        "Install NVIDIA's own build of torch for this Jetson's JetPack (https://pypi.jetson-ai-lab.io); this shows its release",
        ("cat /etc/nv_tegra_release",),
    )


def _pip(target_python: TargetPython, index: str, names: tuple[str, ...]) -> tuple[str, ...]:
    install = pip_install(target_python, *names, "--index-url", index)
    if target_python.pip_version is None:
        return (in_target_python(target_python, "-m", "ensurepip", "--upgrade"), install)
    return (install,)
