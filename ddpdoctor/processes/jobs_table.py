"""A job's ranks as a table, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from ddpdoctor.processes.jobs_rows import JobRow
from ddpdoctor.report.terminal import STYLES, Hanging

_GAP = 2
_LEAST_REMARK = 20
"""Columns for the remark, which is wrapped there, unless it is shorter."""

_NARROWED = ("user", "age", "waits", "gpus")
"""What is left out first where there is no room; user and age stand above the table, too, where all ranks' are the same."""

_RIGHT = ("rank", "age", "memory", "cpu")


class TableColumn(msgspec.Struct, frozen=True):
    """One column but the remarks': the row's field, its heading and how wide it is."""

    name: str
    heading: str
    width: int


def columns_for(rows: Sequence[JobRow], memory: str, width: int) -> tuple[TableColumn, ...]:
    """What fits beside the remarks. memory: that column's heading."""
    headings = {
        "rank": "rank",
        "pid": "pid",
        "user": "user",
        "age": "age",
        "gpus": "GPU",
        "memory": memory,
        "state": "state",
        "cpu": "CPU",
        "waits": "waits for",
    }
    full = [
        TableColumn(name, heading, max(len(heading), *(len(getattr(row, name)) for row in rows)))
        for name, heading in headings.items()
        if name in ("rank", "pid", "state") or any(getattr(row, name) for row in rows)
    ]
    remarks = max(len(row.remark) for row in rows)
    for left_out, least in ((0, remarks), (1, remarks), (2, remarks), (2, _LEAST_REMARK), (3, _LEAST_REMARK), (4, 0)):
        fitting = tuple(table_column for table_column in full if table_column.name not in _NARROWED[:left_out])
        if _needed(fitting) + min(least, remarks) <= width:
            return fitting
    return tuple(table_column for table_column in full if table_column.name in ("rank", "pid", "state"))


def _needed(columns: Collection[TableColumn]) -> int:
    return sum(column.width + _GAP for column in columns)


def show_table(console: Console, rows: Sequence[JobRow], memory: str, indent: int = 2) -> None:
    """Prints the table; rows in which something stands out in that colour."""
    columns = columns_for(rows, memory, console.width - indent)
    margin = " " * indent
    head = Text(margin).append("".join(_cell(column, column.heading) for column in columns).rstrip(), "dim")
    console.print(head, soft_wrap=True)
    for row in rows:
        style = STYLES[row.severity] if row.severity else ""
        line = Text(margin)
        for column in columns:
            line.append(
                _cell(column, getattr(row, column.name)), style if column.name in ("rank", "pid", "state") else ""
            )
        if row.remark and console.width - len(line) >= min(len(row.remark), _LEAST_REMARK):
            console.print(Hanging(line, Text(row.remark, style), len(line)))
        else:
            line.rstrip()
            console.print(line, soft_wrap=True)
            if row.remark:
                console.print(Hanging(Text(), Text(row.remark, style), indent + 2))


def _cell(column: TableColumn, text: str) -> str:
    aligned = text.rjust(column.width) if column.name in _RIGHT else text.ljust(column.width)
    return aligned + " " * _GAP
