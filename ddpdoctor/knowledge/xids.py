"""Xid errors: how the kernel log writes them, and what the numbers mean (NVIDIA's Xid catalogue)."""

from __future__ import annotations

import re

import msgspec

from ddpdoctor.base.findings import INFO, WARN, Severity
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.tables import read_table
from ddpdoctor.facts.kernel_log import KernelLog
from ddpdoctor.knowledge.privileges import NEEDS_ROOT

XID_LINE = compile_lazily(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+)")
SXID_LINE = compile_lazily(r"SXid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+), Fatal")

RESTART = "start the job again"
DEBUG = "run the job again with CUDA_LAUNCH_BLOCKING=1 (or under compute-sanitizer) to find the kernel that does it"
RESET = f"reset the GPU or reboot, and if it comes back, have the GPU examined {NEEDS_ROOT}"
REBOOT = f"reboot, and if it comes back, have slot, power and cooling looked at {NEEDS_ROOT}"


class Xid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number: what it means, whose fault it mostly is, how bad a fresh one is, and what to do, in words or one of ACTIONS."""

    number: int
    meaning: str
    whose: str
    severity: Severity
    action: str


ACTIONS = {"restart": RESTART, "debug": DEBUG, "reset": RESET, "reboot": REBOOT}
APPLICATION, HARDWARE, DRIVER, FOLLOWS = (
    "the program",
    "the hardware",
    "the driver or firmware",
    "follows another error",
)
CATALOGUE = {
    xid.number: msgspec.structs.replace(xid, action=ACTIONS.get(xid.action, xid.action))
    for xid in read_table(__name__, "xids.json", tuple[Xid, ...])
}
UNLISTED = Xid(
    0, "an error that this table doesn't list", "unknown", WARN, "look it up: https://docs.nvidia.com/deploy/xid-errors"
)


class Reported(msgspec.Struct, frozen=True):
    """One line of the log. `age` in seconds, -1 where unknown; `gpu` "0000:c6:00" without the function."""

    number: int
    gpu: str
    age: float
    text: str

    @property
    def means(self) -> Xid:
        return CATALOGUE.get(self.number, UNLISTED)


def reported(log: KernelLog, line: re.Pattern[str] = XID_LINE) -> tuple[Reported, ...]:
    """The Xid lines of the log, in its order."""
    return tuple(
        Reported(int(found["number"]), normal_address(found["gpu"]), logged.age, logged.text)
        for logged in log.lines
        if (found := line.search(logged.text))
    )


def normal_address(address: str) -> str:
    """ "0000:C6:00.0" and "c6:00" as "0000:c6:00", so that the log's, NVML's and sysfs' spellings compare equal."""
    parts = address.lower().split(".")[0].split(":")
    domain = parts[-3][-4:].rjust(4, "0") if len(parts) > 2 else "0000"
    return ":".join((domain, *parts[-2:]))


BUS_XIDS = (79,)
ECC_XIDS = (48, 64, 94, 95, 140, 171, 172)
NVLINK_XIDS = (74, 136, *range(144, 151), 155)


def _others(*whose: str, repaired: bool = False) -> tuple[int, ...]:
    named = {*BUS_XIDS, *ECC_XIDS, *NVLINK_XIDS, 92}
    return tuple(
        number
        for number, xid in CATALOGUE.items()
        if number not in named and xid.whose in whose and (xid.severity is INFO) == repaired
    )


FAULTS, PROGRAMS, FOLLOWING = (
    _others(HARDWARE, DRIVER),
    _others(APPLICATION),
    _others(APPLICATION, FOLLOWS, repaired=True),
)
"""The other numbers by what they speak of, but those of faults that repaired themselves. Patterns of log signs have these lists."""
