"""The fabric manager, which NVSwitch systems need before CUDA comes up."""

from __future__ import annotations

import re

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.files import exists, isdir
from ddpdoctor.probes.programs import find_system_tool
from ddpdoctor.probes.subprocesses import run

UNIT = "nvidia-fabricmanager.service"
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
BINARY = "/usr/bin/nv-fabricmanager"
SECONDS = 3.0


def fabric_manager(context: Context) -> str | Unknown | None:
    """ "active", "inactive", "failed", "activating"; None: it isn't installed here and doesn't run."""
    unit = any(exists(context.path(f"{folder}/{UNIT}")) for folder in UNIT_FOLDERS)
    booted = unit and isdir(context.path("/run/systemd/system"))
    if booted and (systemctl := find_system_tool("systemctl", context.root)):
        ended = run([str(systemctl), "is-active", UNIT], SECONDS, environ=context.environ)
        state = ended.stdout.decode("utf-8", "replace").strip()
        if state:
            return state
        return Unknown("systemctl gave no answer" if not ended.timed_out else "systemctl did not answer")
    if _runs(context):
        return "active"
    return "inactive" if unit or exists(context.path(BINARY)) else None


def _runs(context: Context) -> bool:
    for comm in context.path("/proc").glob("[0-9]*/comm"):
        try:
            # The kernel cuts names off after 15 characters.
            if comm.read_bytes().strip() == b"nv-fabricmanager"[:15]:
                return True
        except OSError:
            continue  # It ended while we were looking.
    return False


def fabric_manager_version(context: Context) -> str | Unknown | None:
    """As the program on disk says it; None: there is none."""
    binary = context.path(BINARY)
    if not exists(binary):
        return None
    ended = run([str(binary), "--version"], SECONDS, environ=context.environ)
    found = re.search(rb"(?<!\d)\d{3,}(?:\.\d+)+", ended.stdout + ended.stderr)
    return found[0].decode() if found else Unknown(f"{BINARY} --version named no version")
