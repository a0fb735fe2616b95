"""Xid errors: how the kernel log writes them, and what the numbers mean (NVIDIA's Xid catalogue)."""

from __future__ import annotations

import re

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Severity
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.facts.kernel_log import KernelLog
from ddpdoctor.knowledge.privileges import NEEDS_ROOT

XID_LINE = compile_lazily(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+)")
SXID_LINE = compile_lazily(r"SXid \(PCI:(?P<gpu>[0-9a-fA-F:.]+)\): (?P<number>\d+), Fatal")

RESTART = "start the job again"
DEBUG = "run the job again with CUDA_LAUNCH_BLOCKING=1 (or under compute-sanitizer) to find the kernel that does it"
RESET = f"reset the GPU or reboot, and if it comes back, have the GPU examined {NEEDS_ROOT}"
REBOOT = f"reboot, and if it comes back, have slot, power and cooling looked at {NEEDS_ROOT}"


class Xid(msgspec.Struct, frozen=True):
    """One number: what it means, whose fault it mostly is, how bad a fresh one is, what to do."""

    meaning: str
    whose: str
    severity: Severity
    action: str


APPLICATION, HARDWARE, DRIVER, FOLLOWS = (
    "the program",
    "the hardware",
    "the driver or firmware",
    "follows another error",
)

CATALOGUE: dict[int, Xid] = {
    8: Xid("the GPU stopped processing", APPLICATION, WARN, RESTART),
    11: Xid("invalid command stream", APPLICATION, WARN, RESTART),
    13: Xid("a kernel did something illegal, mostly an index past an array", APPLICATION, WARN, DEBUG),
    25: Xid("invalid command stream", APPLICATION, WARN, RESTART),
    31: Xid("illegal address: GPU memory page fault", APPLICATION, WARN, DEBUG),
    32: Xid("corrupted command stream, mostly the PCIe link", HARDWARE, WARN, RESTART),
    37: Xid("driver firmware error", DRIVER, INFO, RESTART),
    38: Xid("driver firmware error", DRIVER, WARN, RESTART),
    39: Xid("copy engine error", DRIVER, WARN, RESTART),
    40: Xid("copy engine error", DRIVER, WARN, RESTART),
    41: Xid("copy engine error", DRIVER, WARN, RESTART),
    43: Xid("a process hit an error and was ended; the GPU is fine", APPLICATION, INFO, RESTART),
    44: Xid("fault while switching between programs", APPLICATION, INFO, RESTART),
    45: Xid("a process was torn down, by a kill or an earlier error", FOLLOWS, INFO, RESTART),
    46: Xid("the GPU stopped processing", HARDWARE, FAIL, RESET),
    48: Xid("uncorrectable memory error (double bit ECC)", HARDWARE, FAIL, RESET),
    54: Xid("the GPU's extra power is not connected", HARDWARE, FAIL, "have the GPU's power cables plugged in"),
    62: Xid("the GPU's power controller halted", HARDWARE, FAIL, RESET),
    63: Xid("a bad memory row was remapped, or a page retired: it repaired itself", HARDWARE, INFO, RESTART),
    64: Xid("a bad memory row could not be remapped", HARDWARE, FAIL, RESET),
    66: Xid("illegal access by the driver", DRIVER, INFO, RESTART),
    67: Xid("illegal access by the driver", DRIVER, INFO, RESTART),
    68: Xid("video decoder error", APPLICATION, WARN, RESTART),
    69: Xid("graphics engine class error", APPLICATION, WARN, RESTART),
    74: Xid("NVLink error, here or at the other end of the link", HARDWARE, FAIL, RESET),
    78: Xid("a vGPU can't start", DRIVER, WARN, "match the vGPU driver's version to the host's"),
    79: Xid("the GPU fell off the bus", HARDWARE, FAIL, REBOOT),
    80: Xid("corrupted data sent to the GPU", HARDWARE, WARN, RESTART),
    92: Xid("many corrected memory errors", HARDWARE, WARN, "watch this GPU; it may fail soon"),
    94: Xid("uncorrectable memory error, contained to one process", HARDWARE, WARN, RESTART),
    95: Xid("uncorrectable memory error that may have reached every process", HARDWARE, FAIL, RESET),
    109: Xid("timeout while switching between programs", DRIVER, FAIL, RESET),
    110: Xid("security fault", HARDWARE, FAIL, "switch the machine off and on; if it comes back, report the GPU"),
    119: Xid("the GPU's system processor (GSP) doesn't answer", DRIVER, FAIL, RESET),
    120: Xid("error in the GPU's system processor (GSP)", DRIVER, FAIL, RESET),
    121: Xid("corrected error on the link to the Grace CPU", HARDWARE, INFO, RESTART),
    136: Xid("NVLink training failed", HARDWARE, FAIL, RESET),
    137: Xid("illegal access over NVLink to another GPU", APPLICATION, WARN, DEBUG),
    140: Xid("uncorrectable memory error that could not be repaired", HARDWARE, FAIL, RESET),
    141: Xid("CUDA fast path error", DRIVER, INFO, RESTART),
    143: Xid("the GPU could not be initialised", HARDWARE, FAIL, RESET),
    144: Xid("NVLink error (SAW)", HARDWARE, FAIL, RESET),
    145: Xid("NVLink error (RLW)", HARDWARE, FAIL, RESET),
    146: Xid("NVLink error (TLW)", HARDWARE, FAIL, RESET),
    147: Xid("NVLink error (TREX)", HARDWARE, FAIL, RESET),
    148: Xid("NVLink error (NVLPW)", HARDWARE, FAIL, RESET),
    149: Xid("NVLink error (NETIR)", HARDWARE, FAIL, RESET),
    150: Xid("NVLink error (MSE)", HARDWARE, FAIL, RESET),
    151: Xid("key rotation error (confidential computing)", DRIVER, FAIL, "restart the virtual machine"),
    154: Xid("the driver says what the GPU needs to recover", FOLLOWS, INFO, "do what the line says"),
    155: Xid("an NVLink link went down", HARDWARE, WARN, RESET),
    156: Xid("a part of the GPU was retired: it repaired itself", HARDWARE, WARN, RESET),
    157: Xid("a part of the GPU could not be retired", HARDWARE, WARN, "report the GPU to the administrator"),
    158: Xid("fatal timeout in the GPU", HARDWARE, FAIL, RESET),
    160: Xid("a memory channel was retired", HARDWARE, INFO, RESTART),
    161: Xid("a memory channel could not be retired", HARDWARE, WARN, "report the GPU to the administrator"),
    167: Xid("fatal timeout on the PCIe link", HARDWARE, FAIL, REBOOT),
    168: Xid("the GPU has less memory than it should", HARDWARE, WARN, "turn ECC on, so that bad rows can be remapped"),
    169: Xid("the GPU's security controller halted", HARDWARE, FAIL, RESET),
    171: Xid("details of an uncorrectable memory error (DRAM)", FOLLOWS, INFO, RESET),
    172: Xid("details of an uncorrectable memory error (SRAM)", FOLLOWS, INFO, RESET),
}
UNLISTED = Xid(
    "an error that this table doesn't list", "unknown", WARN, "look it up: https://docs.nvidia.com/deploy/xid-errors"
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
        Reported(int(found["number"]), normal_address(found["gpu"]), one.age, one.text)
        for one in log.lines
        if (found := line.search(one.text))
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
