"""Hardware that fails or is slowed down: memory errors, lost GPUs, Xid errors, heat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner, Severity
from ddpdoctor.base.text import ago, capital, listed, plural
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.engine.log_traits import LogTraits, Particulars
from ddpdoctor.engine.registry import check, leave_untested, requires
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.snapshot import Container, Driver, KernelLog, Machine, Pci
from ddpdoctor.knowledge.nvidia import NO_GPU, bus_gpus, called, nvidia_gpus, own_gpus, without
from ddpdoctor.knowledge.privileges import by_root, on_the_host
from ddpdoctor.knowledge.xids import (
    APPLICATION,
    DEBUG,
    DRIVER,
    FOLLOWS,
    HARDWARE,
    REBOOT,
    RESET,
    UNLISTED,
    Reported,
    normal_address,
    reported,
)

DAY_SECONDS = 86400.0


def _reset(gpus: tuple[Gpu, ...], container: Maybe[Container]) -> Fix:
    text = f"Reset {called(gpus)} while no process uses {'it' if len(gpus) == 1 else 'them'}, or reboot"
    chosen = ",".join(str(gpu.index) for gpu in gpus)
    return on_the_host(by_root(text, (f"sudo nvidia-smi --gpu-reset -i {chosen}",)), container)


def _leave_out(all_of: tuple[Gpu, ...], bad: tuple[Gpu, ...]) -> Fix | None:
    left = plural(len(all_of) - len(bad), "rank")
    text = f"Until then train without {'it' if len(bad) == 1 else 'them'}, with {left} on this host"
    return Fix(text, (without(all_of, bad),)) if len(bad) < len(all_of) else None


@check("gpu-ecc-error", severity=FAIL, owner=Owner.NODE)
def gpu_ecc_error(gpus: Gpus, container: Maybe[Container]) -> Iterator[Finding]:
    """A GPU's memory had errors that could not be corrected.

    ## What breaks
    The process that touches the bad memory dies with "uncorrectable ECC error encountered", and its job with it. After a
    contained error the GPU may go on; after others everything on it fails until it is reset.

    ## Why
    A memory cell failed. GPUs since Ampere replace the whole row at the next reset; when no spare rows are left, the GPU
    has to be replaced. Earlier GPUs retire the page at the next reboot.

    ## Fix
    `sudo nvidia-smi --gpu-reset -i N` or a reboot. If it comes back, or the remapping failed, have the GPU replaced, and
    leave it out by CUDA_VISIBLE_DEVICES until then.
    """
    devices = nvidia_gpus(gpus)
    failed = tuple(device for device in devices if device.row_remap_failed is True)
    errors = {device.index: known_or(device.ecc_uncorrected_volatile, 0) for device in devices}
    fresh = tuple(device for device in devices if errors[device.index] and device not in failed)
    pending = (device for device in devices if True in (device.row_remap_pending, device.retired_pages_pending))
    waiting = tuple(device for device in pending if device not in (*failed, *fresh))
    if failed:
        yield Finding.of(
            f"{called(failed)} ran out of spare memory rows (remapping failed) and must be replaced",
            Evidence(f"remapping of memory rows failed on {called(failed)}", "NVML"),
            Fix("Report it to the administrator, with what this prints", ("nvidia-smi -q -d ROW_REMAPPER,ECC",)),
            _leave_out(devices, failed),
        )
    if fresh:
        counted = listed((f"GPU {gpu.index}: {errors[gpu.index]}" for gpu in fresh), most=8)
        yield Finding.of(
            f"Uncorrectable memory errors since the driver was loaded: {counted}",
            Evidence(f"uncorrected ECC errors since the driver was loaded: {counted}", "NVML"),
            _reset(fresh, container),
            _leave_out(devices, fresh),
        )
    if waiting:
        yield Finding.of(
            f"{called(waiting)} found bad memory, and can only replace it by spare memory at the next reset",
            Evidence(f"remapping of rows or retirement of pages is pending on {called(waiting)}", "NVML"),
            _reset(waiting, container),
            cause="Until then the bad memory stays in use, and a process that touches it may die.",
            severity=WARN,
        )
    old = tuple(device for device in devices if known_or(device.ecc_uncorrected_aggregate, 0))
    if old and not (failed or fresh or waiting):
        yield Finding.of(
            f"{called(old)} had uncorrectable memory errors in the past, none since the driver was loaded",
            (
                Evidence(
                    f"GPU {gpu.index}: uncorrected errors in its lifetime: {gpu.ecc_uncorrected_aggregate}", "NVML"
                )
                for gpu in old
            ),
            Fix(
                "Do nothing, unless jobs on it die: then report this to the administrator",
                ("nvidia-smi -q -d ROW_REMAPPER,ECC",),
            ),
            severity=INFO,
        )
    for device in devices:
        if device.ecc_enabled is True and device not in (*failed, *fresh, *waiting):
            known(device.ecc_uncorrected_volatile)
            known(device.ecc_uncorrected_aggregate)
            # Only GPUs before Ampere retire pages, and only later ones remap rows.
            if isinstance(device.retired_pages_pending, Unknown) or isinstance(device.row_remap_pending, bool):
                known(device.row_remap_pending), known(device.row_remap_failed)
    counted_by = [device for device in devices if not isinstance(device.ecc_uncorrected_volatile, Unknown)]
    requires(counted_by, "these GPUs have no ECC memory, or it is off")


def _of_intel(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Of an Intel GPU other reasons are told, and other commands."""
    if not any("_RESULT_ERROR_DEVICE_LOST" in match.line.text for match in seen):
        return Particulars()
    return Particulars(
        summary="A GPU was given up as lost by Intel's driver",
        fixes=(
            Fix("See what the kernel's driver says of it", ("sudo dmesg -T | grep -iE '\\b(xe|i915)\\b'",)),
            Fix("See whether the GPU is still there", ("xpu-smi discovery",)),
            Fix("If it hung as the memory ran out, take a smaller batch; else update the driver"),
        ),
        cause="It hung, and the driver reset it, as also happens where more memory is asked for than there is; or it is gone from the bus.",
    )


@check("gpu-fell-off-bus", severity=FAIL, owner=Owner.NODE, log=LogTraits(particulars=_of_intel))
def gpu_fell_off_bus(
    gpus: Maybe[Gpus], pci: Maybe[Pci], driver: Maybe[Driver], kernel_log: Maybe[KernelLog], container: Maybe[Container]
) -> Iterator[Finding]:
    """A GPU no longer answers on the PCI bus.

    ## What breaks
    Every process on it dies, the job hangs or aborts, and `nvidia-smi` may hang or say "GPU is lost". Other GPUs of the
    machine may work or not.

    ## Why
    The PCIe link went down: power (a peak, a loose cable), heat, a riser or slot, or the GPU itself. "RmInitAdapter failed" alone
    may also be a driver whose module or firmware doesn't go with this GPU.

    ## Fix
    Reboot; some need a full power-off. If it comes back: lower the power limit (`sudo nvidia-smi -pl 300`), reseat the
    card, another power supply.
    """
    on_bus = () if isinstance(pci, Unknown) else own_gpus(pci)
    gone = {gpu.address: "the PCI bus reads only ff from it" for gpu in on_bus if gpu.revision == 0xFF}
    requires(isinstance(gpus, Unknown) or gpus.vendor != "amd", NO_GPU)
    listed_gpus = () if isinstance(gpus, Unknown) else gpus.devices
    for gpu in listed_gpus:
        if gpu.lost:
            gone[gpu.bus_id or str(gpu.index)] = "NVML says that this GPU is lost"
    if not isinstance(kernel_log, Unknown):
        for line in _still_gone(kernel_log, gpus, driver):
            gone.setdefault(line.gpu + ".0", line.text)
    status = None if isinstance(driver, Unknown) else driver.nvml_status
    if gone or status == 15:
        names = f"GPU{'s' if len(gone) > 1 else ''} {listed(sorted(gone), most=4)}" if gone else "A GPU"
        reboot = by_root("Reboot, and if that doesn't bring it back, switch the power off and on", ("sudo reboot",))
        look = by_root(
            "If it happens again, see the kernel log, have cables, riser and slot checked, or lower the power limit",
            ("sudo dmesg | grep -iE 'xid|aer|pcieport'",),
        )
        yield Finding.of(
            f"{names} no longer {'answer' if len(gone) > 1 else 'answers'} (fell off the bus)",
            (Evidence(f"GPU {where}: {how}", "sysfs, NVML, kernel log") for where, how in sorted(gone.items())),
            Evidence("NVML can't start: a GPU is lost (15)", "nvmlInit") if status == 15 else None,
            on_the_host(reboot, container),
            on_the_host(look, container),
        )
    if not gone and status != 15:
        requires(known(pci).nvidia_gpus or listed_gpus, NO_GPU)
        known(gpus)
        known(known(driver).nvml_status)
        known(kernel_log)  # which alone remembers a GPU that is gone from the bus


def _still_gone(log: KernelLog, gpus: Maybe[Gpus], driver: Maybe[Driver]) -> tuple[Reported, ...]:
    """Lines of Xid 79 about GPUs that NVML doesn't list. One that answers again was reset since; where NVML lists
    nothing, or only the GPUs of this job, that proves nothing."""
    if isinstance(gpus, Unknown) or not gpus.answering or isinstance(driver, Unknown) or driver.unreadable_nodes:
        return ()
    answering = {normal_address(gpu.bus_id) for gpu in gpus.answering if gpu.bus_id}
    return tuple(line for line in reported(log) if line.number == 79 and line.gpu not in answering)


@check("xid-error", severity=FAIL, owner=Owner.NODE)
def xid_error(
    kernel_log: Maybe[KernelLog],
    pci: Pci,
    gpus: Maybe[Gpus],
    driver: Maybe[Driver],
    machine: Machine,
    container: Maybe[Container],
) -> Iterator[Finding]:
    """The NVIDIA driver logged errors (Xid).

    ## What breaks
    Depends on the number: from one process that was ended (13, 31, 43, 45) to a GPU that needs a reset (48, 64, 95, 119),
    a reboot (79) or replacement.

    ## Why
    An Xid is the driver's report of a fault. 13 and 31 are mostly the program's own (an index out of range), 43 and 45
    follow from others, 63 is a repair that worked; 48, 64, 74, 79, 94, 95, 140, 143 are hardware; 119 and 120 are the
    firmware.

    ## Fix
    By number. See which came first: `sudo dmesg -T | grep -i xid`. Xid 154, if there is one, says what the GPU needs in the driver's
    opinion.
    """
    lines = () if isinstance(kernel_log, Unknown) else reported(kernel_log)
    if not lines:  # a GPU that fell off may be gone from the bus
        bus_gpus(pci, machine)
    log = known(kernel_log)
    elsewhere = _still_gone(log, gpus, driver)  # gpu-fell-off-bus tells of them
    yield from findings_of_xids([line for line in lines if line not in elsewhere], log.source, container)


def findings_of_xids(lines: Sequence[Reported], source: str, container: Maybe[Container]) -> list[Finding]:
    """The findings on lines of Xids, the worst first; what only follows from another is left out.

    Args:
        lines: of the kernel log.
        source: where they stand.
        container: in which we run, if we do.
    """
    leading = [line for line in lines if line.means.whose != FOLLOWS and line.number != 43]
    told = leading or [line for line in lines if line.number != 45 and "(None)" not in line.text]
    hints = [line for line in lines if line.number == 154]
    findings = []
    for number, group in groupby(sorted(told, key=lambda line: line.number), key=lambda line: line.number):
        same = list(group)
        severity = _faded(same[0].means.severity, min(max(line.age, 0.0) for line in same))
        if severity is not None:
            findings.append(_xid_finding(number, same, hints, severity, source, container))
    worse = [finding for finding in findings if finding.severity is not INFO]
    return sorted(worse or findings, key=lambda finding: (finding.severity or FAIL).rank)


def _faded(severity: Severity, age: float) -> Severity | None:
    """Lower the severity of an error by one step after a day in which the machine went on; None drops it."""
    if age <= DAY_SECONDS:
        return severity
    return {FAIL: WARN, WARN: INFO, INFO: None}[severity]


def _xid_finding(
    number: int,
    same: list[Reported],
    hints: list[Reported],
    severity: Severity,
    source: str,
    container: Maybe[Container],
) -> Finding:
    means = same[0].means
    where = sorted({line.gpu for line in same})
    newest = min(same, key=lambda line: max(line.age, 0.0))
    advice = [hint.text.partition("154,")[2].strip() for hint in hints if hint.gpu in where]
    fix = Fix(capital(means.action), _xid_commands(means.action, where))
    times = f", {len(same)} times" if len(same) > 1 else ""
    return Finding.of(
        f"Xid {number} on {listed(where, most=3)}{ago(newest.age)}{times}: {means.meaning}",
        (Evidence(line.text, source) for line in same[-3:]),
        Fix(f"Do what the driver itself says: {advice[-1]}") if advice else None,
        on_the_host(fix, container) if means.action in (RESET, REBOOT) else fix,
        cause=f"This is mostly a fault of {means.whose}." if means.whose not in (FOLLOWS, UNLISTED.whose) else "",
        severity=severity,
        owner=OWNERS.get(means.whose, Owner.UNKNOWN),
    )


OWNERS: Final = {APPLICATION: Owner.USER, HARDWARE: Owner.NODE, DRIVER: Owner.NODE}


def _xid_commands(action: str, where: list[str]) -> tuple[str, ...]:
    if action == RESET:
        return tuple(f"sudo nvidia-smi --gpu-reset -i {address}.0" for address in where)
    return {REBOOT: ("sudo reboot",), DEBUG: ("export CUDA_LAUNCH_BLOCKING=1",)}.get(action, ())


HEAT, BRAKE = frozenset({"hw-thermal", "sw-thermal"}), frozenset({"hw-power-brake"})
THROTTLES: tuple[tuple[frozenset[str], frozenset[str], str, str], ...] = (
    (HEAT, frozenset(), "too hot", "the cooling (fans, filters, neighbouring cards)"),
    (BRAKE, frozenset(), "braked by the power supply", "the power supply and its cables"),
    (frozenset({"hw-slowdown"}), HEAT | BRAKE, "slowed by its own protection", "cooling and power"),
)
"""Reasons of NVML, others beside which they say nothing more, what they mean, and what is to be checked."""


SHOW_LIMITS = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"


@check("gpu-throttled", severity=WARN, owner=Owner.NODE)
def gpu_throttled(gpus: Gpus, container: Maybe[Container]) -> Iterator[Finding]:
    """A GPU is slowed down by heat or power.

    ## What breaks
    Nothing dies, but a DDP step takes as long as the slowest GPU: one that is too hot holds up all ranks of the job.

    ## Why
    The GPU lowers its clock to protect itself: it is too hot, or the power supply asks for it (power brake). A limit that
    was set by hand (`nvidia-smi -pl`) does the same, on purpose. That the normal power limit holds a GPU back is no fault.

    ## Fix
    See `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`: fans, filters, neighbours, cables. The same power limit on all
    GPUs: `sudo nvidia-smi -pl WATTS`.
    """
    devices = nvidia_gpus(gpus)
    known_reasons = [(gpu, active) for gpu in devices if not isinstance(active := gpu.throttle_reasons, Unknown)]
    for reasons, unless, why, part in THROTTLES:
        hit = [gpu for gpu, active in known_reasons if reasons & set(active) and not unless & set(active)]
        if hit:
            which = "" if len(hit) == 1 else f"GPU {hit[0].index}: "
            yield Finding.of(
                f"{called(hit)} {'runs' if len(hit) == 1 else 'run'} slowed down: {why} ({which}{_state(hit[0])})",
                (
                    Evidence(f"GPU {gpu.index}: {listed(active)}; {_state(gpu)}", "NVML")
                    for gpu, active in known_reasons
                    if gpu in hit
                ),
                Fix(f"Have {part} checked; this shows temperatures and reasons", (SHOW_LIMITS,)),
            )
    limits = [(device, device.power_limit, device.power_limit_default) for device in devices]
    lowered = [
        (gpu, limit, usual)
        for gpu, limit, usual in limits
        if not isinstance(limit, Unknown) and not isinstance(usual, Unknown) and 0 < limit < 0.95 * usual
    ]
    if lowered:
        raised = tuple(f"sudo nvidia-smi -i {gpu.index} -pl {usual:.0f}" for gpu, _, usual in lowered)
        yield Finding.of(
            f"The power limit of {called([gpu for gpu, _, _ in lowered])} was lowered to {lowered[0][1]:.0f} W, from "
            f"{lowered[0][2]:.0f} W",
            (
                Evidence(f"GPU {gpu.index}: {limit:.0f} W, by default {usual:.0f} W", "NVML")
                for gpu, limit, usual in lowered
            ),
            on_the_host(by_root("Raise it again, unless power supply or cooling need it", raised), container),
            cause="Somebody set it by hand. A step of DDP takes as long as the slowest GPU.",
            severity=INFO,
        )
    if len(known_reasons) < len(devices):
        leave_untested("these GPUs don't say why they slow down")
    if any(isinstance(limit, Unknown) or isinstance(usual, Unknown) for _, limit, usual in limits):
        leave_untested("these GPUs don't tell their power limit, or what it was at first")


def _state(gpu: Gpu) -> str:
    parts = [] if isinstance(gpu.temperature, Unknown) else [f"{gpu.temperature} degrees"]
    if isinstance(gpu.sm_clock, int) and isinstance(gpu.sm_clock_max, int):
        parts.append(f"{gpu.sm_clock} of {gpu.sm_clock_max} MHz")
    return ", ".join(parts) or "no figures"
