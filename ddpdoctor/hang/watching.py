"""Looks at the ranks of one running job: twice, some seconds apart, and at their stacks all the while. Nothing is held up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.text import masked, plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.facts.hang import NOT_COUNTED, NOT_FOUND, Frame, Hang, RankLook, Watched, WatchedRank
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity
from ddpdoctor.hang.permission import Missed, hidden_places, hidden_stacks, powers
from ddpdoctor.hang.rank_states import is_worker_idle
from ddpdoctor.hang.stack_sampling import Sampled, sample
from ddpdoctor.knowledge.stack_places import pythons
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import Spied, py_spy, spy
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.processes.rank_remarks import SETTLED_SECONDS
from ddpdoctor.processes.signs_of_life import polling_rate

SECONDS: Final = 3
MOST_WORKERS: Final = 256
"""Of all ranks together; more than that are not looked at."""

ENDED = frozenset("ZX")
HEARTBEATS: Final = ("pt_tcpstore", "pt_nccl_")
"""Threads that talk to each other once a second all the while, whatever the job does: NCCL's watchdogs ask the store."""

ENDED_WORDS: Final = "it has ended, and its parent has not taken note"
STOPPED_BY: Final = "a debugger holds it (pid {}), and was not disturbed"


class WatchedMoment(msgspec.Struct, frozen=True, kw_only=True):
    """One moment: what the kernel and py-spy say, by pid. A process that is gone has no glance."""

    seconds: float
    glances: Mapping[int, ProcessGlance]
    spied: Mapping[int, Spied]


async def watch(
    job: TrainingJob, processes: Processes, host: str, seconds: int = SECONDS, proc: Proc | None = None
) -> Hang:
    """Takes a little longer than `seconds`. host: this one's name."""
    proc = proc or Proc()
    ranked = [one for one in job.ranks if one.place is not None]
    workers = {process.pid: list(job.workers_of(process)) for process in ranked}
    left_out = _cut(workers)
    wanted = [process for rank in ranked for process in (rank, *workers[rank.pid])]
    began = time.monotonic()
    first = await _look(wanted, proc, began)
    sampled = await _between([process.pid for process in ranked], first, seconds)
    second = await _look(wanted, proc, began)
    looks = (first, second)
    of_rank = {process.pid: process.place.rank for process in ranked if process.place}
    ranks = [
        WatchedRank(
            rank=of_rank[process.pid],
            host=host,
            watched=_watched(process, looks, sampled),
            workers=tuple(found for worker in workers[process.pid] if (found := _watched(worker, looks, sampled))),
            gone=_gone(process, looks),
        )
        for process in ranked
    ]
    settled = min((one.age for one in job.ranks), default=0.0) >= SETTLED_SECONDS
    ranks += [WatchedRank(rank=rank, host=host, gone=NOT_FOUND) for rank in job.missing if settled]
    missed = [
        Missed(
            rank=of_rank[rank.pid],
            process=process,
            trouble=second.spied[process.pid].trouble,
            worker=process is not rank,
        )
        for rank in ranked
        for process in (rank, *workers[rank.pid])
        if process.pid in second.spied and second.spied[process.pid].trouble
    ]
    mine = powers(proc)
    hidden = [
        *hidden_stacks(missed, mine, job.name),
        *hidden_places([one for one in job.ranks if one.place is None], mine, job.name),
        *([f"{plural(left_out, 'DataLoader worker')} more were not looked at."] if left_out else []),
        *([_on_the_way(job)] if job.missing and not settled else []),
        *([f"{processes.unseen[:1].upper()}{processes.unseen[1:]}."] if processes.unseen else []),
    ]
    return Hang(
        job=job.name,
        world_size=job.world_size or 0,
        backend=backend_of(job),
        groups=max((_groups_of(one.pid, proc) for one in job.ranks), default=0),
        ranks=tuple(sorted(ranks, key=lambda one: one.rank)),
        between=round(second.seconds - first.seconds, 3),
        py_spy=py_spy() or "py-spy",
        hidden=tuple(hidden),
    )


def _on_the_way(job: TrainingJob) -> str:
    named = ranks_named(job.missing)
    return f"{named[:1].upper()}{named[1:]} of this job may be about to start: the youngest rank is less than {SETTLED_SECONDS:.0f} s old."


def _cut(workers: dict[int, list[Process]]) -> int:
    """Leaves out what is too much; how many that are."""
    each = max(1, MOST_WORKERS // max(1, len(workers)))
    before = sum(map(len, workers.values()))
    for pid, those in workers.items():
        workers[pid] = those[:each]
    return before - sum(map(len, workers.values()))


async def _look(wanted: Iterable[Process], proc: Proc, began: float) -> WatchedMoment:
    seconds = time.monotonic() - began
    found = {process.pid: glance(process.identity, proc) for process in wanted}
    there = {pid: one for pid, one in found.items() if one is not None}
    # Two can't trace one process, and a debugger's user wouldn't thank us.
    open_to_us = [pid for pid, one in there.items() if not one.ended and not one.tracer]
    spied = await spy(open_to_us)
    # What has another's pid by now was not what was meant.
    same = {process.pid for process in wanted if process.pid in spied and glance(process.identity, proc) is not None}
    return WatchedMoment(seconds=seconds, glances=there, spied={pid: one for pid, one in spied.items() if pid in same})


async def _between(ranks: Sequence[int], first: WatchedMoment, seconds: int) -> dict[int, Sampled]:
    """The samples of ranks, and of those workers that have something to do."""
    seen = {pid: one.frames for pid, one in first.spied.items() if one.frames}
    wanted = [
        pid
        for pid, frames in seen.items()
        if pid in ranks or not is_worker_idle(Watched(pid=pid, looks=(RankLook(frames=frames),)))
    ]
    began = time.monotonic()
    sampled = await sample(wanted, seconds) if wanted else {}
    # Without py-spy the kernel's figures need their time all the same.
    await asyncio.sleep(began + seconds - time.monotonic())
    return sampled


def _watched(one: Process, looks: Sequence[WatchedMoment], sampled: Mapping[int, Sampled]) -> Watched | None:
    found = tuple(look for seen in looks if (look := _look_of(one.pid, seen)) is not None)
    if not found or one.pid not in looks[-1].glances or looks[-1].glances[one.pid].ended:
        return None
    samples = sampled.get(one.pid, Sampled())
    return Watched(
        pid=one.pid,
        looks=found,
        samples=samples.count,
        elsewhere=samples.elsewhere,
        moved=samples.moved,
        within=samples.within,
    )


def _look_of(pid: int, seen: WatchedMoment) -> RankLook | None:
    there = seen.glances.get(pid)
    if there is None:
        return None
    spied = seen.spied.get(pid, Spied())
    source = STOPPED_BY.format(there.tracer) if there.tracer else (spied.trouble.value or "py-spy")
    return there.look(seen.seconds, spied.frames, _that_matter(spied.others), source)


def _that_matter(others: Iterable[tuple[str, tuple[Frame, ...]]]) -> list[tuple[str, tuple[Frame, ...]]]:
    """Threads that run something else than Python's own waiting: not the feeders of queues."""
    return [(name, frames) for name, frames in others if any(not pythons(frame) for frame in frames)]


def _gone(one: Process, looks: Sequence[WatchedMoment]) -> str:
    last = looks[-1].glances.get(one.pid)
    if last is not None:
        return f"{last.state}: {ENDED_WORDS}" if last.state in ENDED else ""
    return "it ended while it was looked at" if one.pid in looks[0].glances else "no such process"


def _groups_of(pid: int, proc: Proc) -> int:
    """By the thread that each group starts, gloo's for groups of more than one rank, NCCL's once it is used."""
    names = Counter(name for _, name in proc.thread_names(pid))
    return max(names["gloo_tcp_loop"], names["pt_nccl_watchdg"])


def backend_of(job: TrainingJob) -> str:
    """By the threads that each starts; "" where no rank has any."""
    marks = {mark for rank in job.ranks for mark in rank.marks}
    gloo = any("gloo" in mark for mark in marks)
    nccl = any("nccl" in mark for mark in marks)
    return " and ".join(name for name, there in (("nccl", nccl), ("gloo", gloo)) if there)


# --- what the kernel says of a process at one moment: nothing that could hold it up, and nothing that waits for it -----------


class ProcessGlance(msgspec.Struct, frozen=True, kw_only=True):
    """As in `RankLook`, and tracer: a debugger's pid, 0 without one."""

    state: str
    waits_in: str = ""
    cpu_seconds: float = 0.0
    switches: int = 0
    main_wakes: Maybe[int] = NOT_COUNTED
    other_wakes: Maybe[int] = NOT_COUNTED
    transferred: int = 0
    tracer: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def look(
        self, seconds: float, frames: Sequence[Frame], others: Sequence[tuple[str, tuple[Frame, ...]]], source: str
    ) -> RankLook:
        """With what is known of its stack."""
        return RankLook(
            seconds=round(seconds, 3),
            frames=tuple(frames),
            others=tuple(others),
            source=source,
            state=self.state,
            waits_in=self.waits_in,
            cpu_seconds=round(self.cpu_seconds, 3),
            switches=self.switches,
            main_wakes=self.main_wakes,
            other_wakes=self.other_wakes,
            transferred=self.transferred,
        )


def glance(one: ProcessIdentity, proc: Proc) -> ProcessGlance | None:
    """None where that process is gone, even if another has its pid now."""
    stat = proc.stat(one.pid)
    if isinstance(stat, Unknown) or stat.start != one.start:
        return None
    if stat.state in ENDED:
        return ProcessGlance(state=stat.state)
    spent = proc.spent(one.pid)
    if isinstance(spent, Unknown):
        return None
    status = proc.status(one.pid)
    tracer, wakes = status.get("TracerPid", "0"), status.get("voluntary_ctxt_switches", "")
    names = dict(proc.thread_names(one.pid))
    others = {thread: spent.threads[thread] for thread in spent.threads if not polling_rate(names.get(thread, ""))}
    said = sum(_transferred(one.pid, thread, proc) for thread, name in names.items() if name.startswith(HEARTBEATS))
    return ProcessGlance(
        state=stat.state,
        waits_in=_waits_in(one.pid, proc),
        cpu_seconds=sum(cpu for cpu, _ in others.values()),
        switches=spent.switches,
        main_wakes=int(wakes) if wakes.isdecimal() else NOT_COUNTED,
        other_wakes=sum(switches for thread, (_, switches) in others.items() if thread != one.pid),
        transferred=0 if isinstance(spent.transferred, Unknown) else max(0, spent.transferred - said),
        tracer=int(tracer) if tracer.isdecimal() else 0,
    )


def _transferred(pid: int, thread: int, proc: Proc) -> int:
    bytes_of_thread = proc.transferred(pid, thread)
    return 0 if isinstance(bytes_of_thread, Unknown) else bytes_of_thread


def _waits_in(pid: int, proc: Proc) -> str:
    """The kernel writes "0" of one that runs, and to whoever may not know."""
    content = proc.read(f"{pid}/wchan", 200)
    text = "" if isinstance(content, Unknown) else masked(content.decode("utf-8", "replace")).strip()
    return "" if text == "0" else text
