"""Containers and GPUs: whether the host can hand its GPUs in, and whether they arrived and stayed."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import FAIL, INFO, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.checks.shared_fixes import install_package
from ddpdoctor.engine.registry import check, required, requires
from ddpdoctor.facts.snapshot import Container, Driver, Machine, Pci, Torch
from ddpdoctor.knowledge.evidence import kernel_module, libcuda, nvml_start, told
from ddpdoctor.knowledge.nvidia import IN_CONTAINER, NO_DRIVER, NO_GPU, NO_NODES, bus_gpus, driver_loaded, own_gpus
from ddpdoctor.knowledge.privileges import by_root

START = "Start the container with the GPUs"
WITH_GPUS = {
    "docker": f"{START}: `docker run --gpus all --ipc=host`, then the rest as before",
    "podman": f"{START}: `podman run --device nvidia.com/gpu=all`, then the rest as before",
    "kubernetes": "Ask for GPUs in the pod's spec: `resources: {limits: {nvidia.com/gpu: 8}}` (the cluster needs NVIDIA's device "
    "plugin for it)",
    "apptainer": "Start the container with the driver's libraries: `apptainer exec --nv`, then the rest as before",
    "enroot": f"{START}: `NVIDIA_VISIBLE_DEVICES=all enroot start`, then the rest as before",
    "lxc": "Give the container the GPUs, on the host: `lxc config device add`, the container's name, `gpu gpu`",
    "containerd": f"{START}: `nerdctl run --gpus all`, then the rest as before",
}


def _setting(name: str, value: str | None) -> str:
    return f"{name} is not set" if value is None else f"{name}={value}"


@check("container-toolkit-missing", severity=INFO, owner=Owner.NODE)
def container_toolkit_missing(container: Container, pci: Pci, driver: Driver, machine: Machine) -> Iterator[Finding]:
    """Docker is here and NVIDIA's container toolkit is not.

    ## What breaks
    `docker run --gpus all` stops with "could not select device driver". Training outside of containers works.

    ## Why
    Docker knows nothing of GPUs. NVIDIA's container toolkit puts the driver's libraries and device nodes into a
    container when it starts. Docker as a snap can't use a toolkit from the system's packages.

    ## Fix
    Install nvidia-container-toolkit, let it configure Docker, restart Docker:
    `sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`.
    """
    requires(container.runtime is None, IN_CONTAINER)
    if pci.nvidia_gpus or not machine.wsl:
        bus_gpus(pci, machine)
    requires(driver_loaded(driver) or machine.wsl, NO_DRIVER)
    required(known(container.docker), "no Docker on this host")
    usable = not container.docker_is_snap and known(container.toolkit) is not None
    if usable or "nvidia" in known_or(container.docker_runtimes, ()):
        return
    if container.docker_is_snap:
        summary = "Docker is installed as a snap here, and a snap can't use the system's NVIDIA container toolkit"
        fix = by_root(
            "Install Docker from its own packages (https://docs.docker.com/engine/install) in place of the snap; removing "
            "the snap removes its images and containers, too",
            ("sudo snap remove docker",),
        )
    else:
        summary = "Docker is installed, but NVIDIA's container toolkit is not: containers can't get the GPUs"
        install = install_package(machine, "nvidia-container-toolkit", "nvidia-container-toolkit")
        configure = "sudo nvidia-ctk runtime configure --runtime=docker"
        fix = by_root(
            "If you train in containers: add NVIDIA's package source "
            "(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit), then install the toolkit",
            (install, configure, "sudo systemctl restart docker"),
        )
    found = told(
        container, "toolkit", f"NVIDIA's container toolkit: {known_or(container.toolkit, 'unknown') or 'not found'}"
    )
    yield Finding.of(summary, container.seen("docker"), found, fix)


@check("container-no-gpu", severity=FAIL, owner=Owner.USER)
def container_no_gpu(container: Container, pci: Pci, driver: Driver, torch: Maybe[Torch]) -> Iterator[Finding]:
    """The host has GPUs, and this container got none.

    ## What breaks
    torch finds no NVIDIA driver, as if the machine had no GPU.

    ## Why
    A container gets device nodes and the driver's libraries only when it is started with them. `--privileged` brings the
    nodes but not the libraries; NVIDIA_DRIVER_CAPABILITIES without `compute` leaves out libcuda.so.1.

    ## Fix
    `docker run --gpus all ...`; Podman `--device nvidia.com/gpu=all`; Kubernetes `nvidia.com/gpu` in the limits;
    Apptainer `--nv`. Installing a driver inside of the container doesn't help.
    """
    requires(container.runtime, "not in a container")
    gpus = own_gpus(pci)
    requires(gpus, NO_GPU)
    requires(isinstance(torch, Unknown) or not torch.cpu_only, "torch is a CPU-only build")
    requires(isinstance(torch, Unknown) or not torch.hip, "torch is built for ROCm")
    nodes = driver.gpu_nodes
    if nodes and known(driver.libcuda_path) is not None:
        return
    visible, capabilities = container.nvidia_visible_devices, container.nvidia_driver_capabilities
    fix = Fix(WITH_GPUS.get(container.runtime or "", f"{START} (Docker: `--gpus all`, Apptainer: `--nv`)"))
    if not nodes and not driver_loaded(driver):
        cause = "The host's own NVIDIA driver isn't loaded, so no container can get it."
        fix = Fix("Find out on the host why its driver isn't loaded; run there", ("ddpdoctor check --select driver",))
    elif not nodes and visible in ("void", "none", ""):
        cause = f"NVIDIA_VISIBLE_DEVICES is {visible!r}, which asks for a container without GPUs."
    elif not nodes:
        cause = "The container was started without its GPUs."
    elif capabilities is not None and not {"compute", "all"} & set(capabilities.split(",")):
        cause = f"NVIDIA_DRIVER_CAPABILITIES is {capabilities!r}; libcuda.so.1 comes with `compute`."
        setting = "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        fix = Fix(f"Start the container with `{setting}`; `compute` is what brings libcuda.so.1")
    else:
        cause = "The device nodes are here, the driver's libraries are not: that is what --privileged or --device alone gives."
    count, lacks = plural(len(gpus), "NVIDIA GPU"), "no device nodes" if not nodes else "no libcuda.so.1"
    yield Finding.of(
        f"The host has {count}, but this container can't use them: {lacks}",
        Evidence(f"{count} on the host's PCI bus", "/sys/bus/pci/devices"),
        told(driver, "device_nodes", f"device nodes: {listed(nodes)}" if nodes else "no /dev/nvidia0 or the like"),
        libcuda(driver),
        told(container, "nvidia_visible_devices", _setting("NVIDIA_VISIBLE_DEVICES", visible)),
        told(container, "nvidia_driver_capabilities", _setting("NVIDIA_DRIVER_CAPABILITIES", capabilities)),
        fix,
        cause=cause,
    )


@check("container-lost-gpu", severity=FAIL, owner=Owner.NODE)
def container_lost_gpu(container: Container, driver: Driver) -> Iterator[Finding]:
    """The container had its GPUs and lost them.

    ## What breaks
    After hours or days `nvidia-smi` says "Failed to initialize NVML: Unknown Error", and new processes find no GPU. Processes
    that run already may go on.

    ## Why
    A `systemctl daemon-reload` on the host made systemd write the container's device rules again, without the NVIDIA
    devices, which had been added without its knowledge.

    ## Fix
    Restart the container. To keep it from coming back, on the host: `sudo nvidia-ctk system create-dev-char-symlinks
    --create-all` at boot, or name the nodes when you start it (`--device=/dev/nvidia0 ...`), or use Docker's cgroupfs driver.
    """
    requires(container.runtime, "not in a container")
    nodes = driver.gpu_nodes
    requires(nodes, NO_NODES)
    if known(driver.nvml_status) != 999:
        return
    shut = driver.unreadable_nodes
    devices = " ".join(f"--device={node}" for node in (*nodes, "/dev/nvidiactl", "/dev/nvidia-uvm"))
    count = f"{plural(len(nodes), 'device node')} {'is' if len(nodes) == 1 else 'are'} here"
    yield Finding.of(
        f"This container lost its GPUs: {count}, but NVML fails (unknown error 999)",
        nvml_start(driver),
        driver.seen("device_nodes", listed(nodes, most=8)),
        told(driver, "unreadable_nodes", f"may not be opened: {listed(shut)}") if shut else None,
        kernel_module(driver),
        Fix("Restart the container, on the host"),
        by_root(
            "To keep it from happening again, on the host",
            ("sudo nvidia-ctk system create-dev-char-symlinks --create-all",),
        ),
        Fix(f"Or name the devices when you start it, so that systemd knows them: `docker run --gpus all {devices}`"),
    )
