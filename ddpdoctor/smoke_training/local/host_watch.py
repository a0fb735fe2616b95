"""Looks at this host while its ranks train on: memory, and where they are on GPUs these, and the kernel's log of errors."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ddpdoctor.base.async_work import in_thread
from ddpdoctor.base.unknown import Maybe, Unknown, known_or
from ddpdoctor.facts.burn_in import (
    MAX_ERROR_LINES,
    MAX_WATCHED_GPUS,
    MAX_WINDOWS,
    GpuLook,
    HostWatch,
    MemoryLook,
    WatchedGpu,
)
from ddpdoctor.facts.gpus import Gpu, Gpus
from ddpdoctor.facts.kernel_log import KernelLine, KernelLog
from ddpdoctor.facts.machine import Machine
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.facts.visible import visible_gpus
from ddpdoctor.knowledge.xids import SXID_LINE, XID_LINE
from ddpdoctor.probes.context import Context
from ddpdoctor.probes.runner import take_snapshot
from ddpdoctor.smoke_training.training_order import TrainingOrder

MIN_PAUSE_SECONDS: Final = 0.5
MIN_GPU_PAUSE_SECONDS: Final = 2.0
"""NVML is asked by a process of its own each time."""
NO_GPUS_USED: Final = Unknown("the ranks train on the CPU")
LOST: Final = re.compile(r"fallen off the bus", re.IGNORECASE)


class HostWatcher:
    """Looks before the ranks begin, again and again while they burn in, and after their end."""

    def __init__(self, order: TrainingOrder, python: str, environ: Mapping[str, str]) -> None:
        self._order = order
        self._python = python
        self._environ = environ
        self._with_gpus = order.backend == "nccl"
        self._began = time.monotonic()
        self._memory: list[MemoryLook] = []
        self._total = 0
        self._before: Maybe[tuple[Gpu, ...]] = NO_GPUS_USED
        self._looks: dict[int, list[GpuLook]] = {}
        self._burning = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take the first look; it takes no time of the caller's."""
        self._task = asyncio.ensure_future(self._watch())

    def begin(self) -> None:
        """The burn-in has begun."""
        if not self._burning.is_set():
            self._began = time.monotonic()
            self._burning.set()

    async def end(self, started: float) -> HostWatch:
        """Take the last look.

        Args:
            started: the moment when the run began: errors since then are its own.
        """
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        seen = await in_thread(
            lambda: self._look(("machine", "gpus", "kernel_log") if self._with_gpus else ("machine",))
        )
        if self._burning.is_set():
            self._take(seen)
        return HostWatch(
            host=socket.gethostname(),
            node=self._order.node_rank,
            memory_total=self._total,
            memory=tuple(self._memory),
            gpus=self._watched(seen),
            error_lines=new_errors(seen.kernel_log, time.monotonic() - started) if self._with_gpus else NO_GPUS_USED,
        )

    async def _watch(self) -> None:
        first = await in_thread(
            lambda: self._look(("machine", "gpus", "environment") if self._with_gpus else ("machine",))
        )
        if self._with_gpus:
            self._before = self._own_gpus(first)
        await self._burning.wait()
        with_gpus = not isinstance(self._before, Unknown)
        pause = MIN_GPU_PAUSE_SECONDS if with_gpus else MIN_PAUSE_SECONDS
        groups = ("machine", "gpus") if with_gpus else ("machine",)
        while True:
            self._take(await in_thread(lambda: self._look(groups)))
            if max(len(self._memory), *map(len, self._looks.values()), 0) >= MAX_WINDOWS:
                self._memory = self._memory[1::2]
                self._looks = {index: looks[1::2] for index, looks in self._looks.items()}
                pause *= 2
            await asyncio.sleep(pause)

    def _look(self, groups: tuple[str, ...]) -> Snapshot:
        return take_snapshot(Context(self._python, environ=self._environ, quick=True), groups)

    def _own_gpus(self, seen: Snapshot) -> Maybe[tuple[Gpu, ...]]:
        """The GPUs that the ranks may use. One that a launcher has started may see no other rank's."""
        if isinstance(seen.gpus, Unknown):
            return seen.gpus
        if self._order.launched is not None:
            return seen.gpus.devices[:MAX_WATCHED_GPUS]
        # In the order in which the ranks count them.
        return tuple(dict.fromkeys(visible.gpu for visible in visible_gpus(seen.gpus, seen.environment)))[
            :MAX_WATCHED_GPUS
        ]

    def _take(self, seen: Snapshot) -> None:
        at = round(max(0.0, time.monotonic() - self._began), 1)
        if isinstance(seen.machine, Machine):
            self._total = known_or(seen.machine.memory_total, 0)
            available = known_or(seen.machine.memory_available, None)
            self._memory += [] if available is None else [MemoryLook(at=at, available=available)]
        if isinstance(seen.gpus, Gpus) and not isinstance(self._before, Unknown):
            watched = {gpu.index for gpu in self._before}
            for gpu in seen.gpus.answering:
                if gpu.index in watched:
                    self._looks.setdefault(gpu.index, []).append(_look_at(gpu, at))

    def _watched(self, seen: Snapshot) -> Maybe[tuple[WatchedGpu, ...]]:
        if isinstance(self._before, Unknown):
            return self._before
        after = {gpu.index: gpu for gpu in seen.gpus.answering} if isinstance(seen.gpus, Gpus) else {}
        answers = isinstance(seen.gpus, Gpus)
        return tuple(
            _watched_gpu(gpu, after.get(gpu.index), self._looks.get(gpu.index, ()), answers=answers)
            for gpu in self._before
        )


def _look_at(gpu: Gpu, at: float) -> GpuLook:
    return GpuLook(
        at=at,
        temperature=known_or(gpu.temperature, None),
        clock=known_or(gpu.sm_clock, None),
        power=known_or(gpu.power, None),
        throttled=() if isinstance(gpu.throttle_reasons, Unknown) else gpu.throttle_reasons[:8],
    )


def _watched_gpu(
    before: Gpu, after: Gpu | None, looks: tuple[GpuLook, ...] | list[GpuLook], *, answers: bool
) -> WatchedGpu:
    return WatchedGpu(
        index=before.index,
        name=before.name[:80],
        bus_id=before.bus_id,
        looks=tuple(looks),
        tells_throttling=not isinstance(before.throttle_reasons, Unknown),
        uncorrected_before=known_or(before.ecc_uncorrected_volatile, None),
        corrected_before=known_or(before.ecc_corrected_volatile, None),
        uncorrected_after=None if after is None else known_or(after.ecc_uncorrected_volatile, None),
        corrected_after=None if after is None else known_or(after.ecc_corrected_volatile, None),
        lost=answers and after is None and not before.lost,
    )


def new_errors(log: Maybe[KernelLog], seconds: float) -> Maybe[tuple[KernelLine, ...]]:
    """The lines of the kernel log that tell of an Xid or a lost GPU, and are no older than that."""
    if isinstance(log, Unknown):
        return log
    telling = [line for line in log.lines if any(sign.search(line.text) for sign in (XID_LINE, SXID_LINE, LOST))]
    if any(line.age < 0 for line in telling):
        return Unknown("the kernel log has no time stamps, so that what is new in it can't be told")
    return tuple(line for line in telling if line.age <= seconds)[-MAX_ERROR_LINES:]
