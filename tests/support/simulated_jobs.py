"""Healthy training jobs in simulated time, as the kernel and py-spy would show them to `jobs --hang`.

    job = simulated_job(Random(7))
    hang = job.watched(monkeypatch, start=100.0, seconds=30)

Each rank is a row of spans: where it stands, and what the kernel counts meanwhile. Ranks work, meet, and go on when the last has
come; some steps have pauses (a checkpoint, an evaluation, data). Nothing of it hangs.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from ddpdoctor.facts.hang import Frame, Hang, RankLook, Watched
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity, ProcessRole, RankPlace
from ddpdoctor.hang import watching
from ddpdoctor.hang.stack_sampling import ALL_RATE, MIN_RATE, RATE, parse_samples
from ddpdoctor.hang.watching import ProcessGlance
from ddpdoctor.probes.py_spy import Spied
from ddpdoctor.processes.jobs import TrainingJob
from tests.support.hangs import (
    GETS_ITEM,
    IDLE_WORKER,
    Stack,
    backward,
    collective,
    forward,
    in_worker,
    loader,
    own,
    rendezvous,
    saving,
)

LAST: Final = 2_000.0
"""Seconds that are simulated at most."""
MOST_SPANS: Final = 4_000
LAUNCHER: Final = 3990


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Some time in one place. cores: used all the while. wakes: how often a second the main thread wakes up in it; it wakes up
    once more where it ends, unless `spins`. others: the same of other threads. moved: bytes a second; done: bytes at its end."""

    seconds: float
    stack: Stack
    waits_in: str = "futex_do_wait"
    state: str = "S"
    cores: float = 0.0
    wakes: float = 0.0
    others: float = 0.0
    moved: float = 0.0
    done: int = 0
    spins: bool = False


class Timeline:
    """What one process does, from the start on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.starts: list[float] = []
        self.spans: list[Span] = []
        self.before: list[tuple[float, float, float, float]] = []
        """Seconds of processor, wake-ups of the main thread, of others, and bytes up to the start of each span."""
        self.end = 0.0

    def add(self, span: Span) -> None:
        at = (0.0, 0.0, 0.0, 0.0)
        if self.spans:
            last = self.spans[-1]
            cpu, wakes, others, moved = self._counted(len(self.spans) - 1, self.end)
            at = (cpu, wakes + (not last.spins), others, moved + last.done)
        self.starts.append(self.end)
        self.spans.append(span)
        self.before.append(at)
        self.end += span.seconds

    def wait(self, until: float, span: Span) -> None:
        self.add(msgspec.structs.replace(span, seconds=max(0.0, until - self.end)))

    def _counted(self, place: int, now: float) -> tuple[float, float, float, float]:
        span, passed = self.spans[place], now - self.starts[place]
        cpu, wakes, others, moved = self.before[place]
        return (
            cpu + span.cores * passed,
            wakes + span.wakes * passed,
            others + span.others * passed,
            moved + span.moved * passed,
        )

    def at(self, now: float) -> int:
        return max(0, bisect_right(self.starts, now) - 1)

    def glance(self, now: float) -> ProcessGlance:
        place = self.at(now)
        cpu, wakes, others, moved = self._counted(place, now)
        span = self.spans[place]
        look = RankLook(
            state=span.state,
            waits_in=span.waits_in if span.state == "S" else "",
            cpu_seconds=round(100.0 + cpu, 3),
            switches=int(5000 + wakes + others + 98 * now),
            main_wakes=int(700 + wakes),
            other_wakes=int(90 + others),
            transferred=int(52_000_000 + moved),
        )
        return ProcessGlance(look)

    def stack(self, now: float) -> Stack:
        return self.spans[self.at(now)].stack

    def sampled(self, began: float, seconds: int, rate: int, dice: Random) -> Watched:
        """As py-spy writes what it read, now and then a stack that was torn while it was read."""
        moments = began + np.arange(seconds * rate) / rate
        spans = np.searchsorted(self.starts, moments, side="right") - 1
        stacks: Counter[Stack] = Counter()
        for span, count in zip(*np.unique(np.maximum(spans, 0), return_counts=True), strict=True):
            stacks[self.spans[span].stack] += int(count)
        lines = [_line(self.pid, stack, count) for stack, count in stacks.items()]
        if dice.random() < 0.2:
            lines.append(_line(self.pid, stacks.most_common(1)[0][0][:2], 1))
        return parse_samples(self.pid, "\n".join(lines).encode())


def _line(pid: int, stack: Sequence[Frame], count: int) -> str:
    frames = (f"{one.function} ({one.path}:{one.line})" for one in reversed(stack))
    return f"thread ({pid}): MainThread;{';'.join(frames)} {count}"


class SimulatedJob:
    """here: how many of its ranks are on the host that is looked at."""

    def __init__(self, ranks: Sequence[Timeline], workers: dict[int, Timeline], backend: str, here: int) -> None:
        self.ranks = ranks
        self.workers = workers
        """By the rank's pid."""
        self.backend = backend
        self.here = here

    @property
    def end(self) -> float:
        return min(rank.end for rank in self.ranks)

    def watched(self, monkeypatch: pytest.MonkeyPatch, start: float, seconds: int, dice: Random) -> Hang:
        """The facts as `watch` makes them, in no time."""
        clock = SimpleNamespace(now=start)
        seen = {process.pid: process for process in (*self.ranks[: self.here], *self.workers.values())}

        async def spy(pids: Iterable[int]) -> dict[int, Spied]:
            return {pid: Spied(frames=seen[pid].stack(clock.now)) for pid in pids}

        async def sample(pids: Sequence[int], seconds: int) -> dict[int, Watched]:
            rate = max(MIN_RATE, min(RATE, ALL_RATE // max(1, len(pids))))
            return {pid: seen[pid].sampled(clock.now, seconds, rate, dice) for pid in pids}

        async def sleep(seconds: float) -> None:
            clock.now += max(0.0, seconds)

        def glance(one: ProcessIdentity, proc: object) -> ProcessGlance:
            return seen[one.pid].glance(clock.now)

        replaced: dict[str, Any] = {
            "spy": spy,
            "sample": sample,
            "glance": glance,
            "time": SimpleNamespace(monotonic=lambda: clock.now),
            "asyncio": SimpleNamespace(sleep=sleep),
        }
        for name, value in replaced.items():
            monkeypatch.setattr(watching, name, value)
        return asyncio.run(watching.watch(self._job(), Processes(), "node01", seconds))

    def _job(self) -> TrainingJob:
        marks = ("gloo_tcp_loop", "pt_gloo_runloop") if self.backend == "gloo" else ("pt_nccl_watchdg",)
        size = len(self.ranks)
        ranks = [
            Process(
                pid=process.pid,
                start=number,
                parent=LAUNCHER,
                age=LAST,
                role=ProcessRole.RANK,
                marks=marks,
                place=RankPlace(rank=number, world_size=size, source="RANK"),
            )
            for number, process in enumerate(self.ranks[: self.here])
        ]
        others = [
            Process(pid=process.pid, start=process.pid, parent=pid, role=ProcessRole.WORKER)
            for pid, process in self.workers.items()
        ]
        return TrainingJob(
            name=str(LAUNCHER),
            ranks=tuple(ranks),
            others=tuple(process for process in others if process.parent in {rank.pid for rank in ranks}),
            world_size=size,
            expected=tuple(range(self.here)),
        )


# --- what ranks do ------------------------------------------------------------------------------------------------------

Work = Callable[[float, Random], Iterator[Span]]


def computes(seconds: float, dice: Random) -> Iterator[Span]:
    """On the processor, in Python or in C."""
    lines = dice.choice([1, 1, 3])
    for line in range(lines):
        stack = dice.choice([own("work", 20 + line), own("main", 33 + line), backward(), forward()])
        yield Span(seconds=seconds / lines, stack=stack, state="R", cores=dice.uniform(0.3, 8.0), spins=True)


def computes_in_other_threads(seconds: float, dice: Random) -> Iterator[Span]:
    yield Span(seconds=seconds, stack=own("work", 25), cores=dice.uniform(0.3, 8.0), others=dice.uniform(1, 500))


def sleeps(seconds: float, dice: Random) -> Iterator[Span]:
    """As one does in a test, or before one asks a server again."""
    yield Span(seconds=seconds, stack=own("work", 28), waits_in="hrtimer_nanosleep")


def receives(seconds: float, dice: Random) -> Iterator[Span]:
    waits_in = dice.choice(["sk_wait_data", "wait_woken", "do_poll", "poll_schedule_timeout"])
    yield Span(seconds=seconds, stack=own("fetch", 31), waits_in=waits_in, wakes=dice.choice([0, 0.02, 1, 50]))


def waits_for_a_program(seconds: float, dice: Random) -> Iterator[Span]:
    yield Span(
        seconds=seconds, stack=own("convert", 45), waits_in=dice.choice(["do_wait", "anon_pipe_read", "pipe_read"])
    )


def reads_a_file(seconds: float, dice: Random) -> Iterator[Span]:
    yield Span(
        seconds=seconds, stack=own("read", 46), state="D", wakes=dice.uniform(1, 300), moved=dice.choice([0, 1e6])
    )


ANY_WORK: Final[tuple[Work, ...]] = (
    computes, computes, computes_in_other_threads, sleeps, receives, waits_for_a_program, reads_a_file,
)  # fmt: skip


def saves(seconds: float, dice: Random) -> Iterator[Span]:
    kinds: list[dict[str, Any]] = [
        {"waits_in": "folio_wait_bit", "state": "D", "wakes": 20.0, "moved": 1e8},
        {"waits_in": "sk_stream_wait_memory", "wakes": 5.0},
        {"waits_in": "sk_stream_wait_memory"},
        {"state": "R", "cores": 1.0, "moved": 1e6},
        {"others": 40.0},
    ]
    yield Span(seconds=seconds, stack=saving(), **dice.choice(kinds))


def evaluates(seconds: float, dice: Random) -> Iterator[Span]:
    """By itself, batch by batch."""
    batch = min(seconds, dice.choice([0.01, 0.3, 5.0, 20.0]))
    for _ in range(min(300, int(seconds / batch))):
        yield from dice.choice([computes, computes_in_other_threads])(batch, dice)
        yield Span(seconds=0.001, stack=own("evaluate", 71), state="R", cores=1.0, spins=True)


# --- how they meet ------------------------------------------------------------------------------------------------------


def simulated_job(dice: Random) -> SimulatedJob:
    """Some job: of one to eight ranks, steps of 10 ms to 20 s, with pauses of up to five minutes."""
    backend = dice.choice(["gloo", "gloo", "nccl"])
    size = dice.randint(1, 8)
    here = size if dice.random() < 0.7 else dice.randint(1, size)
    ranks = [Timeline(4000 + number) for number in range(size)]
    job = _Builder(ranks, backend, dice)
    job.start()
    step = dice.choice([0.01, 0.05, 0.3, 1.0, 3.0, 8.0, 15.0, 20.0])
    shape = dice.choice([job.data_parallel, job.data_parallel, job.one_slow_rank, job.pipeline, job.with_loader])
    pauses = dice.choice([(), (job.checkpoint,), (job.evaluation, job.checkpoint), (job.waits_for_data,)])
    every = dice.randint(2, 20)
    count = 0
    while max(rank.end for rank in ranks) < LAST and len(ranks[0].spans) < MOST_SPANS:
        shape(step)
        count += 1
        if pauses and count % every == 0:
            dice.choice(pauses)(dice.choice([0.5, 5.0, 40.0, 300.0]))
    return SimulatedJob(ranks, job.workers, backend, here)


class _Builder:
    """Writes the timelines of all ranks of one job."""

    def __init__(self, ranks: Sequence[Timeline], backend: str, dice: Random) -> None:
        self.ranks = ranks
        self.backend = backend
        self.dice = dice
        self.workers: dict[int, Timeline] = {}
        self.work = dice.choice(ANY_WORK)
        self.payload = dice.choice([8, 64, 2_000, 60_000, 5_000_000])
        self.meeting = dice.choice(
            [collective(), collective("barrier", 41), backward(), collective("all_gather_object", 44)]
        )

    def start(self) -> None:
        """They import, and come to the rendezvous one after the other; rank 0, which keeps the store, asks it again and again."""
        for rank in self.ranks:
            for span in computes(self.dice.uniform(1, 10), self.dice):
                rank.add(span)
            for span in receives(self.dice.choice([0.1, 0.1, 60.0]), self.dice):
                rank.add(span)
        self.meet(self.ranks, Span(seconds=0.0, stack=rendezvous(), waits_in="do_poll"), polls=100.0)

    def meet(self, ranks: Sequence[Timeline], span: Span, *, polls: float = 0.0) -> None:
        """All go on when the last has come. polls: how often the first wakes up for that."""
        latest = max(rank.end for rank in ranks) + 0.0005
        for number, one in enumerate(ranks):
            mine = msgspec.structs.replace(span, wakes=0.0 if number else polls)
            one.wait(latest + self.dice.uniform(0, 0.002), mine)

    def collective(self, ranks: Sequence[Timeline], stack: Stack | None = None) -> None:
        if len(ranks) == 1:
            return
        if self.backend == "gloo":
            self.meet(ranks, Span(seconds=0.0, stack=stack or self.meeting, done=self.payload * (len(ranks) - 1)))
            return
        # The call returns at once; the main thread waits for the GPU where a figure is asked for, and spins.
        for rank in ranks:
            rank.add(Span(seconds=0.004, stack=stack or self.meeting, state="R", cores=1.0, spins=True))
        self.meet(ranks, Span(seconds=0.0, stack=own("train_step", 52), state="R", cores=1.0, spins=True))

    def data_parallel(self, step: float) -> None:
        for rank in self.ranks:
            for span in self.work(step * self.dice.uniform(0.8, 1.0), self.dice):
                rank.add(span)
        self.collective(self.ranks)

    def one_slow_rank(self, step: float) -> None:
        """It works for the whole step, then all have a small all_reduce."""
        for number, one in enumerate(self.ranks):
            for span in self.work(step if number == len(self.ranks) - 1 else min(step, 0.005), self.dice):
                one.add(span)
        self.collective(self.ranks, collective("all_reduce", 40))

    def pipeline(self, step: float) -> None:
        """Each stage waits for the one before it, pairs of ranks for each other, and all at the end of the step."""
        for number, one in enumerate(self.ranks):
            if number:
                self.meet([one], Span(seconds=0.0, stack=collective("recv", 38)))
                one.wait(self.ranks[number - 1].end, Span(seconds=0.0, stack=collective("recv", 38), done=self.payload))
            for span in self.work(step / len(self.ranks), self.dice):
                one.add(span)
        for first in range(0, len(self.ranks), 2):
            self.collective(self.ranks[first : first + 2], collective("all_reduce", 43))
        self.collective(self.ranks)

    def with_loader(self, step: float) -> None:
        """Rank 0 waits for a worker's batch, which arrives through a pipe."""
        first = self.ranks[0]
        worker = self.workers.get(first.pid)
        if worker is None:
            worker = self.workers[first.pid] = Timeline(5000)
            worker.add(Span(seconds=first.end, stack=IDLE_WORKER, waits_in="do_poll"))
        worker.wait(first.end, Span(seconds=0.0, stack=IDLE_WORKER, waits_in="do_poll"))
        kind: dict[str, Any] = self.dice.choice(
            [
                {"waits_in": "hrtimer_nanosleep"},
                {"waits_in": "sk_wait_data"},
                {"state": "R", "cores": 0.9, "spins": True},
                {"waits_in": "anon_pipe_read"},
            ]
        )
        worker.add(Span(seconds=step, stack=in_worker(GETS_ITEM), done=600_000, **kind))
        worker.add(Span(seconds=0.001, stack=IDLE_WORKER, waits_in="do_poll"))
        first.wait(worker.end, Span(seconds=0.0, stack=loader(), waits_in="do_poll", wakes=0.2, done=self.payload))
        for rank in self.ranks:
            for span in computes(0.003, self.dice):
                rank.add(span)
        self.collective(self.ranks)

    def checkpoint(self, pause: float) -> None:
        """Rank 0 saves, the others wait in a barrier."""
        for span in saves(pause, self.dice):
            self.ranks[0].add(span)
        self.collective(self.ranks, collective("barrier", 62))

    def evaluation(self, pause: float) -> None:
        for one in self.ranks if self.dice.random() < 0.5 else self.ranks[:1]:
            for span in evaluates(pause, self.dice):
                one.add(span)
        self.collective(self.ranks, collective("barrier", 72))

    def waits_for_data(self, pause: float) -> None:
        """Some rank's server is slow."""
        for span in self.dice.choice([receives, waits_for_a_program])(pause, self.dice):
            self.dice.choice(self.ranks).add(span)
        self.collective(self.ranks, collective("all_reduce", 34))
