"""Whether NVIDIA's kernel module is there, loaded, and holds the GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.log_signs import SignRole
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, if_known, known, known_or
from ddpdoctor.checks.shared_fixes import distribution_of, install_package, is_debian
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, check, requires
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.facts.snapshot import Container, Driver, KernelLog, Machine, Torch
from ddpdoctor.knowledge.evidence import kernel_module, libcuda, told
from ddpdoctor.knowledge.nvidia import (
    IN_CONTAINER,
    INSTALL,
    NO_DRIVER,
    bus_gpus,
    driver_loaded,
    is_compat,
    needs_bus_gpus,
)
from ddpdoctor.knowledge.privileges import by_root
from ddpdoctor.logs.analyze.false_positives import may_be_of_one

SECURE_BOOT = compile_lazily(r"Loading of .*module.* is rejected|Lockdown: .*module")


def _judged_here(pci: Pci, machine: Machine, container: Container) -> tuple[PciDevice, ...]:
    """The NVIDIA GPUs whose kernel module is this system's own business."""
    gpus = bus_gpus(pci, machine)
    requires(container.runtime is None, IN_CONTAINER)
    return gpus


def _user_space(driver: Driver) -> bool:
    """Whether the driver's libraries are installed: forward-compatibility packages and stubs are no driver."""
    path = known(driver.libcuda_path)
    return path is not None and not is_compat(path) and "/stubs/" not in path


def _is_installed(driver: Driver) -> bool:
    """Whether a module of it is there for this kernel, or its libraries are."""
    if isinstance(driver.module_on_disk, str) or if_known(_user_space, driver, default=False):
        return True
    return known(driver.module_on_disk) is not None or _user_space(driver)


def _no_module(driver: Driver, machine: Machine) -> Evidence:
    on_disk = driver.module_on_disk
    kernel = f"kernel {if_known(lambda: machine.kernel, default='')}".strip()
    text = f"no nvidia kernel module is installed for {kernel}"
    if isinstance(on_disk, Unknown):
        text = f"an nvidia kernel module for {kernel}: unknown ({on_disk.reason})"
    return told(driver, "module_on_disk", text)


def _addresses(gpus: tuple[PciDevice, ...]) -> Evidence:
    seen = (f"{gpu.address} (driver: {gpu.driver or 'none'})" for gpu in gpus)
    return Evidence(f"NVIDIA GPUs on the PCI bus: {listed(seen, most=8)}", "/sys/bus/pci/devices")


_NO_LIBRARY: Final = ("Found no NVIDIA driver", "libcuda.so")


def _as_a_run_sees_it(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """A log doesn't tell whether there is a GPU at all."""
    if any(match.role is SignRole.NAMES for match in seen):
        return Particulars()
    no_library = any(part in match.sign for match in seen for part in _NO_LIBRARY)
    return Particulars(
        summary="torch finds no NVIDIA driver" if no_library else "torch sees no GPU",
        cause="libcuda.so.1, which comes with the driver, isn't where the job ran, or shows no GPU: a node without GPUs (a login node, a partition for CPUs, "
        "a job that asked for none), a container that was started without them, or a host whose driver was never installed.",
        fixes=(
            Fix("See on that host, in the same job and container, whether there is one", ("nvidia-smi -L",)),
            Fix("Under Slurm ask for GPUs", ("sbatch --gres=gpu:1 job.sh",)),
            Fix("Start a container with its GPUs", ("docker run --gpus all ...", "apptainer exec --nv ...")),
            Fix("If the host has a GPU and no driver, the administrator has to install it"),
        ),
    )


@check("no-nvidia-driver", severity=FAIL, owner=Owner.NODE, log=LogTraits(particulars=_as_a_run_sees_it))
def no_nvidia_driver(pci: Pci, driver: Driver, machine: Machine, container: Container) -> Iterator[Finding]:
    """There is an NVIDIA GPU, and no NVIDIA driver.

    ## What breaks
    `torch.cuda.is_available()` is False, and anything that wants the GPU stops with "Found no NVIDIA driver on your
    system". Training then runs on the CPU, or not at all.

    ## Why
    torch brings its own CUDA libraries but not the driver: kernel module and libcuda.so.1 belong to the system.

    ## Fix
    Ask the administrator to install the driver (Ubuntu: `sudo ubuntu-drivers install --gpgpu`) and to reboot.
    In a container nothing is installed; it must be started with the GPU (see container-no-gpu).
    """
    gpus = _judged_here(pci, machine, container)
    # Where /lib/modules can't be seen (a small virtual machine), the missing libraries alone say it.
    if not driver_loaded(driver) and not isinstance(driver.module_on_disk, str) and not _user_space(driver):
        name = distribution_of(machine)
        yield Finding.of(
            f"{plural(len(gpus), 'NVIDIA GPU')} on the PCI bus, but no NVIDIA driver is installed",
            _addresses(gpus),
            kernel_module(driver),
            _no_module(driver, machine),
            libcuda(driver),
            by_root("Install the driver and reboot", INSTALL[name])
            if name in INSTALL
            else by_root("Install the driver: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide"),
        )


def _is_built_for_it(one: SignMatch, log: Log) -> bool:
    """Whether the kernel for which dkms has built the driver is the one that runs: then its files are missing here, as in a container."""
    kernel = one.words.get("kernel", "")
    missed = [
        match.line
        for match in log.sightings
        if match.sign == "modprobe: FATAL: Module nvidia not found in directory" and may_be_of_one(match.line, one.line)
    ]
    return one.sign == ": installed" and any(line.text.rstrip().endswith(f"/{kernel}") for line in missed)


@check("nvidia-module-not-loaded", severity=FAIL, owner=Owner.NODE, log=LogTraits(refuted=_is_built_for_it))
def nvidia_module_not_loaded(
    pci: Pci, driver: Driver, machine: Machine, container: Container, kernel_log: Maybe[KernelLog]
) -> Iterator[Finding]:
    """The NVIDIA driver is installed, but its kernel module is not loaded.

    ## What breaks
    `nvidia-smi` can't communicate with the driver, and torch sees no GPU, often from one day to the next.

    ## Why
    Mostly the kernel was updated and the module was not built for the new one (DKMS failed, or its headers are
    missing). Otherwise Secure Boot refused the module's signature, or it was never loaded.

    ## Fix
    Build the module for the running kernel (`sudo dkms autoinstall`) and load it (`sudo modprobe nvidia`), or boot the
    previous kernel. With Secure Boot: enrol the signing key (`sudo mokutil --import`), or turn Secure Boot off.
    """
    gpus = _judged_here(pci, machine, container)
    if driver_loaded(driver):
        return
    requires(any(gpu.driver != "nouveau" for gpu in gpus), "nouveau holds the GPUs: see nouveau-conflict")
    requires(_is_installed(driver), NO_DRIVER)
    on_disk = driver.module_on_disk
    evidence = [_addresses(gpus), kernel_module(driver)]
    if on_disk is None:
        running = if_known(lambda: machine.kernel, default="")
        kernel = shlex.quote(running) if running else '"$(uname -r)"'
        headers = install_package(machine, f"linux-headers-{kernel}", f"kernel-devel-{kernel}")
        build, load = f"sudo dkms autoinstall -k {kernel}", "sudo modprobe -a nvidia nvidia_uvm"
        yield Finding.of(
            f"The NVIDIA driver is installed, but has no kernel module for the running kernel {running}".strip(),
            evidence,
            _no_module(driver, machine),
            libcuda(driver),
            by_root("Build the module for this kernel and load it", (headers, build, load)),
            Fix("Or reboot, and choose the previous kernel in the boot menu"),
            cause="The kernel was probably updated, and the module was not built for the new one.",
        )
        return
    refused = _secure_boot(kernel_log)
    fix = by_root(
        "Load the module; if that fails, see the kernel log",
        ("sudo modprobe nvidia", "sudo modprobe nvidia_uvm", "sudo dmesg | tail -n 20"),
    )
    if refused:
        fix = by_root(
            "Enrol the key that signed the module, or turn Secure Boot off in the firmware, and reboot",
            ("mokutil --sb-state", "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der", "sudo reboot"),
        )
    yield Finding.of(
        f"The NVIDIA driver {known_or(on_disk, '')} is installed, but its kernel module is not loaded".replace(
            "  ", " "
        ),
        evidence,
        _no_module(driver, machine)
        if isinstance(on_disk, Unknown)
        else told(driver, "module_on_disk", f"kernel module on disk: {on_disk}"),
        refused,
        fix,
        cause="The kernel refused the module, because its signature isn't trusted (Secure Boot)." if refused else "",
    )


def _secure_boot(kernel_log: Maybe[KernelLog]) -> tuple[Evidence, ...]:
    """The kernel's first lines about a module that it refused."""
    if isinstance(kernel_log, Unknown):
        return ()
    refusals = (Evidence(line.text, kernel_log.source) for line in kernel_log.lines if SECURE_BOOT.search(line.text))
    return tuple(islice(refusals, 2))


@check("nouveau-conflict", severity=FAIL, owner=Owner.NODE)
def nouveau_conflict(
    pci: Pci, driver: Driver, machine: Machine, container: Container, torch: Maybe[Torch]
) -> Iterator[Finding]:
    """Another kernel driver holds the GPU.

    ## What breaks
    The NVIDIA driver is installed but gets no GPU: `nvidia-smi` finds no devices, torch no CUDA.

    ## Why
    A GPU has one kernel driver at a time. nouveau, the open driver for displays, was loaded first and can't run CUDA;
    or all GPUs are reserved for virtual machines by vfio-pci.

    ## Fix
    Keep nouveau from loading: `echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf`, rebuild the
    initial ramdisk (`sudo update-initramfs -u` or `sudo dracut --force`), reboot.
    """
    needs_bus_gpus(pci, machine)
    requires(container.runtime is None, IN_CONTAINER)
    held = tuple(gpu for gpu in pci.nvidia_gpus if gpu.driver == "nouveau")
    lent = all(gpu.is_lent for gpu in pci.nvidia_gpus)
    if not held and not lent:
        return
    unused = not isinstance(torch, Unknown) and torch.cpu_only
    if lent:
        requires(not unused, "torch is a CPU-only build")
        address = shlex.quote(pci.nvidia_gpus[0].address)
        yield Finding.of(
            f"{plural(len(pci.nvidia_gpus), 'NVIDIA GPU')} here, all held for virtual machines (by vfio-pci)",
            _addresses(pci.nvidia_gpus),
            Fix("Train in the virtual machine that owns the GPUs"),
            by_root(
                "Or give one back to this host, while no virtual machine uses it",
                (
                    f"echo {address} | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind",
                    f"echo | sudo tee /sys/bus/pci/devices/{address}/driver_override",
                    "sudo modprobe nvidia",
                    f"echo {address} | sudo tee /sys/bus/pci/drivers_probe",
                ),
            ),
            severity=WARN,
        )
        return
    requires(driver_loaded(driver) or _is_installed(driver), NO_DRIVER)
    block = r"printf 'blacklist nouveau\noptions nouveau modeset=0\n' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf"
    again = "sudo update-initramfs -u" if is_debian(machine) else "sudo dracut --force"
    rest = "none" if len(held) == len(pci.nvidia_gpus) else "only the rest"
    yield Finding.of(
        f"The display driver nouveau holds {plural(len(held), 'NVIDIA GPU')}, so NVIDIA's driver gets {rest}",
        _addresses(held),
        _blacklist(driver),
        by_root("Keep nouveau from loading, and reboot", (block, again, "sudo reboot")),
        severity=WARN if unused else None,
    )


def _blacklist(driver: Driver) -> Evidence:
    blocked = driver.nouveau_blacklisted
    text = blocked.reason if isinstance(blocked, Unknown) else "yes" if blocked else "no"
    return told(driver, "nouveau_blacklisted", f"nouveau kept from loading by modprobe's settings: {text}")
