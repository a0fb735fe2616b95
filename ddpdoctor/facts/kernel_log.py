"""Lines of the kernel log that matter: Xid, OOM kills, PCI errors, module complaints."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ddpdoctor.base.unknown import Facts, Source


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `age` in seconds before the snapshot, -1 if the line has no usable time stamp."""

    text: str
    age: float = -1.0


class KernelLog(Facts, frozen=True, kw_only=True):
    """The whole group is Unknown where the log may not be read (dmesg_restrict without root, most containers)."""

    lines: Annotated[tuple[KernelLine, ...], Source("/dev/kmsg or dmesg")]
    source: str = "/dev/kmsg"
    complete: bool = True
    """False where the ring buffer no longer holds the boot: older lines are lost."""
