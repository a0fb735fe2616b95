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
from ddpdoctor.knowledge.torch_frames import pythons
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import Spied, py_spy, spy
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.processes.rank_remarks import SETTLED_SECONDS
from ddpdoctor.processes.signs_of_life import polling_rate

SECONDS: Final = 3
MAX_WORKERS: Final = 256
"""Of all ranks together; more than that are not looked at."""

ENDED_STATES: Final = frozenset("ZX")
HEARTBEAT_THREADS: Final = ("pt_tcpstore", "pt_nccl_")
"""Threads that talk to each other once a second all the while, whatever the job does: NCCL's watchdogs ask the store."""

ENDED_WORDS: Final = "it has ended, and its parent has not taken note"
STOPPED_BY: Final = "a debugger holds it (pid {}), and was not disturbed"


class WatchedMoment(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel and py-spy say at one moment, by pid. A process that is gone has no glance."""

    seconds: float
    glances: Mapping[int, ProcessGlance]
    spied: Mapping[int, Spied]


async def watch(
    job: TrainingJob, processes: Processes, host: str, seconds: int = SECONDS, proc: Proc | None = None
) -> Hang:
    """Look at the ranks of a job twice; it takes a little longer than `seconds`.

    Args:
        job: whose ranks.
        processes: all that are listed on this host.
        host: this one's name.
        seconds: between the two looks.
        proc: where the kernel's figures are read; None: /proc.
    """
    proc = proc or Proc()
    ranked = [process for process in job.ranks if process.place is not None]
    workers = {process.pid: list(job.workers_of(process)) for process in ranked}
    left_out = _limit(workers)
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
    settled = min((rank.age for rank in job.ranks), default=0.0) >= SETTLED_SECONDS
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
        *hidden_places([process for process in job.ranks if process.place is None], mine, job.name),
        *([f"{plural(left_out, 'DataLoader worker')} more were not looked at."] if left_out else []),
        *([_may_be_starting(job)] if job.missing and not settled else []),
        *([f"{processes.unseen[:1].upper()}{processes.unseen[1:]}."] if processes.unseen else []),
    ]
    return Hang(
        job=job.name,
        world_size=job.world_size or 0,
        backend=backend_of(job),
        groups=max((_groups_of(rank.pid, proc) for rank in job.ranks), default=0),
        ranks=tuple(sorted(ranks, key=lambda watched: watched.rank)),
        between=round(second.seconds - first.seconds, 3),
        py_spy=py_spy() or "py-spy",
        hidden=tuple(hidden),
    )


def _may_be_starting(job: TrainingJob) -> str:
    named = ranks_named(job.missing)
    return f"{named[:1].upper()}{named[1:]} of this job may be about to start: the youngest rank is less than {SETTLED_SECONDS:.0f} s old."


def _limit(workers: dict[int, list[Process]]) -> int:
    """Leave out workers that are too many, and count them."""
    of_a_rank = max(1, MAX_WORKERS // max(1, len(workers)))
    before = sum(map(len, workers.values()))
    for listed in workers.values():
        del listed[of_a_rank:]
    return before - sum(map(len, workers.values()))


async def _look(wanted: Iterable[Process], proc: Proc, began: float) -> WatchedMoment:
    seconds = time.monotonic() - began
    found = {process.pid: glance(process.identity, proc) for process in wanted}
    glances = {pid: seen for pid, seen in found.items() if seen is not None}
    # Two can't trace one process, and a debugger's user wouldn't thank us.
    open_to_us = [pid for pid, seen in glances.items() if not seen.ended and not seen.tracer]
    spied = await spy(open_to_us)
    # What has another's pid by now was not what was meant.
    same = {process.pid for process in wanted if process.pid in spied and glance(process.identity, proc) is not None}
    return WatchedMoment(
        seconds=seconds, glances=glances, spied={pid: stack for pid, stack in spied.items() if pid in same}
    )


async def _between(ranks: Sequence[int], first: WatchedMoment, seconds: int) -> dict[int, Sampled]:
    """Sample the stacks of ranks, and of those workers that have something to do."""
    seen = {pid: stack.frames for pid, stack in first.spied.items() if stack.frames}
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


def _watched(process: Process, looks: Sequence[WatchedMoment], sampled: Mapping[int, Sampled]) -> Watched | None:
    found = tuple(look for seen in looks if (look := _look_of(process.pid, seen)) is not None)
    last = looks[-1].glances.get(process.pid)
    if not found or last is None or last.ended:
        return None
    samples = sampled.get(process.pid, Sampled())
    return Watched(
        pid=process.pid,
        looks=found,
        samples=samples.count,
        elsewhere=samples.elsewhere,
        moved=samples.moved,
        within=samples.within,
    )


def _look_of(pid: int, seen: WatchedMoment) -> RankLook | None:
    if (kernel := seen.glances.get(pid)) is None:
        return None
    spied = seen.spied.get(pid, Spied())
    source = STOPPED_BY.format(kernel.tracer) if kernel.tracer else (spied.trouble.value or "py-spy")
    others = [(name, frames) for name, frames in spied.others if not all(map(pythons, frames))]
    return kernel.look(seen.seconds, spied.frames, others, source)


def _gone(process: Process, looks: Sequence[WatchedMoment]) -> str:
    last = looks[-1].glances.get(process.pid)
    if last is not None:
        return f"{last.state}: {ENDED_WORDS}" if last.ended else ""
    return "it ended while it was looked at" if process.pid in looks[0].glances else "no such process"


def _groups_of(pid: int, proc: Proc) -> int:
    """Count a process's groups by the thread that each starts, gloo's for groups of more than one rank, NCCL's once it is used."""
    names = Counter(name for _, name in proc.thread_names(pid))
    return max(names["gloo_tcp_loop"], names["pt_nccl_watchdg"])


def backend_of(job: TrainingJob) -> str:
    """Name the backends of a job by the threads that each starts: "nccl and gloo"; "" where no rank has any."""
    marks = {mark for rank in job.ranks for mark in rank.marks}
    return " and ".join(backend for backend in ("nccl", "gloo") if any(backend in mark for mark in marks))


# --- what the kernel says of a process at one moment: nothing that could hold it up, and nothing that waits for it -----------


class ProcessGlance(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's part of a `RankLook`."""

    state: str
    waits_in: str = ""
    cpu_seconds: float = 0.0
    switches: int = 0
    main_wakes: Maybe[int] = NOT_COUNTED
    other_wakes: Maybe[int] = NOT_COUNTED
    transferred: int = 0
    tracer: int = 0
    """A debugger's pid, 0 without one."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    def look(
        self, seconds: float, frames: Sequence[Frame], others: Sequence[tuple[str, tuple[Frame, ...]]], source: str
    ) -> RankLook:
        """Join it with what is known of the stack."""
        figures = msgspec.structs.asdict(self) | {"cpu_seconds": round(self.cpu_seconds, 3)}
        del figures["tracer"]
        return RankLook(seconds=round(seconds, 3), frames=tuple(frames), others=tuple(others), source=source, **figures)


def glance(process: ProcessIdentity, proc: Proc) -> ProcessGlance | None:
    """Read what the kernel says of a process; None where it is gone, even if another has its pid now."""
    stat = proc.stat(process.pid)
    if isinstance(stat, Unknown) or stat.start != process.start:
        return None
    if stat.state in ENDED_STATES:
        return ProcessGlance(state=stat.state)
    spent = proc.spent(process.pid)
    if isinstance(spent, Unknown):
        return None
    status = proc.status(process.pid)
    tracer, wakes = status.get("TracerPid", "0"), status.get("voluntary_ctxt_switches", "")
    names = dict(proc.thread_names(process.pid))
    others = {thread: spent.threads[thread] for thread in spent.threads if not polling_rate(names.get(thread, ""))}
    heartbeats = sum(
        _transferred(process.pid, thread, proc) for thread, name in names.items() if name.startswith(HEARTBEAT_THREADS)
    )
    return ProcessGlance(
        state=stat.state,
        waits_in=_waits_in(process.pid, proc),
        cpu_seconds=sum(cpu for cpu, _ in others.values()),
        switches=spent.switches,
        main_wakes=int(wakes) if wakes.isdecimal() else NOT_COUNTED,
        other_wakes=sum(switches for thread, (_, switches) in others.items() if thread != process.pid),
        transferred=0 if isinstance(spent.transferred, Unknown) else max(0, spent.transferred - heartbeats),
        tracer=int(tracer) if tracer.isdecimal() else 0,
    )


def _transferred(pid: int, thread: int, proc: Proc) -> int:
    bytes_of_thread = proc.transferred(pid, thread)
    return 0 if isinstance(bytes_of_thread, Unknown) else bytes_of_thread


def _waits_in(pid: int, proc: Proc) -> str:
    """Read in which of the kernel's functions a process waits; "" where it runs, or this user may not know."""
    content = proc.read(f"{pid}/wchan", 200)
    text = "" if isinstance(content, Unknown) else masked(content.decode("utf-8", "replace")).strip()
    return "" if text == "0" else text
