"""What a burn-in shows that a short training doesn't: ranks and GPUs that become slow, errors that come with heat, memory that grows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from ddpdoctor.base.durations import duration_words
from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import human, listed, plural, spans
from ddpdoctor.base.unknown import Maybe, Unknown, known
from ddpdoctor.checks.gpu.hardware import SHOW_LIMITS, THROTTLES, findings_of_xids
from ddpdoctor.checks.smoke.fixes import smoke_command
from ddpdoctor.engine.registry import check, judged_apart, leave_untested, requires
from ddpdoctor.facts.burn_in import HostWatch, WatchedGpu
from ddpdoctor.facts.kernel_log import KernelLog
from ddpdoctor.facts.smoke import ELASTIC, RankRun, Smoke
from ddpdoctor.facts.snapshot import Container
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.nvidia import NO_GPU
from ddpdoctor.knowledge.privileges import by_root, on_the_host
from ddpdoctor.knowledge.xids import BUS_XIDS, normal_address, reported
from ddpdoctor.smoke_training.analysis.burn_in import (
    LEAST_HOST_GROWTH_BYTES,
    MIN_HOST_SECONDS,
    MUCH_WAITING,
    Growth,
    SlowRank,
    burnt_seconds,
    growth_of,
    hottest,
    is_too_short,
    memory_growth,
    slow_ranks,
    temperatures,
    throughput_fall,
    waiting_share,
)
from ddpdoctor.smoke_training.analysis.failure_attribution import gpu_number

NO_BURN_IN = "no burn-in was run: --duration was not given"
MANY = 0.1
"""The part of the looks at which a GPU was slowed down from which on it is told."""
LEAST_LOOKS = 2


def require_windows(smoke: Smoke) -> None:
    """Leave the check untested where there was no burn-in, or not enough of it."""
    requires(smoke.burn_in.asked, NO_BURN_IN)
    requires(any(run.pace for run in smoke.ranks), "the training ended before the burn-in")
    if is_too_short(smoke):
        leave_untested(f"{duration_words(burnt_seconds(smoke))} of burn-in are too short to tell a trend from chance")


def watched_hosts(smoke: Smoke) -> tuple[HostWatch, ...]:
    """The hosts that were watched meanwhile; leaves the check untested where there are none."""
    requires(smoke.burn_in.asked, NO_BURN_IN)
    requires(smoke.burn_in.hosts, "the training ended before the burn-in")
    return smoke.burn_in.hosts


def gpus_of(host: HostWatch) -> tuple[WatchedGpu, ...]:
    """The GPUs of a host that were watched; ends the look where there are none, or they could not be asked."""
    gpus = known(host.gpus)
    requires(gpus, NO_GPU)
    return gpus


def on_host(smoke: Smoke, host: HostWatch) -> str:
    """ " on node07"; "" where there is one host alone."""
    return f" on {host.host}" if smoke.nnodes > 1 else ""


def gpus_named(indices: Iterable[int]) -> str:
    """ "GPU 3", "GPUs 0-7"."""
    numbers = sorted(indices)
    return f"GPU{'s' if len(numbers) > 1 else ''} {','.join(spans(numbers))}"


def again(smoke: Smoke) -> Fix:
    """The same burn-in once more."""
    seconds = f"{smoke.burn_in.asked:g}s"
    return Fix("Run it once more: what comes back is no chance", (smoke_command(smoke, f"--duration {seconds}"),))


@check("smoke-throughput-falls", severity=WARN, owner=Owner.NODE)
def smoke_throughput_falls(smoke: Smoke) -> Iterator[Finding]:
    """Training becomes slower the longer it runs.

    ## What breaks
    Nothing dies. A run of days takes longer than its first hour promised, and jobs that are compared with one another aren't alike.

    ## Why
    On GPUs mostly heat or power: the clock goes down as the machine warms up. On all: the network or the links between GPUs get
    worse, memory runs short, or something else begins to use the same host.

    ## Fix
    See what the burn-in says of temperature and clocks beside the throughput, and what else runs on the host. Where one rank alone
    becomes slow, `smoke-slow-rank` names it.
    """
    require_windows(smoke)
    requires(not slow_ranks(smoke), "one rank is slower than the others: see smoke-slow-rank")
    fall = throughput_fall(smoke)
    if fall is None:
        if waiting_share(smoke) >= MUCH_WAITING:
            leave_untested(
                f"the ranks waited for a core {waiting_share(smoke):.0%} of the time, so that what they exchange says nothing of the"
                " host: more ranks than cores, or other programs"
            )
        return
    when = f"since {duration_words(fall.since)} after the beginning" if fall.since else "all along"
    yield Finding.of(
        f"Throughput fell by {fall.share:.0%} within {duration_words(burnt_seconds(smoke))}, {when}:"
        f" from {fall.first:,.0f} to {fall.last:,.0f} samples/s",
        told(smoke, "burn_in", f"samples/s in the first third {fall.first:,.0f}, in the last {fall.last:,.0f}"),
        (warming(smoke, host, gpu) for host in smoke.burn_in.hosts if (gpu := hottest(host))),
        Fix("See what the GPUs' clocks are held down by", (SHOW_LIMITS,)) if smoke.backend == "nccl" else None,
        Fix("See what else runs here", ("ps -eo pid,user,pcpu,pmem,etime,args --sort=-pcpu | head -20",)),
        again(smoke),
    )


def warming(smoke: Smoke, host: HostWatch, gpu: WatchedGpu) -> Evidence:
    """How a GPU's temperature and clock went, and what power it took."""
    degrees = [degrees for _, degrees in temperatures(gpu)]
    clocks = [look.clock for look in gpu.looks if look.clock is not None]
    powers = [look.power for look in gpu.looks if look.power is not None]
    parts = [
        f"{degrees[0]} to {degrees[-1]} degrees, {max(degrees)} at most" if degrees else "",
        f"clock {max(clocks)} to {min(clocks)} MHz, {clocks[-1]} at the end" if clocks else "",
        f"{max(powers):.0f} W at most" if powers else "",
    ]
    name = f" ({gpu.name})" if gpu.name else ""
    return Evidence(f"GPU {gpu.index}{name}{on_host(smoke, host)}: {', '.join(filter(None, parts))}", "NVML")


@check("smoke-slow-rank", severity=WARN, owner=Owner.NODE)
def smoke_slow_rank(smoke: Smoke) -> Iterator[Finding]:
    """One rank is slower than the others, and all wait for it in every step.

    ## What breaks
    A step of DDP takes as long as the slowest rank: one GPU at half its speed makes hundreds train at half theirs.

    ## Why
    Its GPU is held back by heat, power or a lower limit, sits behind a slower link, or is shared with another process; or its
    process: pinned to a core that others use, far from its GPU's memory. What a rank does alone, without waiting for others or for
    a core, was measured in every step.

    ## Fix
    Compare its GPU with the others' (`nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE`), then run the burn-in again with that GPU
    in another rank's place: does the slowness go with it? If so, leave it out of the job.
    """
    require_windows(smoke)
    requires(smoke.world_size > 1, "needs two ranks: one has none to be compared with")
    for slow in slow_ranks(smoke):
        yield _of_slow_rank(slow, smoke)


def _of_slow_rank(slow: SlowRank, smoke: Smoke) -> Finding:
    run = slow.run
    where = f" on {run.host}" if smoke.nnodes > 1 else ""
    gpu = f" ({run.device})" if run.device != "cpu" else ""
    when = f"since {duration_words(slow.since)} after the beginning" if slow.since else "throughout"
    return Finding.of(
        f"Rank {run.rank}{where}{gpu} takes {slow.ratio:.1f} times as long for its own part of a step as the others, {when}",
        told(
            smoke,
            "ranks",
            f"its own part of a step: {1000 * slow.own:.1f} ms, the others' in the middle {1000 * slow.others:.1f} ms",
        ),
        (
            warming(smoke, host, gpu)
            for host in smoke.burn_in.hosts
            if host.node == run.node
            for gpu in gpu_of(run, host, smoke)
        ),
        *_looks_at(run, smoke),
        again(smoke),
        rank=run.rank,
    )


def gpu_of(run: RankRun, host: HostWatch, smoke: Smoke) -> Iterable[WatchedGpu]:
    """The GPU of a rank among its host's. Under a launcher each rank may see other ones, by the same number."""
    gpus = host.gpus if isinstance(host.gpus, tuple) else ()
    number = gpu_number(run)
    return gpus[number : number + 1] if number >= 0 and smoke.engine == ELASTIC else ()


def _looks_at(run: RankRun, smoke: Smoke) -> Iterator[Fix]:
    there = f", on {run.host}" if smoke.nnodes > 1 else ""
    if smoke.backend == "nccl":
        yield Fix(f"Compare its GPU with the others{there}", ("nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER",))
    yield Fix(f"See what else runs there{there}", ("ps -eo pid,user,psr,pcpu,etime,args --sort=-pcpu | head -20",))


@check("smoke-gpu-throttled", severity=WARN, owner=Owner.NODE)
def smoke_gpu_throttled(smoke: Smoke) -> Iterator[Finding]:
    """A GPU is slowed down by heat or power as soon as it works for long.

    ## What breaks
    Nothing dies, but a DDP step takes as long as the slowest GPU. `nvidia-smi` before the job shows nothing: the GPU is cool then.

    ## Why
    Under load it becomes too hot, or the power supply asks it to slow down (power brake). That the normal power limit holds a GPU
    back under load is no fault, and isn't told.

    ## Fix
    Fans, filters, neighbouring cards, the room; the power supply and its cables. See `nvidia-smi -q -d
    PERFORMANCE,TEMPERATURE,POWER` while it works.
    """
    yield from judged_apart(_throttled_on(host, smoke) for host in watched_hosts(smoke))


def _throttled_on(host: HostWatch, smoke: Smoke) -> Iterator[Finding]:
    gpus = gpus_of(host)
    for reasons, unless, why, part in THROTTLES:
        hit = {
            gpu.index: (gpu, times)
            for gpu in gpus
            if (
                times := sum(
                    bool(reasons & set(look.throttled)) and not unless & set(look.throttled) for look in gpu.looks
                )
            )
            >= max(LEAST_LOOKS, MANY * len(gpu.looks))
        }
        if not hit:
            continue
        names = gpus_named(hit)
        yield Finding.of(
            f"{names}{on_host(smoke, host)} {'is' if len(hit) == 1 else 'are'} slowed down under load: {why}",
            (
                Evidence(f"GPU {gpu.index}: so at {times} of {plural(len(gpu.looks), 'look')}", "NVML")
                for gpu, times in list(hit.values())[:8]
            ),
            (warming(smoke, host, gpu) for gpu, _ in list(hit.values())[:4]),
            Fix(f"Have {part} checked; this shows temperatures and reasons", (SHOW_LIMITS,)),
            again(smoke),
        )
    if not all(gpu.tells_throttling for gpu in gpus):
        leave_untested("these GPUs don't say why they slow down")


@check("smoke-ecc-errors", severity=FAIL, owner=Owner.NODE)
def smoke_ecc_errors(smoke: Smoke, container: Maybe[Container]) -> Iterator[Finding]:
    """A GPU's memory had errors during the burn-in.

    ## What breaks
    After an uncorrectable error the process that touches the memory dies, and the job with it. Corrected ones change nothing yet,
    and come before the others.

    ## Why
    A memory cell is failing, and heat or load brings it out.

    ## Fix
    Uncorrectable: `sudo nvidia-smi --gpu-reset -i N` or a reboot, so that the row is replaced by a spare one; then another burn-in. If
    they come back, have the GPU replaced. Corrected ones: watch whether they become more.
    """
    yield from judged_apart(_ecc_errors_on(host, smoke, container) for host in watched_hosts(smoke))


def _ecc_errors_on(host: HostWatch, smoke: Smoke, container: Maybe[Container]) -> Iterator[Finding]:
    gpus = gpus_of(host)
    fresh = {gpu.index: new for gpu in gpus if (new := _more(gpu.uncorrected_before, gpu.uncorrected_after))}
    if fresh:
        counted = listed((f"GPU {index}: {plural(count, 'new error')}" for index, count in fresh.items()), most=8)
        chosen = ",".join(map(str, fresh))
        yield Finding.of(
            f"Uncorrectable memory errors came during the burn-in{on_host(smoke, host)}: {counted}",
            _counts(gpus, fresh, corrected=False),
            on_the_host(
                by_root("Reset it while no process uses it, or reboot", (f"sudo nvidia-smi --gpu-reset -i {chosen}",)),
                container,
            ),
            again(smoke),
        )
    mended = {gpu.index: new for gpu in gpus if (new := _more(gpu.corrected_before, gpu.corrected_after))}
    if mended and not fresh:
        counted = listed((f"GPU {index}: {count}" for index, count in mended.items()), most=8)
        yield Finding.of(
            f"Memory errors that were corrected came during the burn-in{on_host(smoke, host)}: {counted}",
            _counts(gpus, mended, corrected=True),
            Fix("Watch whether they become more", ("nvidia-smi -q -d ECC,ROW_REMAPPER",)),
            cause="Nothing was lost. A cell that needs to be corrected again and again may fail for good.",
            severity=INFO,
        )
    requires(any(gpu.uncorrected_before is not None for gpu in gpus), "these GPUs have no ECC memory, or it is off")
    lacking = [gpu.index for gpu in gpus if gpu.uncorrected_before is not None and gpu.uncorrected_after is None]
    if lacking:
        leave_untested(f"GPU {listed(lacking)} no longer told its count of errors after the burn-in")


def _more(before: int | None, after: int | None) -> int:
    return max(0, after - before) if before is not None and after is not None else 0


def _counts(gpus: tuple[WatchedGpu, ...], told_of: Iterable[int], *, corrected: bool) -> Iterator[Evidence]:
    what = "corrected" if corrected else "uncorrected"
    for gpu in gpus:
        if gpu.index in told_of:
            before = gpu.corrected_before if corrected else gpu.uncorrected_before
            after = gpu.corrected_after if corrected else gpu.uncorrected_after
            yield Evidence(f"GPU {gpu.index}: {what} errors before {before}, after {after}", "NVML")


@check("smoke-new-xid", severity=FAIL, owner=Owner.NODE)
def smoke_new_xid(smoke: Smoke, container: Maybe[Container]) -> Iterator[Finding]:
    """The NVIDIA driver logged errors (Xid) during the burn-in, or lost a GPU.

    ## What breaks
    Depends on the number, as for `xid-error`: from one process that was ended to a GPU that needs a reset, a reboot or
    replacement. The burn-in runs nothing of yours, so that no program of yours is to blame.

    ## Why
    Load, heat and power bring out what a GPU at rest doesn't show.

    ## Fix
    By number; `ddpdoctor explain xid-error` has the list. Without root the kernel's log often can't be read: run the burn-in as
    somebody who may (the groups adm or systemd-journal), or look afterwards: `sudo dmesg -T | grep -i xid`.
    """
    yield from judged_apart(_new_xids_on(host, smoke, container) for host in watched_hosts(smoke))


def _new_xids_on(host: HostWatch, smoke: Smoke, container: Maybe[Container]) -> Iterator[Finding]:
    gone = [gpu for gpu in host.gpus if gpu.lost] if isinstance(host.gpus, tuple) else []
    lines = host.error_lines
    seen = [] if isinstance(lines, Unknown) else reported(KernelLog(lines=lines))
    lost = [
        line for line in seen if line.number in BUS_XIDS and line.gpu in {normal_address(gpu.bus_id) for gpu in gone}
    ]
    if gone:
        names = gpus_named(gpu.index for gpu in gone)
        reboot = by_root("Reboot, and if that doesn't bring it back, switch the power off and on", ("sudo reboot",))
        yield Finding.of(
            f"{names}{on_host(smoke, host)} no longer {'answers' if len(gone) == 1 else 'answer'} after the burn-in",
            (Evidence(f"GPU {gpu.index} ({gpu.bus_id}) answered before, and not after", "NVML") for gpu in gone),
            (Evidence(line.text, "the kernel log") for line in lost[:4]),
            on_the_host(reboot, container),
        )
    yield from findings_of_xids(
        [line for line in seen if line not in lost], f"the kernel log{on_host(smoke, host)}", container
    )
    known(lines)
    requires(known(host.gpus), NO_GPU)


@check("smoke-memory-grows", severity=WARN, owner=Owner.UNKNOWN)
def smoke_memory_grows(smoke: Smoke) -> Iterator[Finding]:
    """Memory of the host grows as long as the training runs.

    ## What breaks
    Hours or days later the kernel, or the job's cgroup, kills a rank for want of memory ("exit code -9"), without a word of its own.

    ## Why
    In the training of a burn-in nothing is kept from step to step. What grows nevertheless belongs to a library that the
    Python loads by itself (a profiler, a tracer), to torch or NCCL, or to another program on the host.

    ## Fix
    See which process grows. A rank: start it without what `sitecustomize.py`, .pth files or `LD_PRELOAD` bring in, or with another
    release of torch. Another program: end it, or give it a limit.
    """
    require_windows(smoke)
    growths = {run.rank: (run, growth) for run in smoke.ranks if (growth := memory_growth(run))}
    if growths:
        yield _ranks_grow(list(growths.values()), smoke)
    yield from judged_apart(
        _host_grows(host, smoke, own=any(run.node == host.node for run, _ in growths.values()))
        for host in smoke.burn_in.hosts
    )


def _ranks_grow(growths: list[tuple[RankRun, Growth]], smoke: Smoke) -> Finding:
    run, worst = max(growths, key=lambda each: each[1].pace)
    who = "All ranks grow" if len(growths) == smoke.world_size > 1 else f"Rank {run.rank} grows"
    if 1 < len(growths) < smoke.world_size:
        who = f"{len(growths)} ranks grow"
    return Finding.of(
        f"{who} by {human(worst.pace * 3600)} an hour, and did so to the end of the burn-in",
        (
            told(
                smoke,
                "ranks",
                f"rank {run.rank} on {run.host}: {human(growth.first)} at first, {human(growth.last)} at the end",
            )
            for run, growth in growths[:8]
        ),
        Fix(
            "See what that Python loads by itself",
            (f"{shlex.quote(smoke.python or 'python3')} -X importtime -c pass 2>&1 | tail -20", "echo $LD_PRELOAD"),
        ),
        again(smoke),
        rank=run.rank if len(growths) == 1 else None,
    )


def _host_grows(host: HostWatch, smoke: Smoke, *, own: bool) -> Iterator[Finding]:
    if own:
        return
    looks = [look for look in host.memory if look.at > host.memory[-1].at / 3]
    if burnt_seconds(smoke) < MIN_HOST_SECONDS:
        leave_untested(f"memory of the whole host is judged from {duration_words(MIN_HOST_SECONDS)} of burn-in on")
    used = [float(host.memory_total - look.available) for look in looks]
    growth = growth_of([look.at for look in looks], used, max(LEAST_HOST_GROWTH_BYTES, 0.05 * host.memory_total), 0.0)
    if growth is None:
        return
    left = looks[-1].available
    yield Finding.of(
        f"Memory in use{on_host(smoke, host)} grew by {human(growth.last - growth.first)} during the burn-in, and not by the ranks:"
        f" at this pace what is left is gone in {duration_words(left / growth.pace)}",
        Evidence(f"in use {human(growth.first)} at first, {human(growth.last)} at the end", "/proc/meminfo"),
        Fix("See which process grows", ("ps -eo pid,user,rss,etime,args --sort=-rss | head -20",)),
        again(smoke),
    )
