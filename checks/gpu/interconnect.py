"""The ways between the GPUs of one host: NVLink, NVSwitch and its fabric manager, peer-to-peer over PCIe."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.checks.shared_fixes import install_package, is_debian
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.environment import value_of
from ddpdoctor.facts.gpus import Gpu
from ddpdoctor.facts.pci import Pci, PciDevice
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import Container, Driver, Environment, Gpus, KernelLog, Machine, Packages, Torch
from ddpdoctor.knowledge.evidence import cuda_start, told
from ddpdoctor.knowledge.nvidia import NO_DRIVER, bus_gpus, called, driver_loaded, nvidia_gpus, older, said
from ddpdoctor.knowledge.privileges import by_root, on_the_host
from ddpdoctor.knowledge.xids import SXID_LINE, reported

WITHOUT_P2P = Fix(
    "Until this is repaired, let NCCL go through host memory: slower, but it works", ("export NCCL_P2P_DISABLE=1",)
)
REBOOT = "Reboot, and if the errors come back, have the board examined"
DAY_SECONDS = 86400.0


def _off(environment: Maybe[Environment], name: str) -> bool:
    return value_of(environment, name) not in ("", "0")


@check("fabric-manager-not-running", severity=FAIL, owner=Owner.NODE)
def fabric_manager_not_running(
    driver: Driver, pci: Pci, gpus: Maybe[Gpus], container: Maybe[Container], machine: Machine, plan: Plan
) -> Iterator[Finding]:
    """The NVSwitch fabric isn't ready: its manager doesn't run, or has another version than the driver.

    ## What breaks
    `nvidia-smi` looks fine, and every CUDA program stops with "system not yet initialized" (802). On newer boards CUDA
    starts, but without NVLink.

    ## Why
    Boards with NVSwitches (HGX and DGX A100, H100, H200, B200) need nvidia-fabricmanager, in exactly the driver's
    version, to set up the switches at boot. A driver upgrade often leaves its version behind.

    ## Fix
    `sudo apt-get install nvidia-fabricmanager-<branch>=<driver's version>`, then
    `sudo systemctl enable --now nvidia-fabricmanager`. In a container or virtual machine: the host has to do it.
    """
    bus_gpus(pci, machine)
    requires(driver_loaded(driver), NO_DRIVER)
    devices = () if isinstance(gpus, Unknown) or gpus.vendor == "amd" else gpus.answering
    initialised = known_or(driver.cuda_init, None)
    joining = ("not-started", "in-progress")
    waiting = tuple(gpu for gpu in devices if gpu.fabric_state in joining or _is_rejected(gpu))
    done = any(device.fabric_state == "completed" for device in devices) and not waiting
    requires(pci.nvswitches or waiting or done or initialised == 802, "no NVSwitch on this host")
    manager = driver.fabric_manager
    here = isinstance(container, Container) and container.runtime is None
    theirs = known_or(driver.fabric_manager_version, None)
    differs = None not in (theirs, driver.version) and theirs != driver.version
    severity: Severity | None = None
    if initialised == 802:
        summary = "CUDA can't start: the NVSwitch fabric is not set up (802, system not yet initialized)"
    elif waiting and (plan.nproc > 1 or initialised != 0):
        states = listed(sorted({_fabric(gpu) for gpu in waiting}))
        summary = f"{called(waiting)} didn't join the NVLink fabric ({states})"
        severity = WARN if initialised == 0 else None
    elif not done and pci.nvswitches and manager != "active" and known(container).runtime is None:
        if isinstance(manager, Unknown):
            leave_untested(manager.reason)
        summary = f"{plural(len(pci.nvswitches), 'NVSwitch', 'NVSwitches')} here, but the fabric manager is {_manager(driver)}"
        severity = WARN if initialised == 0 else None
    elif differs and known(container).runtime is None:
        summary = f"The fabric manager is {theirs}, but the driver is {driver.version}: it won't start again"
        severity = WARN
    else:
        requires(not waiting, "a single rank needs no NVLink")
        if not done:
            known(driver.cuda_init)
        for nvidia_gpu in nvidia_gpus(known(gpus)):
            if known(nvidia_gpu.fabric_state) == "completed":
                known(nvidia_gpu.fabric_status)
        if known(container).runtime is None and manager is not None:
            known(driver.fabric_manager_version)
        return
    yield Finding.of(
        summary,
        cuda_start(driver),
        told(driver, "fabric_manager", f"fabric manager: {_manager(driver)}") if here else None,
        told(driver, "fabric_manager_version", f"fabric manager's version: {theirs}") if theirs else None,
        Evidence(f"driver {driver.version}", "/proc/driver/nvidia/version, NVML"),
        (Evidence(f"GPU {gpu.index}: joining the fabric: {_fabric(gpu)}", "NVML") for gpu in waiting[:8]),
        _fabric_fixes(driver, machine, here, installed=not here or manager is not None, differs=differs),
        cause=f"Fabric manager {theirs} refuses to work with driver {driver.version}: the versions must be the same."
        if here and differs
        else "",
        severity=severity,
    )


def _manager(driver: Driver) -> str:
    return "not installed" if driver.fabric_manager is None else said(driver.fabric_manager)


def _is_rejected(gpu: Gpu) -> bool:
    """Whether the GPU tried to join the fabric, in vain."""
    return gpu.fabric_state == "completed" and known_or(gpu.fabric_status, 0) != 0


def _fabric(gpu: Gpu) -> str:
    return f"failed with code {gpu.fabric_status}" if _is_rejected(gpu) else str(gpu.fabric_state)


def _fabric_fixes(driver: Driver, machine: Machine, here: bool, installed: bool, differs: bool) -> tuple[Fix, ...]:
    if not here:
        text = "Ask the administrator to start nvidia-fabricmanager on the host, which a container can't do; there, this shows its state"
        return (Fix(text, ("systemctl status nvidia-fabricmanager",)),)
    start = ("sudo systemctl enable nvidia-fabricmanager", "sudo systemctl restart nvidia-fabricmanager")
    look = Fix(
        "If it doesn't start, see why", ("systemctl status nvidia-fabricmanager", "tail /var/log/fabricmanager.log")
    )
    if installed and not differs:
        again = "Restart" if driver.fabric_manager == "active" else "Start"
        return by_root(f"{again} the fabric manager", start), look
    version = driver.version or ""
    debian = f"nvidia-fabricmanager-{shlex.quote(version.split('.')[0])}={shlex.quote(f'{version}-*')}"
    install = install_package(machine, debian, f"nvidia-fabric-manager-{shlex.quote(version)}")
    return by_root("Install it in the driver's version, and start it", (install, *start)), look


@check("nvlink-error", severity=WARN, owner=Owner.NODE)
def nvlink_error(
    gpus: Gpus, pci: Maybe[Pci], kernel_log: Maybe[KernelLog], container: Maybe[Container]
) -> Iterator[Finding]:
    """NVLinks are down, or an NVSwitch reports fatal errors.

    ## What breaks
    Collectives abort with "uncorrectable NVLink error", hang, or silently take the slow way over PCIe.

    ## Why
    A link or a switch port failed, or the GPU at its other end did. A GPU with fewer active links than the others shows it.

    ## Fix
    `nvidia-smi nvlink -s` and `-e`; reset the GPUs or reboot. If it comes back, the board has to be looked at.
    """
    devices = nvidia_gpus(gpus)
    counts = [(gpu, active) for gpu in devices if not isinstance(active := gpu.nvlinks_active, Unknown)]
    switches = () if isinstance(pci, Unknown) else pci.nvswitches
    switched = bool(switches) or any(device.fabric_state == "completed" for device in devices)
    logged = () if isinstance(kernel_log, Unknown) else reported(kernel_log, SXID_LINE)
    fatal = tuple(line for line in logged if line.age <= DAY_SECONDS)
    fewer = []
    for gpu, active in counts:
        most = max(count for peer, count in counts if peer.name == gpu.name)
        # Without a switch, no link at all only means that no bridge is plugged in.
        if active < most and (active or switched) and gpu.mig_enabled is not True:
            fewer.append((gpu, active, most))
    if fewer:
        which = called([gpu for gpu, _, _ in fewer])
        yield Finding.of(
            f"{which}: only {plural(fewer[0][1], 'NVLink')} up, while the other GPUs have {fewer[0][2]}",
            (Evidence(f"GPU {gpu.index}: {active} of {most} NVLinks up", "NVML") for gpu, active, most in fewer),
            Fix("Send the administrator what these print", ("nvidia-smi nvlink -s", "nvidia-smi nvlink -e")),
            on_the_host(by_root(REBOOT, ("sudo reboot",)), container),
            severity=FAIL if switched and any(not active for _, active, _ in fewer) else None,
        )
    if fatal:
        numbers = sorted({line.number for line in fatal})
        yield Finding.of(
            f"An NVSwitch reported fatal errors (SXid {listed(numbers)})",
            (Evidence(line.text, "kernel log") for line in fatal[-3:]),
            on_the_host(by_root(REBOOT, ("sudo dmesg -T | grep SXid", "sudo reboot")), container),
        )
    if not fatal and not fewer:
        for gpu in devices:
            known(gpu.nvlinks_active)
        requires(any(count for _, count in counts), "no NVLink between the GPUs")
        if switched or known(pci).nvswitches:  # of its own errors a switch only tells the kernel log
            known(kernel_log)


@check("p2p-acs-iommu", severity=WARN, owner=Owner.NODE)
def p2p_acs_iommu(
    pci: Pci, gpus: Gpus, machine: Machine, container: Maybe[Container], plan: Plan, environment: Maybe[Environment]
) -> Iterator[Finding]:
    """PCIe access control (ACS) or the IOMMU stands between the GPUs.

    ## What breaks
    NCCL connects all rings, and the first collective hangs, or is several times too slow, or brings wrong numbers.

    ## Why
    NCCL copies from GPU to GPU over PCIe. ACS sends such traffic up to the processor and back, and an IOMMU that
    translates addresses may lose it, though the driver says that it works.

    ## Fix
    `export NCCL_P2P_DISABLE=1` works at once, at a price in speed. For good: `iommu=pt` (or off) on the kernel command
    line, ACS off in the firmware or by `setpci` on the bridges.
    """
    devices = nvidia_gpus(gpus)
    requires(not machine.wsl, "WSL has no PCI bus of its own")
    requires(plan.nproc > 1 and len(devices) > 1, "no more than one GPU in the job")
    virtual = any(known_or(gpu.virtualization, "none") != "none" for gpu in devices)
    requires(not virtual, "in a virtual machine this is the host's matter")
    linked = all(known_or(gpu.nvlinks_active, 0) for gpu in devices)
    requires(not linked, "the GPUs reach each other by NVLink")
    requires(not _off(environment, "NCCL_P2P_DISABLE"), "NCCL_P2P_DISABLE is set")
    matrix = known(gpus.p2p)
    cells = {cell for row in matrix for cell in row}
    if "ok" not in cells and "unknown" in cells:
        leave_untested("the driver doesn't say whether the GPUs can reach each other directly")
    requires("ok" in cells, "peer-to-peer is not possible between these GPUs, and NCCL knows it")
    above = _bridges(pci)
    bridges = tuple(bridge for bridge in above if bridge.acs_redirect)
    command_line = machine.kernel_command_line
    translating = _translating(pci, command_line)
    if bridges:
        addresses = [bridge.address for bridge in bridges[:8]]
        off = tuple(f"sudo setpci -s {shlex.quote(address)} ECAP_ACS+6.w=0000" for address in addresses)
        yield Finding.of(
            f"ACS redirects GPU-to-GPU traffic at {plural(len(bridges), 'PCIe bridge')}: NCCL may hang or be slow",
            (Evidence(f"PCIe bridge {name}: ACS redirect is on", "its configuration space") for name in addresses),
            WITHOUT_P2P,
            on_the_host(by_root("Turn ACS off in the firmware, or with this until the next boot", off), container),
        )
    if translating is True:
        passing = ("sudo grubby --update-kernel=ALL --args=iommu=pt", "sudo reboot")
        if is_debian(machine):
            edit = r"""sudo sed -i 's/^GRUB_CMDLINE_LINUX="/&iommu=pt /' /etc/default/grub"""
            passing = (edit, "sudo update-grub && sudo reboot")
        yield Finding.of(
            "The IOMMU translates GPU-to-GPU traffic (no iommu=pt): NCCL's peer-to-peer copies may hang",
            told(pci, "iommu_groups", f"the IOMMU is on ({said(pci.iommu_groups)} groups)"),
            machine.seen("kernel_command_line") if isinstance(command_line, str) and command_line else None,
            told(gpus, "p2p", "the driver says that the GPUs can reach each other directly"),
            WITHOUT_P2P,
            on_the_host(by_root("Let the IOMMU pass traffic through, and reboot", passing), container),
        )
    if not bridges and translating is not True:
        known(translating)
        for device in devices:
            known(device.virtualization)
        if not pci.nvidia_gpus:
            leave_untested("sysfs doesn't show the GPUs")
        if any(bridge.acs_redirect is None for bridge in above):
            leave_untested("ACS can't be read without root")


def _bridges(pci: Pci) -> tuple[PciDevice, ...]:
    """All bridges above the GPUs."""
    by_address = {device.address: device for device in pci.devices}
    found: dict[str, PciDevice] = {}
    for gpu in pci.nvidia_gpus:
        above = by_address.get(gpu.parent or "")
        while above is not None:
            found[above.address] = above
            above = by_address.get(above.parent or "")
    return tuple(found.values())


def _translating(pci: Pci, command_line: Maybe[str]) -> Maybe[bool]:
    """Whether the IOMMU translates for the GPUs: by the kernel's own word, else by what it was told at boot."""
    if isinstance(pci.iommu_groups, Unknown):
        return pci.iommu_groups
    if not pci.iommu_groups:
        return False
    domains = {nvidia_gpu.iommu_domain for nvidia_gpu in pci.nvidia_gpus if nvidia_gpu.iommu_domain}
    if domains:
        return any(domain != "identity" for domain in domains)
    if isinstance(command_line, Unknown):
        return command_line
    words = command_line.split()
    through = {"iommu=pt", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off", "iommu=off"}
    return not through & set(words) if words else Unknown("the kernel doesn't show its command line")


@check("rtx4000-p2p-unsupported", severity=FAIL, owner=Owner.USER)
def rtx4000_p2p_unsupported(
    gpus: Gpus, driver: Driver, plan: Plan, environment: Maybe[Environment], packages: Maybe[Packages]
) -> Iterator[Finding]:
    """GeForce RTX 40 cards can't copy from one to another, and this driver or Accelerate trips over it.

    ## What breaks
    With a driver before 525.105.17 the first collective hangs, or brings wrong numbers. With one before 550.40.07
    Accelerate and the Transformers Trainer stop with NotImplementedError unless started by `accelerate launch`.

    ## Why
    These cards have no peer-to-peer over PCIe. Early drivers said that they had; Accelerate refuses to run where it
    can't be sure that the driver tells the truth.

    ## Fix
    `export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1`, or a newer driver.
    """
    devices = nvidia_gpus(gpus)
    cards = tuple(device for device in devices if "RTX 40" in device.name)
    requires(len(cards) > 1 and plan.nproc > 1, "no more than one RTX 40 in the job")
    version = driver.version
    if version is None:
        leave_untested("the driver's version is not known")
    off = _off(environment, "NCCL_P2P_DISABLE")
    evidence = (
        Evidence(f"{len(cards)} x {cards[0].name}", "NVML"),
        Evidence(f"driver {version}", "/proc/driver/nvidia, NVML"),
    )
    fix = Fix("Turn peer-to-peer and InfiniBand off in NCCL", ("export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1",))
    newer = by_root("Or install a newer driver, 550.40.07 at least")
    geforce = any("GeForce" in card.name for card in cards)
    if geforce and older(version, "525.105.17") and not off:
        yield Finding.of(
            f"Driver {version} wrongly offers peer-to-peer on {cards[0].name}: NCCL hangs or gives wrong results",
            evidence,
            fix,
            newer,
        )
        return
    both = off and _off(environment, "NCCL_IB_DISABLE")
    if both or not older(version, "550.40.07"):
        return
    if accelerate := known(packages).version("accelerate"):
        yield Finding.of(
            f"Accelerate {accelerate} refuses RTX 40 cards with driver {version}, unless `accelerate launch` starts it",
            evidence,
            Evidence(f"accelerate {accelerate}", "packages of the target Python"),
            fix,
            newer,
            severity=WARN,
        )


@check("nccl-mempool-unsupported", severity=WARN, owner=Owner.USER)
def nccl_mempool_unsupported(gpus: Gpus, plan: Plan, torch: Torch) -> Iterator[Finding]:
    """The GPU is a vGPU, on which NCCL may not start.

    ## What breaks
    NCCL 2.26 and later stop when they start, with "operation not supported".

    ## Why
    NCCL makes a CUDA memory pool, which needs unified memory, and that is off in many vGPU profiles.

    ## Fix
    Let the host's administrator set `pciPassthru0.cfg.enable_uvm=1` for the virtual machine, or use NCCL 2.25.
    """
    virtual = tuple(nvidia_gpu for nvidia_gpu in nvidia_gpus(gpus) if nvidia_gpu.virtualization == "vgpu")
    if not virtual:
        for device in gpus.answering:
            known(device.virtualization)
    requires(virtual, "the GPUs are not virtual ones (vGPU)")
    requires(plan.nproc > 1, "a single rank needs no NCCL")
    version = known(torch.nccl_version) or ()
    requires(version, "this torch has no NCCL")
    if version < (2, 26):
        return
    kind = "a vGPU" if len(virtual) == 1 else "vGPUs"
    yield Finding.of(
        f"NCCL 2.26 and later can't start on {kind} whose unified memory is off: {called(virtual)}",
        Evidence(f"{called(virtual)}: {kind}", "NVML"),
        told(torch, "nccl_version", f"NCCL {'.'.join(map(str, version))}"),
        Fix("Ask the host's administrator for `pciPassthru0.cfg.enable_uvm=1` in this virtual machine's settings"),
    )
