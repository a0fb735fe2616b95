"""What `smoke --duration` saw while the ranks trained on: a part of the facts of a smoke training."""

from __future__ import annotations

import msgspec

from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.kernel_log import KernelLine

MAX_WINDOWS = 60
"""Windows of a rank, and looks at a host, however long it took: when there are so many, each two become one."""
MAX_WATCHED_GPUS = 64
MAX_ERROR_LINES = 16


class PaceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's training within one window of the time."""

    at: float
    """Seconds since the burn-in began, at the window's end."""
    steps: float
    """Steps a second, the same for all ranks."""
    own: float
    """Seconds of a step's first half in which a rank meets no other, in the middle of all of them, without those in which it waited for a
    core."""
    waited: float
    """The part of the window in which its main thread was ready to run and had no core; -1: the kernel doesn't say."""
    memory: int
    """Bytes that its process held at the end (resident); 0: not known."""


class GpuLook(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one GPU; None: it doesn't tell. Degrees Celsius, MHz, watts."""

    at: float
    temperature: int | None = None
    clock: int | None = None
    power: float | None = None
    throttled: tuple[str, ...] = ()
    """Why its clock is lowered, as `facts.gpus.Gpu.throttle_reasons`."""


class WatchedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a host. Errors: counts before and after; None: it doesn't tell, or wasn't there any more."""

    index: int
    name: str = ""
    bus_id: str = ""
    looks: tuple[GpuLook, ...] = ()
    tells_throttling: bool = False
    """Whether it says why its clock is lowered."""
    uncorrected_before: int | None = None
    uncorrected_after: int | None = None
    corrected_before: int | None = None
    corrected_after: int | None = None
    lost: bool = False
    """It answered before, and no longer after."""


class MemoryLook(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a host's memory that are available."""

    at: float
    available: int


class HostWatch(msgspec.Struct, frozen=True, kw_only=True):
    """What one host was like meanwhile."""

    host: str = ""
    node: int = 0
    memory_total: int = 0
    memory: tuple[MemoryLook, ...] = ()
    gpus: Maybe[tuple[WatchedGpu, ...]] = Unknown("not looked at")
    error_lines: Maybe[tuple[KernelLine, ...]] = Unknown("not looked at")
    """The kernel log's lines of Xids and lost GPUs that came meanwhile, the newest at most. age: seconds before the end."""


class BurnIn(msgspec.Struct, frozen=True, kw_only=True):
    """The burn-in of a smoke training. The ranks' windows stand beside what each of them came to."""

    asked: float = 0.0
    """Seconds that were asked for; 0: none."""
    stopped: str = ""
    """Who ended it before: "Ctrl-C", "SIGTERM"; "" where nobody did."""
    batch: int = 0
    """Samples a rank and step."""
    hosts: tuple[HostWatch, ...] = ()
