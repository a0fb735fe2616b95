"""Looks at /dev/shm."""

from __future__ import annotations

import os

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.probes.context import Context


def probe(context: Context) -> SharedMemory | Unknown:
    folder = context.path("/dev/shm")
    try:
        state = os.statvfs(folder)
    except OSError as error:
        return Unknown(f"/dev/shm: {error.strerror}")
    return SharedMemory(
        size=state.f_blocks * state.f_frsize,
        free=state.f_bavail * state.f_frsize,
        writable=os.access(folder, os.W_OK),
    )
