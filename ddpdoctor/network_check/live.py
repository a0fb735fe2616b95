"""The live view of a netcheck on a terminal's stderr: nodes, phases, who is waited for and what to run there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ddpdoctor.base.text import listed, one_line, visible
from ddpdoctor.network_check.progress import (
    PHASES,
    NetcheckProgress,
    absent_name,
    names,
    way_to_master,
)
from ddpdoctor.report.live import started
from ddpdoctor.report.terminal import Hanging

_MOST_NODES = 8
_MOST_ABSENT = 4
_MOST_COMMANDS = 2
_BAR = 20
_MARGIN = 9
_PER_SECOND = 8
_SHELL_WORDS = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""Of a command line, with their quotes."""


class NetcheckLiveView(NetcheckProgress):
    """Redraws itself until `close`, which leaves nothing of it on the screen."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic, command: str = "netcheck") -> None:
        super().__init__(clock, command)
        self._live = started(_Drawing(self), file, _PER_SECOND)

    def say(self, text: str) -> None:
        # Wrapped by the terminal and not by rich, so that a command in it can be copied.
        self._live.console.print(Text(f"ddpdoctor {self.title}: {text}"), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


class _Drawing:
    """Drawn anew each time."""

    def __init__(self, progress: NetcheckProgress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from drawing(self._progress)
        # The terminal's own "^C" stands here; behind a full line it would begin a new one, which nobody takes away.
        yield Text()


class _Command:
    """A command that can be copied whatever the width: what doesn't fit goes on after a backslash, between two words."""

    def __init__(self, command: str) -> None:
        self._words = _SHELL_WORDS.findall(visible(command))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [" "]
        for word in self._words:
            if len(lines[-1]) > 1 and len(lines[-1]) + len(word) + 3 > options.max_width:
                lines[-1] += " \\"
                lines.append("   ")
            lines[-1] += f" {word}"
        for line in lines:
            yield Text(line, "cyan", overflow="fold")


def drawing(progress: NetcheckProgress) -> Iterator[Text | Hanging | _Command]:
    """At most some twenty lines, whatever the number of nodes. Only a command may be wrapped, which can't be copied when it
    is cut, and why the master isn't met."""
    yield _row(progress.title, _where(progress), "bold")
    if progress.past:
        yield _row("done", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in progress.past), "green")
    if progress.phase:
        text = f"{progress.phase}  {PHASES.get(progress.phase, '')}  {progress.phase_seconds:.0f} s"
        yield _row("now", text, "bold")
    if progress.nnodes:
        yield from _nodes(progress)
    elif progress.phase:
        if progress.waited_for:
            yield _row("missing", listed(map(one_line, progress.waited_for)), "yellow")
            yield from _to_run(progress, [] if progress.first is None else [progress.first])
    elif progress.met is not None and (way := way_to_master(progress.met)):
        yield Hanging(Text("waiting", "dim"), Text(f"for node 0: {way}", "yellow"), _MARGIN)


def _row(label: str, text: str, style: str = "") -> Text:
    row = Text(f"{label:<{_MARGIN}}", "dim", no_wrap=True, overflow="ellipsis")
    return row.append(text, f"not dim {style}".strip())


def _where(progress: NetcheckProgress) -> str:
    met = progress.met
    where = f"{one_line(met.master)}, port {met.port}, " if met is not None else ""
    return f"{where}{progress.seconds:.0f} s"


def _nodes(progress: NetcheckProgress) -> Iterator[Text | _Command]:
    seats = progress.seats
    filled = _BAR * len(seats) // progress.nnodes
    yield _row("nodes", "━" * filled + "─" * (_BAR - filled) + f"  {len(seats)} of {progress.nnodes} joined")
    lost = [seat for seat in seats if seat.lost]
    looking = [seat for seat in seats if not seat.ready and not seat.lost]
    ready = [seat for seat in seats if seat.ready and not seat.lost]
    if ready:
        yield _row("ready", names(ready, _MOST_NODES), "green")
    if looking:
        yield _row("looking", f"{names(looking, _MOST_NODES)} at their own facts")
    for seat in lost[:_MOST_ABSENT]:
        yield _row("lost", f"{seat.name}: {one_line(seat.lost).removeprefix('lost ')}", "bold red")
    if len(lost) > _MOST_ABSENT:
        yield _row("", f"and {len(lost) - _MOST_ABSENT} more", "bold red")
    if progress.absent and progress.phase in ("", "join"):
        waited = listed(map(absent_name, progress.absent), _MOST_ABSENT)
        yield _row("missing", waited, "bold yellow")
        yield from _to_run(progress, [missing_node.rank for missing_node in progress.absent[:_MOST_COMMANDS]])


def _to_run(progress: NetcheckProgress, ranks: Sequence[int]) -> Iterator[Text | _Command]:
    if progress.command is not None and ranks:
        yield Text("run there:", "dim")
        for rank in ranks:
            yield _Command(progress.command(rank))
