"""Looks at the ranks of one running job: twice, some seconds apart, and at their stacks all the while. Nothing is held up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.text import capital, masked, plural, ranks_named
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.hang import NOT_COUNTED, NOT_FOUND, Hang, RankLook, Watched, WatchedRank
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity
from ddpdoctor.hang.debug_server.job_server import debug_server_of
from ddpdoctor.hang.permission import Missed, hidden_places, hidden_stacks, powers
from ddpdoctor.hang.rank_states import is_worker_idle
from ddpdoctor.hang.stack_sampling import sample
from ddpdoctor.knowledge.torch_frames import pythons
from ddpdoctor.probes.proc import Proc
from ddpdoctor.probes.py_spy import PySpyTrouble, Spied, py_spy, spy
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.processes.rank_remarks import SETTLED_SECONDS
from ddpdoctor.processes.signs_of_life import polling_rate

MAX_WORKERS: Final = 256
"""Of all ranks together; more than that are not looked at."""

HEARTBEAT_THREADS: Final = ("pt_tcpstore", "pt_nccl_")
"""Threads that talk to each other once a second all the while, whatever the job does: NCCL's watchdogs ask the store."""

ENDED_WORDS: Final = "it has ended, and its parent has not taken note"
MAY_BE_STARTING: Final = (
    f" of this job may be about to start: the youngest rank is less than {SETTLED_SECONDS:.0f} s old."
)
STOPPED_BY: Final = "a debugger holds it (pid {}), and was not disturbed"


class WatchedMoment(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel and py-spy say at one moment, by pid. A process that is gone has no look."""

    seconds: float
    looks: Mapping[int, RankLook]
    troubles: Mapping[int, PySpyTrouble]
    """Why stacks could not be read."""


async def watch(
    job: TrainingJob,
    processes: Processes,
    host: str,
    seconds: int,
    proc: Proc | None = None,
    asleep: Collection[int] = (),
) -> Hang:
    """Look at the ranks of a job on this host twice, so many seconds apart.

    Args:
        job: whose ranks they are.
        processes: of this host.
        host: its name.
        seconds: between the two looks; all the while stacks are read.
        proc: where the kernel's figures are read; None: /proc.
        asleep: pids of ranks that are known not to run, so that it is enough to read their stacks at both looks.
    """
    proc = proc or Proc()
    placed = [(process.place.rank, process) for process in job.ranks if process.place is not None]
    workers = {process.pid: list(job.workers_of(process)) for _, process in placed}
    left_out = _limit(workers)
    wanted = [process for _, rank in placed for process in (rank, *workers[rank.pid])]
    began = time.monotonic()
    first = await _look(wanted, proc, began)
    sampled = await _between({process.pid for _, process in placed}, first, seconds, asleep)
    second = await _look(wanted, proc, began)
    ranks, missed = [], []
    for number, rank in placed:
        ranks.append(
            WatchedRank(
                rank=number,
                host=host,
                watched=_watched(rank, first, second, sampled),
                workers=tuple(filter(None, (_watched(worker, first, second, sampled) for worker in workers[rank.pid]))),
                gone=_gone(rank, first, second),
            )
        )
        missed += [
            Missed(rank=number, process=process, trouble=trouble, worker=process is not rank)
            for process in (rank, *workers[rank.pid])
            if (trouble := second.troubles.get(process.pid))
        ]
    settled = min((rank.age for rank in job.ranks), default=0.0) >= SETTLED_SECONDS
    ranks += [WatchedRank(rank=rank, host=host, gone=NOT_FOUND) for rank in job.missing if settled]
    mine = powers(proc)
    hidden = [
        *hidden_stacks(missed, mine, job.name),
        *hidden_places([process for process in job.ranks if process.place is None], mine, job.name),
        *([f"{plural(left_out, 'DataLoader worker')} more were not looked at."] if left_out else []),
        *([f"{capital(ranks_named(job.missing))}{MAY_BE_STARTING}"] if job.missing and not settled else []),
        *([f"{capital(processes.unseen)}."] if processes.unseen else []),
    ]
    return Hang(
        job=job.name,
        world_size=job.world_size or 0,
        backend=backend_of(job),
        own_server=debug_server_of(job),
        groups=max((_groups_of(rank.pid, proc) for rank in job.ranks), default=0),
        ranks=tuple(sorted(ranks, key=lambda watched: watched.rank)),
        between=round(second.seconds - first.seconds, 3),
        py_spy=py_spy() or "py-spy",
        hidden=tuple(hidden),
    )


def _limit(workers: dict[int, list[Process]]) -> int:
    """Leave out workers that are too many, and count them."""
    of_a_rank = max(1, MAX_WORKERS // max(1, len(workers)))
    left_out = 0
    for listed in workers.values():
        left_out += len(listed[of_a_rank:])
        del listed[of_a_rank:]
    return left_out


async def _look(wanted: Sequence[Process], proc: Proc, began: float) -> WatchedMoment:
    seconds = round(time.monotonic() - began, 3)
    glances = {process.pid: seen for process in wanted if (seen := glance(process.identity, proc))}
    # Two can't trace one process, and a debugger's user wouldn't thank us.
    spied = await spy(pid for pid, seen in glances.items() if not seen.look.has_ended and not seen.tracer)
    # What has another's pid by now was not what was meant.
    same = {process.pid for process in wanted if process.pid in spied and glance(process.identity, proc) is not None}
    return WatchedMoment(
        seconds=seconds,
        looks={
            pid: _with_stack(seen, spied[pid] if pid in same else Spied(), seconds) for pid, seen in glances.items()
        },
        troubles={pid: spied[pid].trouble for pid in same},
    )


def _with_stack(seen: ProcessGlance, spied: Spied, seconds: float) -> RankLook:
    return msgspec.structs.replace(
        seen.look,
        seconds=seconds,
        frames=tuple(spied.frames),
        others=tuple((name, frames) for name, frames in spied.others if not all(map(pythons, frames))),
        source=STOPPED_BY.format(seen.tracer) if seen.tracer else (spied.trouble.value or "py-spy"),
    )


async def _between(
    ranks: Collection[int], first: WatchedMoment, seconds: int, asleep: Collection[int]
) -> dict[int, Watched]:
    """Sample the stacks of ranks, and of those workers that have something to do."""
    wanted = [
        pid
        for pid, look in first.looks.items()
        if look.frames and pid not in asleep and (pid in ranks or not is_worker_idle(Watched(pid=pid, looks=(look,))))
    ]
    began = time.monotonic()
    sampled = await sample(wanted, seconds) if wanted else {}
    # Without py-spy the kernel's figures need their time all the same.
    await asyncio.sleep(began + seconds - time.monotonic())
    return sampled


def _watched(
    process: Process, first: WatchedMoment, second: WatchedMoment, sampled: Mapping[int, Watched]
) -> Watched | None:
    last = second.looks.get(process.pid)
    if last is None or last.has_ended:
        return None
    looks = (first.looks[process.pid], last) if process.pid in first.looks else (last,)
    return msgspec.structs.replace(sampled.get(process.pid, Watched(pid=process.pid)), looks=looks)


def _gone(process: Process, first: WatchedMoment, second: WatchedMoment) -> str:
    if last := second.looks.get(process.pid):
        return f"{last.state}: {ENDED_WORDS}" if last.has_ended else ""
    return "it ended while it was looked at" if process.pid in first.looks else "no such process"


def _groups_of(pid: int, proc: Proc) -> int:
    """Count a process's groups by the thread that each starts, gloo's for groups of more than one rank, NCCL's once it is used."""
    names = Counter(name for _, name in proc.thread_names(pid))
    return max(names["gloo_tcp_loop"], names["pt_nccl_watchdg"])


def backend_of(job: TrainingJob) -> str:
    """Name the backends of a job by the threads that each starts: "nccl and gloo"; "" where no rank has any."""
    marks = {mark for rank in job.ranks for mark in rank.marks}
    return " and ".join(backend for backend in ("nccl", "gloo") if any(backend in mark for mark in marks))


# --- what the kernel says of a process at one moment: nothing that could hold it up, and nothing that waits for it -----------


class ProcessGlance(NamedTuple):
    """The kernel's part of a look, and who debugs the process."""

    look: RankLook
    tracer: int = 0
    """A debugger's pid, 0 without one."""


def glance(process: ProcessIdentity, proc: Proc) -> ProcessGlance | None:
    """Read what the kernel says of a process; None where it is gone, even if another has its pid now."""
    stat = proc.stat(process.pid)
    if isinstance(stat, Unknown) or stat.start != process.start:
        return None
    if stat.ended:
        return ProcessGlance(RankLook(state=stat.state))
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
    look = RankLook(
        state=stat.state,
        waits_in=_waits_in(process.pid, proc),
        cpu_seconds=round(sum(cpu for cpu, _ in others.values()), 3),
        switches=spent.switches,
        main_wakes=int(wakes) if wakes.isdecimal() else NOT_COUNTED,
        other_wakes=sum(switches for thread, (_, switches) in others.items() if thread != process.pid),
        transferred=0 if isinstance(spent.transferred, Unknown) else max(0, spent.transferred - heartbeats),
    )
    return ProcessGlance(look, int(tracer) if tracer.isdecimal() else 0)


def _transferred(pid: int, thread: int, proc: Proc) -> int:
    bytes_of_thread = proc.transferred(pid, thread)
    return 0 if isinstance(bytes_of_thread, Unknown) else bytes_of_thread


def _waits_in(pid: int, proc: Proc) -> str:
    """Read in which of the kernel's functions a process waits; "" where it runs, or this user may not know."""
    content = proc.read(f"{pid}/wchan", 200)
    text = "" if isinstance(content, Unknown) else masked(content.decode("utf-8", "replace")).strip()
    return "" if text == "0" else text
