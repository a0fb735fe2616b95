"""The NVIDIA kernel module on disk, and whether nouveau is kept from loading."""

from __future__ import annotations

import re
from pathlib import Path

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.elf import NotElf, mapped, sections
from ddpdoctor.probes.files import exists, isdir
from ddpdoctor.probes.programs import find_system_tool
from ddpdoctor.probes.subprocesses import run

USUAL_FOLDERS = ("updates/dkms", "updates", "extra", "extra/nvidia", "weak-updates/nvidia", "kernel/drivers/video")
MODPROBE_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
MODINFO_SECONDS = 5.0


def version_on_disk(context: Context) -> str | Unknown | None:
    """Version of the nvidia module installed for the running kernel; None: none is."""
    release = context.read("/proc/sys/kernel/osrelease")
    if isinstance(release, Unknown):
        return release
    folder = f"/lib/modules/{release.strip()}"
    if not isdir(context.path(folder)):
        return Unknown(f"{folder} is not here")
    module = _find(context, folder)
    return None if module is None else _version(context, module)


def _find(context: Context, folder: str) -> Path | None:
    listed = context.read(f"{folder}/modules.dep")
    if not isinstance(listed, Unknown):
        found = re.search(r"^(\S*\bnvidia\.ko(?:\.\w+)?):", listed, re.MULTILINE)
        if found and exists(module := context.path(f"{folder}/{found[1]}")):
            return module
    for usual in USUAL_FOLDERS:
        for module in sorted(context.path(f"{folder}/{usual}").glob("nvidia.ko*")):
            return module
    return None


def _version(context: Context, module: Path) -> str | Unknown:
    if modinfo := find_system_tool("modinfo", context.root):
        ended = run([str(modinfo), "-F", "version", str(module)], MODINFO_SECONDS, environ=context.environ)
        if ended.ok and (version := ended.stdout.decode("utf-8", "replace").strip()):
            return version
    if module.suffix != ".ko":
        return Unknown(f"{module.name} is compressed, and modinfo can't tell its version")
    return _version_in_file(module)


def _version_in_file(module: Path) -> str | Unknown:
    try:
        with mapped(module) as data:
            start, end = sections(data).get(".modinfo", (0, 0))
            told = data[start:end]
    except NotElf as error:
        return Unknown(f"{module.name}: {error}")
    found = re.search(rb"(?:^|\0)version=([^\0]+)", told)
    return found[1].decode("utf-8", "replace") if found else Unknown(f"{module.name} names no version")


def nouveau_blacklisted(context: Context) -> bool | Unknown:
    """Whether modprobe's settings or the kernel's command line keep nouveau from loading."""
    kernel = context.read("/proc/cmdline")
    if not isinstance(kernel, Unknown) and re.search(
        r"\b(modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=[^\s=]*\bnouveau\b|\bnouveau\.modeset=0\b|\bnouveau\.blacklist=1\b",
        kernel,
    ):
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
            elif re.search(
                r"^[ \t]*(blacklist[ \t]+nouveau|install[ \t]+nouveau[ \t]+\S*/(false|true)|options[ \t]+nouveau[ \t].*\bmodeset=0)\b",
                text,
                re.MULTILINE,
            ):
                return True
    return refused or False
