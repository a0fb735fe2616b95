"""The NVIDIA driver: its kernel module, its libraries, its device nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.base import Maybe, NotKnown, Unknown, known
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.driver import Driver
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.kernel_log import KernelLog
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.torch import Torch
from ddpdoctor.findings import FAIL, WARN, Evidence, Finding, Fix
from ddpdoctor.knowledge.evidence import cuda_start, kernel_module, libcuda, nvml_start, told
from ddpdoctor.knowledge.nvidia import (
    IN_CONTAINER,
    INSTALL,
    NO_DRIVER,
    NO_GPU,
    NO_NODES,
    NVML_CODES,
    SHUT,
    bus_gpus,
    driver_loaded,
    is_compat,
    own_gpus,
    said,
    shut_nodes,
)
from ddpdoctor.knowledge.root import by_root
from ddpdoctor.knowledge.stuck_driver import cuda_cut_short, nvml_cut_short
from ddpdoctor.registry import LogSign, check, requires
from ddpdoctor.wording import listed, plural

SECURE_BOOT = re.compile(r"Loading of .*module.* is rejected|Lockdown: .*module")


def _judged_here(pci: Pci, machine: Machine, container: Container) -> tuple[PciDevice, ...]:
    """The NVIDIA GPUs whose kernel module is this system's own business."""
    gpus = bus_gpus(pci, machine)
    requires(container.runtime is None, IN_CONTAINER)
    return gpus


def _user_space(driver: Driver) -> bool:
    """Whether the driver's libraries are installed: forward-compatibility packages and stubs are no driver."""
    path = known(driver.libcuda_path)
    return path is not None and not is_compat(path) and "/stubs/" not in path


def _distribution(machine: Machine) -> str:
    return "" if isinstance(machine.os_id, Unknown) else machine.os_id


def _no_module(driver: Driver, machine: Machine) -> Evidence:
    on_disk = driver.module_on_disk
    text = f"no nvidia kernel module is installed for kernel {machine.kernel}"
    if isinstance(on_disk, Unknown):
        text = f"an nvidia kernel module for kernel {machine.kernel}: unknown ({on_disk.reason})"
    return told(driver, "module_on_disk", text)


def _addresses(gpus: tuple[PciDevice, ...]) -> Evidence:
    seen = (f"{one.address} (driver: {one.driver or 'none'})" for one in gpus)
    return Evidence(f"NVIDIA GPUs on the PCI bus: {listed(seen, most=8)}", "/sys/bus/pci/devices")


@check(
    "no-nvidia-driver",
    severity=FAIL,
    log_signs=(
        LogSign("Found no NVIDIA driver on your system"),
        LogSign("libcuda.so.1: cannot open shared object file"),
    ),
)
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
    loaded = driver_loaded(driver)
    # Where /lib/modules can't be seen (a small virtual machine), the missing libraries alone say it.
    if not loaded and not isinstance(driver.module_on_disk, str) and not _user_space(driver):
        name = _distribution(machine)
        yield Finding(
            summary=f"{plural(len(gpus), 'NVIDIA GPU')} on the PCI bus, but no NVIDIA driver is installed",
            evidence=(
                _addresses(gpus),
                kernel_module(driver),
                _no_module(driver, machine),
                libcuda(driver),
            ),
            fixes=(
                by_root("Install the driver and reboot", INSTALL[name])
                if name in INSTALL
                else by_root("Install the driver: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide"),
            ),
        )


@check(
    "nvidia-module-not-loaded",
    severity=FAIL,
    log_signs=(
        LogSign("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"),
        LogSign("No CUDA GPUs are available", why="CUDA_VISIBLE_DEVICES may also hide them all"),
    ),
)
def nvidia_module_not_loaded(
    pci: Pci, driver: Driver, machine: Machine, container: Container, kernel_log: Maybe[KernelLog]
) -> Iterator[Finding]:
    """The NVIDIA driver is installed, but its kernel module is not loaded.

    ## What breaks
    `nvidia-smi` can't communicate with the driver, and torch sees no GPU, often from one day to the next.

    ## Why
    Mostly the kernel was updated and the module was not built for the new one (DKMS failed, or its headers are
    missing). Else Secure Boot refused the module's signature, or nobody loaded it.

    ## Fix
    Build the module for the running kernel (`sudo dkms autoinstall`) and load it (`sudo modprobe nvidia`), or boot the
    previous kernel. With Secure Boot: enrol the signing key (`sudo mokutil --import`), or turn Secure Boot off.
    """
    gpus = _judged_here(pci, machine, container)
    if driver_loaded(driver):
        return
    requires(any(one.driver != "nouveau" for one in gpus), "nouveau holds the GPUs: see nouveau-conflict")
    on_disk = known(driver.module_on_disk)
    requires(on_disk is not None or _user_space(driver), NO_DRIVER)
    evidence = [_addresses(gpus), kernel_module(driver)]
    if on_disk is None:
        debian = _distribution(machine) in ("ubuntu", "debian")
        package = (
            f"apt-get install linux-headers-{machine.kernel}"
            if debian
            else f"dnf install kernel-devel-{machine.kernel}"
        )
        yield Finding(
            summary=f"The NVIDIA driver is installed, but has no kernel module for the running kernel {machine.kernel}",
            cause="The kernel was probably updated, and the module was not built for the new one.",
            evidence=(
                *evidence,
                _no_module(driver, machine),
                libcuda(driver),
            ),
            fixes=(
                by_root(
                    "Build the module for this kernel and load it",
                    (
                        f"sudo {package}",
                        f"sudo dkms autoinstall -k {machine.kernel}",
                        "sudo modprobe -a nvidia nvidia_uvm",
                    ),
                ),
                Fix("Or reboot, and choose the previous kernel in the boot menu"),
            ),
        )
        return
    refused = _secure_boot(kernel_log)
    yield Finding(
        summary=f"The NVIDIA driver {on_disk} is installed, but its kernel module is not loaded",
        cause="The kernel refused the module, because its signature isn't trusted (Secure Boot)." if refused else "",
        evidence=(*evidence, told(driver, "module_on_disk", f"kernel module on disk: {on_disk}"), *refused),
        fixes=(
            by_root(
                "Enrol the key that signed the module, or turn Secure Boot off in the firmware, and reboot",
                ("mokutil --sb-state", "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der", "sudo reboot"),
            )
            if refused
            else by_root(
                "Load the module; if that fails, see the kernel log",
                ("sudo modprobe nvidia", "sudo modprobe nvidia_uvm", "sudo dmesg | tail -n 20"),
            ),
        ),
    )


def _secure_boot(kernel_log: Maybe[KernelLog]) -> tuple[Evidence, ...]:
    """The kernel's words where it turned the module down."""
    if isinstance(kernel_log, Unknown):
        return ()
    return tuple(Evidence(one.text, kernel_log.source) for one in kernel_log.lines if SECURE_BOOT.search(one.text))[:2]


@check(
    "nouveau-conflict",
    severity=FAIL,
    log_signs=(LogSign("NVRM: The NVIDIA probe routine was not called for"),),
)
def nouveau_conflict(
    pci: Pci, driver: Driver, machine: Machine, container: Container, torch: Maybe[Torch]
) -> Iterator[Finding]:
    """Another kernel driver holds the GPU.

    ## What breaks
    The NVIDIA driver is installed but gets no GPU: `nvidia-smi` finds no devices, torch no CUDA.

    ## Why
    A GPU has one kernel driver at a time. nouveau, the open driver for displays, was loaded first and can't run CUDA;
    or all GPUs are lent to virtual machines by vfio-pci.

    ## Fix
    Keep nouveau from loading: `echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf`, rebuild the
    initial ramdisk (`sudo update-initramfs -u` or `sudo dracut --force`), reboot.
    """
    requires(not machine.wsl, "WSL has no PCI bus of its own")
    requires(not machine.jetson, "a Jetson's GPU is not on the PCI bus")
    requires(pci.nvidia_gpus, NO_GPU)
    requires(container.runtime is None, IN_CONTAINER)
    held = tuple(one for one in pci.nvidia_gpus if one.driver == "nouveau")
    lent = all(one.driver in ("vfio-pci", "pci-stub") for one in pci.nvidia_gpus)
    if not held and not lent:
        return
    unused = not isinstance(torch, Unknown) and torch.cpu_only
    if lent:
        requires(not unused, "torch is a CPU-only build")
        yield Finding(
            summary=f"{plural(len(pci.nvidia_gpus), 'NVIDIA GPU')} here, all held for virtual machines (by vfio-pci)",
            evidence=(_addresses(pci.nvidia_gpus),),
            fixes=(
                Fix("Train in the virtual machine that owns the GPUs"),
                by_root(
                    "Or give one back to this host, while no virtual machine uses it",
                    (
                        f"echo {pci.nvidia_gpus[0].address} | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind",
                        f"echo | sudo tee /sys/bus/pci/devices/{pci.nvidia_gpus[0].address}/driver_override",
                        "sudo modprobe nvidia",
                        f"echo {pci.nvidia_gpus[0].address} | sudo tee /sys/bus/pci/drivers_probe",
                    ),
                ),
            ),
            severity=WARN,
        )
        return
    requires(driver_loaded(driver) or known(driver.module_on_disk) is not None or _user_space(driver), NO_DRIVER)
    debian = _distribution(machine) in ("ubuntu", "debian")
    yield Finding(
        summary=f"The display driver nouveau holds {plural(len(held), 'NVIDIA GPU')}, so NVIDIA's driver gets "
        f"{'none' if len(held) == len(pci.nvidia_gpus) else 'only the rest'}",
        evidence=(_addresses(held), _blacklist(driver)),
        fixes=(
            by_root(
                "Keep nouveau from loading, and reboot",
                (
                    r"printf 'blacklist nouveau\noptions nouveau modeset=0\n' "
                    "| sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
                    "sudo update-initramfs -u" if debian else "sudo dracut --force",
                    "sudo reboot",
                ),
            ),
        ),
        severity=WARN if unused else None,
    )


def _blacklist(driver: Driver) -> Evidence:
    listed_there = driver.nouveau_blacklisted
    text = said(listed_there) if isinstance(listed_there, Unknown) else "yes" if listed_there else "no"
    return told(driver, "nouveau_blacklisted", f"nouveau kept from loading by modprobe's settings: {text}")


@check(
    "nvml-driver-mismatch",
    severity=FAIL,
    log_signs=(
        LogSign("Failed to initialize NVML: Driver/library version mismatch"),
        LogSign("nvml error: driver/library version mismatch"),
    ),
)
def nvml_driver_mismatch(driver: Driver, container: Container, machine: Machine) -> Iterator[Finding]:
    """The driver's libraries and its loaded kernel module are of different versions.

    ## What breaks
    `nvidia-smi` says "Driver/library version mismatch", torch finds no GPU, and NCCL can't start. Jobs that ran before
    go on; new ones fail.

    ## Why
    The driver's packages were upgraded (often by unattended-upgrades) while the old kernel module stays loaded until
    the next reboot. In a container: the host was upgraded under it, or the image brings libraries of its own.

    ## Fix
    Reboot, or stop everything that uses the GPUs and reload the modules. Restart containers.
    To keep it from coming back: `sudo apt-mark hold 'nvidia-*' 'libnvidia-*'`.
    """
    loaded = known(driver.kernel_version)
    status = known(driver.nvml_status)
    requires(not machine.wsl, "WSL takes the NVIDIA driver from Windows")
    requires(loaded is not None or status == 18, NO_DRIVER)
    library = (driver.nvml_version if status == 18 else None) or driver.libcuda_version or driver.nvml_version
    if status is None and library is None:
        raise NotKnown("none of the driver's libraries tells its version")
    path = "" if isinstance(driver.libcuda_path, Unknown) else driver.libcuda_path or ""
    initialised = None if isinstance(driver.cuda_init, Unknown) else driver.cuda_init
    # Newer libraries out of a compat folder may serve an older module: that is what they are for.
    differs = loaded is not None and library is not None and loaded != library and not is_compat(path)
    if status != 18 and not (differs and initialised != 0) and not (initialised == 803 and not is_compat(path)):
        return
    yield Finding(
        summary=f"The loaded kernel module is {loaded}, the driver's libraries are {library}"
        if loaded and library and loaded != library
        else "NVML says that the driver's libraries and its loaded kernel module are of different versions",
        cause="The host's driver was changed under this container, or the image brings driver libraries of its own."
        if container.runtime
        else "",
        evidence=(
            kernel_module(driver),
            told(
                driver,
                "libcuda_path",
                f"driver's libraries: version {library or 'unknown'}, {path or 'no libcuda.so.1'}",
            ),
            nvml_start(driver),
        ),
        fixes=(
            (
                Fix("Start the container anew, so that it gets the libraries that the host has now"),
                Fix(
                    "If that doesn't help: remove the driver's packages from the image (as root, in its Dockerfile)",
                    ("apt-get purge -y 'libnvidia-*' 'nvidia-*'",),
                ),
            )
            if container.runtime
            else (
                by_root("Reboot", ("sudo reboot",)),
                Fix(
                    "Or, while no process uses the GPUs, reload the modules (needs root)",
                    (
                        "sudo rmmod nvidia_peermem nvidia_drm nvidia_modeset nvidia_uvm nvidia",
                        "sudo modprobe nvidia_uvm",
                    ),
                ),
            )
        ),
    )


@check("nvml-unavailable", severity=FAIL)
def nvml_unavailable(
    driver: Driver,
    container: Container,
    machine: Machine,
    plan: Plan,
    pci: Maybe[Pci],
    gpus: Maybe[Gpus],
    torch: Maybe[Torch],
) -> Iterator[Finding]:
    """The driver's management library (NVML) doesn't work.

    ## What breaks
    `nvidia-smi` fails, and so does NCCL, which asks NVML for the GPUs' connections when it starts: training on more than
    one GPU stops at the first collective.

    ## Why
    libnvidia-ml.so.1 is missing or isn't the driver's, this user may not open the device nodes, or the driver is in a
    bad state.

    ## Fix
    See what `nvidia-smi` says. In a container: `NVIDIA_DRIVER_CAPABILITIES=compute,utility` (utility is what brings NVML).
    On a host: `sudo dmesg | grep NVRM`, and a reboot if the driver is stuck.
    """
    requires(not machine.jetson, "a Jetson has no full NVML")
    if driver.nvml_end:
        requires(driver.device_nodes or driver_loaded(driver) or own_gpus(known(pci)), NO_GPU)
        yield nvml_cut_short(driver, container, gpus, not isinstance(torch, Unknown) and torch.cuda_available is True)
        return
    requires(driver_loaded(driver) or machine.wsl, NO_DRIVER)
    requires(driver.libcuda_path is not None, "there is no libcuda.so.1")
    status = driver.nvml_status
    if isinstance(status, Unknown):
        raise NotKnown(status.reason)
    requires(status != 18 or machine.wsl, "NVML's version differs from the driver's: see nvml-driver-mismatch")
    requires(status != 15, "a GPU is lost: see gpu-fell-off-bus")
    requires(status != 999 or container.runtime is None, "the container lost its GPUs: see container-lost-gpu")
    requires(status != 4 or not shut_nodes(driver), SHUT)
    if status == 0:
        return
    several = plan.nproc > 1 or sum(bool(re.fullmatch(r"/dev/nvidia\d+", one)) for one in driver.device_nodes) > 1
    missing = status in (None, 12)
    words = "there is no libnvidia-ml.so.1" if status is None else NVML_CODES.get(status, driver.nvml_message)
    fixes = [
        Fix(
            "See what nvidia-smi and the kernel log say, and send it to the administrator",
            ("nvidia-smi", "sudo dmesg | grep NVRM | tail -n 20"),
        )
    ]
    if missing and container.runtime:
        fixes = [
            Fix(
                "Start the container with `-e NVIDIA_DRIVER_CAPABILITIES=compute,utility`; `utility` is what brings NVML"
            )
        ]
    elif missing:
        fixes = [by_root("Install the driver's libraries, in the version of the kernel module")]
    elif status == 18:
        fixes = [Fix("Restart WSL, from Windows: its driver was changed meanwhile", ("wsl.exe --shutdown",))]
    elif status == 4:
        fixes.insert(
            0, Fix("See who may open the device nodes, and which groups you are in", ("ls -l /dev/nvidia*", "id"))
        )
    yield Finding(
        summary=f"NVML can't be used: {words or 'it fails'}" + ("" if status is None else f" (code {status})"),
        evidence=(
            nvml_start(driver),
            *([told(driver, "nvml_path", f"NVML's library: {driver.nvml_path}")] if driver.nvml_path else []),
            *([kernel_module(driver)] if driver.kernel_version else []),
        ),
        fixes=tuple(fixes),
        severity=None if several else WARN,
    )


@check("gpu-device-permission", severity=FAIL)
def gpu_device_permission(driver: Driver, container: Container, machine: Machine) -> Iterator[Finding]:
    """This user may not open the GPU's device nodes.

    ## What breaks
    torch sees no GPU although `nvidia-smi`, run by root, shows them all.

    ## Why
    CUDA talks to the driver through /dev/nvidia*. Their mode or group shuts this user out, or a cgroup does.

    ## Fix
    Join the group that owns them (`ls -l /dev/nvidia*`, then `sudo usermod -aG video $USER` and a new login), or in a
    batch system ask for GPUs, so that it lets the job use them.
    """
    requires(driver.device_nodes, NO_NODES)
    lost = not isinstance(driver.nvml_status, Unknown) and driver.nvml_status == 999 and container.runtime
    requires(not lost, "the container lost its GPUs: see container-lost-gpu")
    closed = shut_nodes(driver)
    if not closed:
        return
    fixes = [
        by_root(
            "Join the group that owns them, and log in again",
            ("ls -l " + " ".join(closed[:3]), "sudo usermod -aG video,render $USER"),
        ),
        Fix("Or, in a batch system, ask for GPUs when you submit the job (Slurm: `--gpus-per-node`)"),
    ]
    if machine.user_id == 0:
        fixes = [Fix("Start the container or the job with its GPUs: a device cgroup shuts out even root")]
    yield Finding(
        summary=f"User {machine.user_id} may not open {listed(closed, most=3)}",
        evidence=(
            told(driver, "unreadable_nodes", f"may not be opened: {listed(driver.unreadable_nodes, most=8)}"),
            machine.seen("user_id"),
        ),
        fixes=tuple(fixes),
    )


@check(
    "cuda-unknown-error",
    severity=FAIL,
    log_signs=(
        LogSign("CUDA unknown error - this may be due to an incorrectly set up environment"),
        LogSign("cuInit returned 999", why="not verified against a release"),
    ),
)
def cuda_unknown_error(
    driver: Driver, container: Container, machine: Machine, torch: Maybe[Torch]
) -> Iterator[Finding]:
    """CUDA can't start: "unknown error", or its start hangs or crashes.

    ## What breaks
    `nvidia-smi` looks fine, and every CUDA program stops with "CUDA unknown error" (999), never gets past its first call, or
    is killed in it.

    ## Why
    Nearly always the nvidia_uvm module: not loaded, its device node missing, or stuck after the machine slept.

    ## Fix
    Reload it: `sudo rmmod nvidia_uvm; sudo modprobe nvidia_uvm; sudo nvidia-modprobe -u -c=0`. Else reboot.
    """
    requires(driver_loaded(driver) or machine.wsl, NO_DRIVER)
    requires(driver.cuda_init is not None, "there is no libcuda.so.1")
    nvml = None if isinstance(driver.nvml_status, Unknown) else driver.nvml_status
    requires((nvml in (0, None) and not driver.nvml_end) or machine.jetson, "NVML fails, too: see nvml-unavailable")
    requires(not shut_nodes(driver), SHUT)
    if driver.cuda_end:
        if isinstance(torch, Unknown) or torch.cuda_available is not True:
            yield cuda_cut_short(driver, container)
        return
    if known(driver.cuda_init) != 999:
        return
    loaded = () if isinstance(driver.loaded_modules, Unknown) else driver.loaded_modules
    reasons = []
    ordinary = not machine.wsl and not machine.jetson
    if "nvidia_uvm" not in loaded and ordinary:
        reasons.append("nvidia_uvm is not loaded")
    if "/dev/nvidia-uvm" not in driver.device_nodes and ordinary:
        reasons.append("/dev/nvidia-uvm is missing")
    yield Finding(
        summary="CUDA can't start: unknown error (cuInit returned 999)" + (f"; {listed(reasons)}" if reasons else ""),
        cause=""
        if reasons or not ordinary
        else "The module nvidia_uvm is there, but it can be stuck after a suspend or a driver change.",
        evidence=(
            cuda_start(driver),
            told(driver, "loaded_modules", f"loaded kernel modules: {listed(loaded, most=8) or 'none of the driver'}"),
            driver.seen("device_nodes", listed(driver.device_nodes, most=4)),
        ),
        fixes=(
            Fix("Start the container anew with the GPUs given by NVIDIA's toolkit (Docker: `--gpus all`)")
            if container.runtime
            else by_root(
                "Reload the module while no process uses the GPUs, or reboot",
                ("sudo rmmod nvidia_uvm", "sudo modprobe nvidia_uvm", "sudo nvidia-modprobe -u -c=0"),
            ),
        ),
    )
