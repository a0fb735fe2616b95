"""Judges whether a process does anything: what it used of the processor, of files and of its GPUs while it was watched. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.gpus import Gpu
from ddpdoctor.facts.processes import Process

IDLE_CORES: Final = 0.02
"""A rank that waits in a gloo collective for ever was measured at less than 0.001 cores, and 0.002 for each gloo loop."""
TICK_SECONDS: Final = 0.011
"""The processor's time is counted in hundredths, so one may have been there before."""
MIN_WATCHED_SECONDS: Final = 0.2
"""Who was watched for less may just have been between two steps."""

IDLE_WAKE_UPS_PER_SECOND: Final = 5.0
"""Of all threads of a process together that wait for ever: none, as measured. Those that poll are counted by themselves."""
POLLING_RATES: Final = {"gloo_tcp_loop": 120.0, "pt_nccl_": 25.0, "NCCL": 25.0, "cuda-": 25.0}
"""Beginnings of the names of threads that look again and again whether there is anything to do, and how often a second each may:
gloo's loop every 10 ms (measured), NCCL's watchdog every 100 ms. A rank has one for each of its process groups."""
NCCL_GROUP_THREAD: Final = "pt_nccl_watchdg"
"""There is one for each process group of NCCL's."""
NCCL_WAKE_UPS_PER_SECOND: Final = 5.0
"""More wake-ups for each of those: NCCL's own threads, which bear no name unless NCCL_SET_THREAD_NAME is set, look twice a
second (src/proxy.cc of NCCL; not measured)."""

ACTIVE_STATES: Final = {
    "R": "it runs at this moment",
    "D": "it waits for a disk or a driver",
    "T": "it is stopped, and somebody may let it go on",
    "t": "a debugger has stopped it",
}
"""The kernel's letters that are not those of a process that sleeps or has ended."""


def signs_of_life(process: Process, watched: float) -> Iterator[str]:
    """Say what a process was seen to do during those seconds."""
    if process.state in ACTIVE_STATES:
        yield ACTIVE_STATES[process.state]
    if isinstance(process.recent_cpu, float | int) and _computes(process, process.recent_cpu, watched):
        yield f"it uses {process.recent_cpu:.2f} cores"
    if isinstance(process.recent_bytes, int) and process.recent_bytes > 0:
        yield f"it read or wrote {human(process.recent_bytes)} in {watched:.1f} s"
    if isinstance(process.recent_switches, int) and _awake(process, process.recent_switches, watched):
        yield f"its threads woke up {plural(process.recent_switches, 'time')} in {watched:.1f} s"
    if isinstance(process.writes_to, tuple) and process.writes_to:
        yield f"it has {listed(process.writes_to, 2)} open for writing"


def not_known(process: Process, watched: float) -> Iterator[str]:
    """Say what would have to be known before a process is called dead, and isn't."""
    if watched < MIN_WATCHED_SECONDS:
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
    """Say why GPUs may be working for a process that NVML lists on those in `holding`: a rank may sleep while its kernels run."""
    if isinstance(all_gpus, Unknown):
        yield f"whether a GPU works for it can't be told: {all_gpus.reason}"
        return
    touches = isinstance(process.devices, Unknown) or bool(process.devices)
    for gpu in all_gpus:
        # AMD's, a Jetson's, or one in WSL, which doesn't tell who uses it, isn't reached through /dev/nvidiaN.
        elsewhere = gpu.integrated or gpu.architecture is not None or isinstance(gpu.holders, Unknown)
        if gpu in holding or (touches and not holding) or elsewhere:
            if isinstance(gpu.utilisation, Unknown):
                yield f"whether GPU {gpu.index} works for it can't be told: {gpu.utilisation.reason}"
            elif gpu.utilisation > 0:
                yield f"GPU {gpu.index} is {gpu.utilisation} % busy, perhaps for it"


def worked_between(earlier: Process, later: Process, seconds: float) -> bool:
    """Whether it used the processor between two looks that far apart. A start that differs is another process: it counts as alive."""
    if earlier.identity != later.identity or seconds <= 0:
        return True
    polling = sum(thread.cpu for thread in later.recent_threads if polling_rate(thread.name))
    return _busy((later.cpu_seconds - earlier.cpu_seconds) / seconds - polling, seconds)


def _busy(cores: float, seconds: float) -> bool:
    return cores * seconds > max(IDLE_CORES * seconds, TICK_SECONDS)


def polling_rate(thread: str) -> float:
    """Tell how often a second a thread of that name may wake up without having anything to do; 0.0 of one that is not known to poll."""
    return next((rate for name, rate in POLLING_RATES.items() if thread.startswith(name)), 0.0)


def _computes(process: Process, cores: float, watched: float) -> bool:
    """Whether one of its threads that poll uses more than polling takes, or all the others together do anything."""
    polling = [thread.cpu for thread in process.recent_threads if polling_rate(thread.name)]
    return _busy(cores - sum(polling), watched) or any(_busy(used, watched) for used in polling)


def _awake(process: Process, switches: int, watched: float) -> bool:
    """Whether its threads wake up more often than waiting takes. Two more each: whoever watches it may have woken it up."""
    polling = [thread for thread in process.recent_threads if polling_rate(thread.name)]
    if any(thread.switches > polling_rate(thread.name) * watched + 2 for thread in polling):
        return True
    groups = sum(thread.name.startswith(NCCL_GROUP_THREAD) for thread in polling)
    rest = switches - sum(thread.switches for thread in polling)
    return rest > (IDLE_WAKE_UPS_PER_SECOND + NCCL_WAKE_UPS_PER_SECOND * groups) * watched + 2
