"""Looks at the NVIDIA driver: the module, loaded and on disk, its device nodes, its libraries, its daemons; and whether nouveau is kept
from loading."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.driver import Driver
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.elf import NotElf, mapped, sections
from ddpdoctor.probes.files import exists, isdir
from ddpdoctor.probes.nvidia_libraries import libcuda, nvml
from ddpdoctor.probes.programs import find_system_tool
from ddpdoctor.probes.subprocesses import run
from ddpdoctor.probes.waiting import ThreadedCall

DEADLINE = 25.0
"""Both libraries are asked side by side, each for 10 s at most."""

MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia_fs", "nouveau", "amdgpu", "nvgpu",
)  # fmt: skip
NODES = re.compile(r"nvidia\d+|nvidiactl|nvidia-(uvm|uvm-tools|modeset|nvswitch\w*)|dxg|nvmap")
OPENED_BY_CUDA = re.compile(r"/dev/(nvidia\d+|nvidiactl|nvidia-uvm|dxg|nvmap)")

MODULE_FOLDERS = ("updates/dkms", "updates", "extra", "extra/nvidia", "weak-updates/nvidia", "kernel/drivers/video")
MODPROBE_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
MODINFO_SECONDS = 5.0
KERNEL_WITHOUT_NOUVEAU = compile_lazily(
    r"\b(modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=[^\s=]*\bnouveau\b|\bnouveau\.(modeset=0|blacklist=1)\b"
)
MODPROBE_WITHOUT_NOUVEAU = compile_lazily(
    r"(?m)^[ \t]*(blacklist[ \t]+nouveau|install[ \t]+nouveau[ \t]+\S*/(false|true)|options[ \t]+nouveau[ \t].*\bmodeset=0)\b"
)

FABRIC_MANAGER_UNIT = "nvidia-fabricmanager.service"
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
FABRIC_MANAGER = "/usr/bin/nv-fabricmanager"
FABRIC_MANAGER_SECONDS = 3.0


def has_gpu_node(context: Context) -> bool:
    """Whether there is a file in /dev by which CUDA reaches a GPU."""
    return any(OPENED_BY_CUDA.fullmatch(f"/dev/{name}") for name in context.names("/dev"))


def probe(context: Context) -> Driver | Unknown:
    # Looked at first: asking the libraries may load modules and make nodes.
    nodes = tuple(f"/dev/{name}" for name in context.names("/dev") if NODES.fullmatch(name))
    modules = _loaded_modules(context)
    kernel_version, flavour = kernel_side(context)
    asked = ThreadedCall(lambda: libcuda.ask(context), DEADLINE)
    answers = nvml.ask(context)
    cuda = asked.result(libcuda.CudaAnswers())
    present = bool(nodes or kernel_version or answers.path or cuda.path)
    return Driver(
        loaded_modules=modules,
        kernel_version=kernel_version,
        kernel_flavour=flavour,
        module_on_disk=version_on_disk(context),
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
        # NVML 13.580.95.05 belongs to driver 580.95.05.
        nvml_version=re.sub(r"^\d{1,2}\.(?=\d{3,}\.)", "", answers.version or "") or _version_in_name(answers.path),
        nvml_driver_version=answers.driver_version,
        nouveau_blacklisted=nouveau_blacklisted(context),
        fabric_manager=fabric_manager(context) if present else None,
        fabric_manager_version=fabric_manager_version(context) if present else None,
        persistence_daemon=exists(context.path("/run/nvidia-persistenced/socket")),
    )


def _loaded_modules(context: Context) -> tuple[str, ...] | Unknown:
    text = context.read("/proc/modules")
    if isinstance(text, Unknown):
        return text
    loaded = {line.split(" ", 1)[0] for line in text.splitlines()}
    return tuple(sorted(loaded.intersection(MODULES)))


def kernel_side(context: Context) -> tuple[str | Unknown | None, str | None]:
    """Tell version and flavour of the loaded module, from a line such as
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"; None: none is loaded."""
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


def _version_in_name(path: object) -> str | None:
    """ "580.95.05" from libcuda.so.580.95.05; WSL's and Jetson's libcuda.so.1.1 names no version."""
    found = re.search(r"\.so\.(\d{3,}(?:\.\d+)+)$", path) if isinstance(path, str) else None
    return found[1] if found else None


def version_on_disk(context: Context) -> str | Unknown | None:
    """Version of the nvidia module installed for the running kernel; None: none is."""
    release = context.read("/proc/sys/kernel/osrelease")
    if isinstance(release, Unknown):
        return release
    folder = f"/lib/modules/{release.strip()}"
    if not isdir(context.path(folder)):
        return Unknown(f"{folder} is not here")
    module = _module_on_disk(context, folder)
    return None if module is None else _module_version(context, module)


def _module_on_disk(context: Context, folder: str) -> Path | None:
    found = re.search(r"^(\S*\bnvidia\.ko(?:\.\w+)?):", context.text(f"{folder}/modules.dep"), re.MULTILINE)
    if found and exists(module := context.path(f"{folder}/{found[1]}")):
        return module
    for usual in MODULE_FOLDERS:
        for module in sorted(context.path(f"{folder}/{usual}").glob("nvidia.ko*")):
            return module
    return None


def _module_version(context: Context, module: Path) -> str | Unknown:
    if modinfo := find_system_tool("modinfo", context.root):
        ended = run([str(modinfo), "-F", "version", str(module)], MODINFO_SECONDS, environ=context.environ)
        if ended.ok and (version := ended.text):
            return version
    if module.suffix != ".ko":
        return Unknown(f"{module.name} is compressed, and modinfo can't tell its version")
    return _version_in_file(module)


def _version_in_file(module: Path) -> str | Unknown:
    try:
        with mapped(module) as data:
            start, end = sections(data).get(".modinfo", (0, 0))
            found = re.search(rb"(?:^|\0)version=([^\0]+)", data[start:end])
    except NotElf as error:
        return Unknown(f"{module.name}: {error}")
    return found[1].decode("utf-8", "replace") if found else Unknown(f"{module.name} names no version")


def nouveau_blacklisted(context: Context) -> bool | Unknown:
    """Whether modprobe's settings or the kernel's command line keep nouveau from loading."""
    if KERNEL_WITHOUT_NOUVEAU.search(context.text("/proc/cmdline")):
        return True
    refused = None
    for folder in MODPROBE_FOLDERS:
        try:
            files = sorted(context.path(folder).glob("*.conf"))
        except OSError as error:
            refused = Unknown(f"{folder}: {error.strerror}")
            continue
        for file in files:
            text = context.read(f"{folder}/{file.name}")
            if isinstance(text, Unknown):
                refused = text
            elif MODPROBE_WITHOUT_NOUVEAU.search(text):
                return True
    return refused or False


def fabric_manager(context: Context) -> str | Unknown | None:
    """Tell its state: "active", "inactive", "failed", "activating"; None: it isn't installed here and doesn't run."""
    unit = any(exists(context.path(f"{folder}/{FABRIC_MANAGER_UNIT}")) for folder in UNIT_FOLDERS)
    booted = unit and isdir(context.path("/run/systemd/system"))
    if booted and (systemctl := find_system_tool("systemctl", context.root)):
        ended = run([str(systemctl), "is-active", FABRIC_MANAGER_UNIT], FABRIC_MANAGER_SECONDS, environ=context.environ)
        return ended.text or Unknown("systemctl did not answer" if ended.timed_out else "systemctl gave no answer")
    if context.runs("nv-fabricmanager"):
        return "active"
    return "inactive" if unit or exists(context.path(FABRIC_MANAGER)) else None


def fabric_manager_version(context: Context) -> str | Unknown | None:
    """Ask the program on disk for its version; None: there is none."""
    binary = context.path(FABRIC_MANAGER)
    if not exists(binary):
        return None
    ended = run([str(binary), "--version"], FABRIC_MANAGER_SECONDS, environ=context.environ)
    found = re.search(rb"(?<!\d)\d{3,}(?:\.\d+)+", ended.stdout + ended.stderr)
    return found[0].decode() if found else Unknown(f"{FABRIC_MANAGER} --version named no version")
