"""The table of a job's ranks: what is said of each, and how many healthy ranks that look alike become one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import human, one_line, spans
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.processes import Process
from ddpdoctor.processes.gpu_holders import HeldGpu, of_process
from ddpdoctor.processes.job_words import Remark, age, of_pid
from ddpdoctor.processes.overview import JobView
from ddpdoctor.report.document import STYLES, Column, Row, StyledText, Table

MAX_ROWS = 32
"""Ranks of one job that each have a row; of more, those that are alike share one."""

COLUMNS = {
    "rank": Column("rank", right=True),
    "pid": Column("pid"),
    # User and age stand above the table, too, where all ranks' are the same.
    "user": Column("user", leaves=1),
    "age": Column("age", right=True, leaves=2),
    "gpus": Column("GPU", leaves=4),
    "memory": Column("", right=True, leaves=5),
    "state": Column("state"),
    "cpu": Column("CPU", right=True, leaves=5),
    "waits": Column("waits for", leaves=3),
}
"""A cell's name to its column, whose heading of memory depends on the job."""
ALWAYS_SHOWN = ("rank", "pid", "state")

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in the kernel",
    "T": "stopped",
    "t": "debugged",
    "Z": "dead",
    "X": "dead",
    "I": "idle",
}

WAITS = {
    "futex": "a lock",
    "ep_poll": "its sockets",
    "do_epoll_wait": "its sockets",
    "poll_schedule_timeout": "its sockets",
    "do_poll": "its sockets",
    "do_sys_poll": "its sockets",
    "do_select": "its sockets",
    "sk_wait_data": "a socket",
    "tcp_recvmsg": "a socket",
    "inet_csk_accept": "a socket",
    "unix_stream": "a socket",
    "hrtimer_nanosleep": "sleep()",
    "do_nanosleep": "sleep()",
    "clock_nanosleep": "sleep()",
    "pipe_read": "a pipe",
    "anon_pipe_read": "a pipe",
    "pipe_write": "a full pipe",
    "anon_pipe_write": "a full pipe",
    "do_wait": "a child",
    "kernel_wait4": "a child",
    "do_signal_stop": "SIGCONT",
    "do_sigtimedwait": "a signal",
    "ptrace_stop": "its debugger",
}
"""Beginnings of kernel functions' names, to what a process that is in them waits for. What stands here in no words is told as
it is: a file server's rpc_wait_bit_killable is worth more than any word."""


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    cells: Mapping[str, str]
    """By the names in COLUMNS."""
    order: tuple[int, int] = (0, 0)
    """What the lines are sorted by."""
    remark: str = ""
    severity: Severity | None = None
    """Of the worst that stands out, None where nothing does."""


class _Rank(msgspec.Struct, frozen=True):
    """A rank with what is known of it."""

    process: Process
    held: tuple[HeldGpu, ...]
    remarks: list[Remark]


def rank_table(view: JobView, held: Sequence[HeldGpu], *, fold: bool = True) -> Table:
    """Show ranks as a table, missing ones too. fold: many healthy ones that look alike become one row."""
    ranks = [_Rank(rank, of_process(rank, held), of_pid(view.remarks, rank.pid)) for rank in view.job.ranks]
    by_gpu = any(held_gpu.memory for rank in ranks for held_gpu in rank.held)
    groups = grouped(ranks, _looks if fold and len(ranks) > MAX_ROWS else lambda rank: rank.process.pid)
    rows = [*_missing(view.remarks), *(_row(group, by_gpu=by_gpu) for group in groups.values())]
    return table_of(sorted(rows, key=lambda row: row.order), "GPU memory" if by_gpu else "resident")


def table_of(rows: Sequence[JobRow], memory: str) -> Table:
    """Make a table of rows, in which what stands out is coloured. memory: that column's heading."""
    columns = COLUMNS | {"memory": Column(memory, right=True, leaves=5)}
    shown = [name for name in columns if name in ALWAYS_SHOWN or any(row.cells.get(name) for row in rows)]
    return Table(tuple(columns[name] for name in shown), tuple(_table_row(row, shown) for row in rows))


def _table_row(row: JobRow, shown: Sequence[str]) -> Row:
    style = STYLES[row.severity] if row.severity else ""
    cells = (StyledText(row.cells.get(name, ""), style if name in ALWAYS_SHOWN else "") for name in shown)
    return Row(tuple(cells), StyledText(row.remark, style) if row.remark else "")


def _missing(remarks: Sequence[Remark]) -> Iterator[JobRow]:
    for remark in remarks:
        for numbers in spans(remark.ranks) if not remark.pids else ():
            yield JobRow(
                cells={"rank": numbers, "pid": "-"},
                order=(int(numbers.partition("-")[0]), 0),
                remark=remark.oddity.value,
                severity=remark.severity,
            )


def _looks(rank: _Rank) -> object:
    """Give what must be equal for two to share a row. Whether one runs or sleeps at this very moment says nothing."""
    process = rank.process
    if rank.remarks or process.place is None:
        return process.pid
    state = "alive" if process.state in "RS" else process.state
    busy = "unknown" if isinstance(process.recent_cpu, Unknown) else process.recent_cpu > 0.05
    return (process.user, state, busy, len(rank.held), process.place.source)


def _row(group: Sequence[_Rank], *, by_gpu: bool) -> JobRow:
    processes = [rank.process for rank in group]
    first, remarks = processes[0], group[0].remarks
    cells = {
        "rank": _ranks(processes),
        "pid": _pids(processes),
        "user": one_line(first.user) or str(first.uid),
        "age": _range([age(process.age) for process in sorted(processes, key=lambda process: process.age)]),
        "gpus": _gpus(group),
        "memory": _memory(group, by_gpu=by_gpu),
        "state": _range(sorted({STATES.get(process.state, process.state) for process in processes})).replace("-", "/"),
        "cpu": _cpu(processes),
        "waits": _waits(processes),
    }
    return JobRow(
        cells=cells,
        order=(first.place.rank if first.place else 1 << 30, first.pid),
        remark=", ".join(remark.oddity.value for remark in remarks),
        severity=min((remark.severity for remark in remarks), key=lambda severity: severity.rank, default=None),
    )


def _ranks(processes: Sequence[Process]) -> str:
    numbers = [process.place.rank for process in processes if process.place]
    guess = "?" if any(process.forked for process in processes) else ""
    return (",".join(spans(numbers)) if numbers else "") + guess or "?"


def _pids(processes: Sequence[Process]) -> str:
    first, pids = processes[0], [process.pid for process in processes]
    if len(pids) > 1:
        return f"{min(pids)}..{max(pids)}"
    return f"{first.pid} ({first.pid_inside} inside)" if first.pid_inside not in (0, first.pid) else str(first.pid)


def _range(texts: Sequence[str]) -> str:
    """The first and the last, once where they are the same."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]}-{texts[-1]}"


def _gpus(group: Sequence[_Rank]) -> str:
    if len(group) == 1:
        # The one on which it works comes first.
        return " ".join(str(held_gpu.gpu.index) for held_gpu in group[0].held)
    return ",".join(spans(held_gpu.gpu.index for rank in group for held_gpu in rank.held))


def _memory(group: Sequence[_Rank], *, by_gpu: bool) -> str:
    amounts = [
        sum(held_gpu.memory for held_gpu in rank.held) if rank.held else 0 if by_gpu else rank.process.memory
        for rank in group
    ]
    if by_gpu and not any(amounts):
        resident = [rank.process.memory for rank in group]
        return f"{_amounts(resident)} resident" if any(resident) else ""
    return _amounts(amounts) if any(amounts) else ""


def _amounts(amounts: Sequence[int]) -> str:
    return _range([human(amount) for amount in (min(amounts), max(amounts))])


def _cpu(processes: Sequence[Process]) -> str:
    used = [
        process.recent_cpu
        for process in processes
        if not isinstance(process.recent_cpu, Unknown) and not process.has_ended
    ]
    if not used:
        return ""
    return _range([f"{100 * cores:.0f}" for cores in (min(used), max(used))]) + " %"


def _waits(processes: Sequence[Process]) -> str:
    said = {
        waits_for(process.waits_in)
        for process in processes
        if process.waits_in and process.state != "R" and not process.has_ended
    }
    return said.pop() if len(said) == 1 else "various" if said else ""


def waits_for(function: str) -> str:
    """For what it waits that is in that kernel function: "a lock"; the function itself where there is no word for it."""
    name = one_line(function).removeprefix("__x64_sys_").lstrip("_")
    return next((word for start, word in WAITS.items() if name.startswith(start)), name)
