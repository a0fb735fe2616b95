"""Looks at the NVIDIA driver: the module, its device nodes, its libraries, its daemons."""

from __future__ import annotations

import os
import re

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.driver import Driver
from ddpdoctor.probes import driver_daemons, driver_module, libcuda, nvml
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists

DEADLINE = 25.0
"""Both libraries are asked side by side, each for 10 s at most."""

MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia_fs", "nouveau", "amdgpu", "nvgpu",
)  # fmt: skip
NODES = re.compile(r"nvidia\d+|nvidiactl|nvidia-(uvm|uvm-tools|modeset|nvswitch\w*)|dxg|nvmap")
OPENED_BY_CUDA = re.compile(r"/dev/(nvidia\d+|nvidiactl|nvidia-uvm|dxg|nvmap)")


def probe(context: Context) -> Driver | Unknown:
    # Looked at first: asking the libraries may load modules and make nodes.
    nodes = _device_nodes(context)
    modules = _loaded_modules(context)
    kernel_version, flavour = _kernel_side(context)
    asked = libcuda.start(context)
    answers = nvml.ask(context)
    cuda = asked.wait()
    present = bool(nodes or kernel_version or answers.path or cuda.path)
    return Driver(
        loaded_modules=modules,
        kernel_version=kernel_version,
        kernel_flavour=flavour,
        module_on_disk=driver_module.version_on_disk(context),
        device_nodes=nodes,
        unreadable_nodes=tuple(
            node
            for node in nodes
            if OPENED_BY_CUDA.fullmatch(node) and not os.access(context.path(node), os.R_OK | os.W_OK)
        ),
        libcuda_path=cuda.path,
        libcuda_version=_version_in_name(cuda.path),
        cuda_version=cuda.version,
        cuda_init=cuda.init,
        cuda_end=cuda.end,
        nvml_status=Unknown(answers.failure) if answers.status is None and answers.failure else answers.status,
        nvml_message=answers.message,
        nvml_end=answers.end,
        nvml_path=answers.path,
        nvml_version=_without_cuda_major(answers.version) or _version_in_name(answers.path),
        nvml_driver_version=answers.driver_version,
        nouveau_blacklisted=driver_module.nouveau_blacklisted(context),
        fabric_manager=driver_daemons.fabric_manager(context) if present else None,
        fabric_manager_version=driver_daemons.fabric_manager_version(context) if present else None,
        persistence_daemon=exists(context.path("/run/nvidia-persistenced/socket")),
    )


def _loaded_modules(context: Context) -> tuple[str, ...] | Unknown:
    text = context.read("/proc/modules")
    if isinstance(text, Unknown):
        return text
    loaded = {line.split(" ", 1)[0] for line in text.splitlines()}
    return tuple(sorted(loaded.intersection(MODULES)))


def _kernel_side(context: Context) -> tuple[str | Unknown | None, str | None]:
    """Version and flavour of the loaded module, from a line such as
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"."""
    file = "/proc/driver/nvidia/version"
    if not exists(context.path(file)):
        return None, None
    text = context.read(file)
    if isinstance(text, Unknown):
        return text, None
    found = re.search(r"NVRM version:(.{0,200}?)\s(\d{3,}(?:\.\d+)+)", text)
    if not found:
        return Unknown(f"{file} names no version"), None
    return found[2], "open" if "Open Kernel Module" in found[1] else "proprietary"


def _device_nodes(context: Context) -> tuple[str, ...]:
    try:
        names = [entry.name for entry in context.path("/dev").iterdir() if NODES.fullmatch(entry.name)]
    except OSError:
        return ()
    return tuple(f"/dev/{name}" for name in sorted(names, key=_by_number))


def _by_number(name: str) -> tuple[str, int]:
    """Puts nvidia10 behind nvidia9."""
    digits = re.search(r"(?<!\d)\d+$", name)
    return name.rstrip("0123456789"), int(digits[0]) if digits else -1


def _version_in_name(path: object) -> str | None:
    """ "580.95.05" from libcuda.so.580.95.05; WSL's and Jetson's libcuda.so.1.1 names no version."""
    found = re.search(r"\.so\.(\d{3,}(?:\.\d+)+)$", path) if isinstance(path, str) else None
    return found[1] if found else None


def _without_cuda_major(version: str | None) -> str | None:
    """NVML 13.580.95.05 belongs to driver 580.95.05."""
    return re.sub(r"^\d{1,2}\.(?=\d{3,}\.)", "", version) if version else None
