"""Looks at the host itself: operating system, cores, memory, WSL, Jetson."""

from __future__ import annotations

import os
import platform
import re
import shlex

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.machine import Machine
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists


def probe(context: Context) -> Machine:
    released = _os_release(context)
    memory = context.read("/proc/meminfo")
    kernel = context.text("/proc/sys/kernel/osrelease") or platform.release()
    cores = os.cpu_count() or Unknown("the system doesn't say how many cores it has")
    return Machine(
        system=platform.system(),
        kernel=kernel,
        architecture=platform.machine(),
        os_name=_named(released, "PRETTY_NAME"),
        os_id=_named(released, "ID"),
        logical_cores=len(re.findall(r"^processor\s*:", context.text("/proc/cpuinfo"), re.MULTILINE)) or cores,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        memory_total=_kibibytes(memory, "MemTotal"),
        memory_available=_kibibytes(memory, "MemAvailable"),
        # Azure's own kernels say "microsoft" nowhere in their release; WSL 1 says "Microsoft", WSL 2 "microsoft-standard".
        # A kernel that somebody built for WSL may say neither, but WSL always brings its interop handler.
        wsl="microsoft" in kernel.lower() or exists(context.path("/proc/sys/fs/binfmt_misc/WSLInterop")),
        jetson=exists(context.path("/etc/nv_tegra_release"))
        or "nvidia,tegra" in context.text("/proc/device-tree/compatible"),
        user_id=os.geteuid() if hasattr(os, "geteuid") else 0,
        boot_id=_stripped(context.read("/proc/sys/kernel/random/boot_id")),
        kernel_command_line=_stripped(context.read("/proc/cmdline")),
    )


def _stripped(text: str | Unknown) -> str | Unknown:
    return text if isinstance(text, Unknown) else text.strip("\0 \n")


def _os_release(context: Context) -> dict[str, str] | Unknown:
    text = context.read("/etc/os-release")
    if isinstance(text, Unknown):
        text = context.read("/usr/lib/os-release")
    if isinstance(text, Unknown):
        return text
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            try:
                found[name] = "".join(shlex.split(value))
            except ValueError:  # An unbalanced quote.
                found[name] = value
    return found


def _named(released: dict[str, str] | Unknown, name: str) -> Maybe[str]:
    if isinstance(released, Unknown):
        return released
    return released.get(name) or Unknown(f"/etc/os-release has no {name}")


def _kibibytes(text: str | Unknown, name: str) -> Maybe[int]:
    if isinstance(text, Unknown):
        return text
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else Unknown(f"/proc/meminfo has no {name}")
