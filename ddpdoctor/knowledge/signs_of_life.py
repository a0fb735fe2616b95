"""Whether a process does anything: what it used of the processor, of files and of its GPUs while it was watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.gpus import Gpu
from ddpdoctor.facts.processes import Process
from ddpdoctor.wording import human, listed, plural

IDLE_CORES: Final = 0.02
"""A rank that waits in a gloo collective for ever was measured at 0.002 to 0.004 cores."""
TICK: Final = 0.011
"""Seconds: the processor's time is counted in hundredths, so one may have been there before."""
LEAST_WATCHED: Final = 0.2
"""Seconds. Who was watched for less may just have been between two steps."""

WAKE_UPS: Final = 5.0
"""A second, of a process all of whose threads wait for ever: none, as measured."""
WAKE_UPS_OF: Final = {"gloo_tcp_loop": 120.0, "pt_nccl_": 25.0, "cuda-": 25.0}
"""More for each thread of such a name: gloo's loop looks every 10 ms whether it is to end, NCCL's watchdog every 100 ms."""

STATES: Final = {
    "R": "it runs at this moment",
    "D": "it waits for a disk or a driver",
    "T": "it is stopped, and somebody may let it go on",
    "t": "a debugger has stopped it",
}
"""The kernel's letters that are not those of a process that sleeps or has ended."""


def signs_of_life(process: Process, watched: float) -> Iterator[str]:
    """What it was seen to do during those seconds, in words."""
    if process.state in STATES:
        yield STATES[process.state]
    if isinstance(process.recent_cpu, float | int) and _busy(process.recent_cpu, watched):
        yield f"it uses {process.recent_cpu:.2f} cores"
    if isinstance(process.recent_bytes, int) and process.recent_bytes > 0:
        yield f"it read or wrote {human(process.recent_bytes)} in {watched:.1f} s"
    if isinstance(process.recent_switches, int) and process.recent_switches > _switches(process, watched):
        yield f"its threads woke up {plural(process.recent_switches, 'time')} in {watched:.1f} s"
    if isinstance(process.writes_to, tuple) and process.writes_to:
        yield f"it has {listed(process.writes_to, 2)} open for writing"


def not_known(process: Process, watched: float) -> Iterator[str]:
    """What would have to be known before it is called dead, and isn't."""
    if watched < LEAST_WATCHED:
        yield "nobody watched it for long enough"
    facts = {
        "what it uses of the processor": process.recent_cpu,
        "what it reads and writes": process.recent_bytes,
        "how often it wakes up": process.recent_switches,
        "which files it has open for writing": process.writes_to,
        "which devices it has open": process.devices,
        "on which ports it listens": process.listens,
        "which shared memory it has": process.shared_memory,
        "its environment": process.settings,
        "its program": process.executable,
    }
    for name, fact in facts.items():
        if isinstance(fact, Unknown):
            yield f"{name} can't be told: {fact.reason}"


def gpu_at_work(process: Process, holding: Sequence[Gpu], all_gpus: Sequence[Gpu] | Unknown) -> Iterator[str]:
    """Why its GPUs may be working for it. holding: those on which NVML lists it. A rank may sleep while its kernels run."""
    if isinstance(all_gpus, Unknown):
        yield f"whether a GPU works for it can't be told: {all_gpus.reason}"
        return
    touches = isinstance(process.devices, Unknown) or bool(process.devices)
    for gpu in all_gpus:
        if gpu in holding or (touches and not holding) or _through_other_devices(gpu):
            if isinstance(gpu.utilisation, Unknown):
                yield f"whether GPU {gpu.index} works for it can't be told: {gpu.utilisation.reason}"
            elif gpu.utilisation > 0:
                yield f"GPU {gpu.index} is {gpu.utilisation} % busy, perhaps for it"


def _through_other_devices(gpu: Gpu) -> bool:
    """It isn't reached through /dev/nvidiaN: AMD's, a Jetson's, or one in WSL, which doesn't tell who uses it."""
    return gpu.integrated or gpu.architecture is not None or isinstance(gpu.holders, Unknown)


def worked_between(earlier: Process, later: Process, seconds: float) -> bool:
    """Whether it used the processor between two looks that far apart. A start that differs is another process: it counts as alive."""
    if earlier.identity != later.identity or seconds <= 0:
        return True
    return _busy((later.cpu_seconds - earlier.cpu_seconds) / seconds, seconds)


def _busy(cores: float, seconds: float) -> bool:
    return cores * seconds > max(IDLE_CORES * seconds, TICK)


def _switches(process: Process, watched: float) -> float:
    allowed = WAKE_UPS + sum(
        rate for name, rate in WAKE_UPS_OF.items() for mark in process.marks if mark.startswith(name)
    )
    # Two more: whoever watches it may have woken it up.
    return allowed * watched + 2
