"""The progress of a netcheck: who is there, which phase it is, who is waited for and what to run there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ddpdoctor.base.text import listed, one_line, plural, visible
from ddpdoctor.knowledge.node_words import missing_name
from ddpdoctor.report.document import Block, Lines, Paragraph, StyledText
from ddpdoctor.report.progress import Pace, Progress

if TYPE_CHECKING:
    from ddpdoctor.facts.fleet import MissingNode
    from ddpdoctor.facts.meeting import Meeting
    from ddpdoctor.network_check.protocol.hub import Hub
    from ddpdoctor.network_check.protocol.messages import Waiting
    from ddpdoctor.network_check.results import RunResult

PHASES = {
    "join": "waiting for all nodes",
    "compare": "comparing the nodes",
    "reach": "every node dials every other",
    "links": "latency and bandwidth, pair by pair",
    "gloo": "torch's own store, and an all_reduce with gloo",
    "nccl": "an all_reduce with NCCL on the GPUs",
    "smoke": "all ranks train, stage by stage",
}

_OURS = "ddpdoctor"
"""The name of an answer of node 0 (identification.DDPDOCTOR)."""

_NOT_YET = {
    "connected": "answers",
    "refused": "refuses, so nobody listens there yet, or a filter rejects",
    "silent": "doesn't answer",
    "no route": "has no route from here",
    "no host": "is nobody's address",
    "prohibited": "is forbidden by a filter or a router",
    "reset": "cuts the connection off",
    "failed": "can't be dialled",
}
"""Each `Met`, as what the address does."""

MAX_DRAWN_NODES: Final = 8
MAX_DRAWN_ABSENT: Final = 4
MAX_DRAWN_COMMANDS: Final = 2
BAR_COLUMNS: Final = 20
MARGIN: Final = 9
_SHELL_WORDS = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""Words of a command line, with their quotes."""


class Seat(msgspec.Struct, frozen=True):
    """One node that has joined: whether its facts have come, and how it was lost."""

    rank: int
    host: str
    ready: bool
    lost: str = ""

    @property
    def name(self) -> str:
        return one_line(self.host) or f"node {self.rank}"


class NetcheckProgress(Progress):
    """The state as far as it is known."""

    pace = Pace(first=1.0, between=2.0)
    per_second = 8

    def __init__(self, title: str = "netcheck", clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(title, clock)
        self.met: Meeting | None = None
        self.nnodes = 0
        self.seats: tuple[Seat, ...] = ()
        self.absent: tuple[MissingNode, ...] = ()
        self.command: Callable[[int], str] | None = None
        self.phase = ""
        self.phase_began = self.began
        self.past: tuple[tuple[str, float], ...] = ()
        self.waited_for: tuple[str, ...] = ()
        self.first: int | None = None

    @property
    def phase_seconds(self) -> float:
        return self.clock() - self.phase_began

    def meeting(self, meeting: Meeting) -> None:
        self.met = meeting

    def hub(self, hub: Hub, command: Callable[[int], str] | None = None) -> None:
        self.nnodes = hub.nnodes
        names = hub.names
        self.seats = tuple(
            Seat(rank, names[rank], peer.facts is not None, peer.lost) for rank, peer in sorted(hub.peers.items())
        )
        # Node 0 is where we are.
        here = {0} | {seat.rank for seat in self.seats}
        self.absent = tuple(missing_node for missing_node in hub.absent() if missing_node.rank not in here)
        self.command = command

    def waiting(self, waiting: Waiting, command: Callable[[int], str] | None = None) -> None:
        self.command = command or self.command
        if waiting.phase != self.phase:
            if self.phase:
                self.past = (*self.past, (self.phase, self.phase_seconds))
            self.phase, self.phase_began = waiting.phase, self.clock()
        self.waited_for, self.first = waiting.waited_for, waiting.first

    def verdict(self, end: RunResult) -> None:
        """Do nothing: it is printed when all have been told."""

    @property
    def _looking(self) -> list[str]:
        """Name of the nodes that are still looking at their hosts."""
        return [seat.name for seat in self.seats if not seat.ready and not seat.lost]

    def status(self) -> str:
        lost = [f"{seat.name} is lost" for seat in self.seats if seat.lost]
        if self.phase and self.phase != "join":
            return "; ".join([f"{self.phase}: {PHASES.get(self.phase, 'under way')}", *lost])
        if self.nnodes:
            parts = [f"{len(self.seats)} of {plural(self.nnodes, 'node')} joined", *lost]
            if self._looking:
                parts.append(f"{listed(self._looking, 3)} still looking at the host")
            if self.absent:
                waited_for = one_line(listed(map(missing_name, self.absent), 4))
                parts.append(f"waiting for {waited_for}{self._run_on(self.absent[0].rank)}")
            return "; ".join(parts)
        if self.phase:
            waited_for = listed(map(one_line, self.waited_for))
            return f"Joined; waiting for {waited_for or 'the others'}{self._run_on(self.first)}"
        way = way_to_master(self.met) if self.met is not None else ""
        if self.met is None or not way:
            return ""
        return one_line(f"Node 0 is not met yet at {self.met.master}, port {self.met.port}: {way}")

    def _run_on(self, rank: int | None) -> str:
        """The end of a sentence about those who haven't come: what to run on the node of that rank."""
        if rank is None or self.command is None:
            return ""
        return f". Run on node {rank}: {self.command(rank)}"

    def drawing(self, width: int, height: int, *, unicode: bool) -> Iterator[Block]:
        """Draw it in at most some twenty lines, whatever the number of nodes. Only a command may be wrapped, which can't be copied when it
        is cut, and why the master isn't met."""
        where = f"{one_line(self.met.master)}, port {self.met.port}, " if self.met is not None else ""
        yield _row(self.title, f"{where}{self.seconds:.0f} s", "bold")
        if self.past:
            yield _row("done", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.past), "green")
        if self.phase:
            yield _row("now", f"{self.phase}  {PHASES.get(self.phase, '')}  {self.phase_seconds:.0f} s", "bold")
        if self.nnodes:
            yield from self._nodes(width)
        elif self.phase:
            if self.waited_for:
                yield _row("missing", listed(map(one_line, self.waited_for)), "yellow")
                yield from self._to_run([] if self.first is None else [self.first], width)
        elif self.met is not None and (way := way_to_master(self.met)):
            yield Paragraph(StyledText(f"for node 0: {way}", "yellow"), StyledText("waiting", "dim"), MARGIN)

    def _nodes(self, width: int) -> Iterator[Block]:
        filled = BAR_COLUMNS * len(self.seats) // self.nnodes
        bar = "━" * filled + "─" * (BAR_COLUMNS - filled)
        yield _row("nodes", f"{bar}  {len(self.seats)} of {self.nnodes} joined")
        lost = [seat for seat in self.seats if seat.lost]
        if ready := [seat.name for seat in self.seats if seat.ready and not seat.lost]:
            yield _row("ready", listed(ready, MAX_DRAWN_NODES), "green")
        if self._looking:
            yield _row("looking", f"{listed(self._looking, MAX_DRAWN_NODES)} at their own facts")
        for seat in lost[:MAX_DRAWN_ABSENT]:
            yield _row("lost", f"{seat.name}: {one_line(seat.lost).removeprefix('lost ')}", "bold red")
        if len(lost) > MAX_DRAWN_ABSENT:
            yield _row("", f"and {len(lost) - MAX_DRAWN_ABSENT} more", "bold red")
        if self.absent and self.phase in ("", "join"):
            yield _row("missing", one_line(listed(map(missing_name, self.absent), MAX_DRAWN_ABSENT)), "bold yellow")
            yield from self._to_run([node.rank for node in self.absent[:MAX_DRAWN_COMMANDS]], width)

    def _to_run(self, ranks: Sequence[int], width: int) -> Iterator[Block]:
        if self.command is not None and ranks:
            yield Lines((StyledText("run there:", "dim"),))
            for rank in ranks:
                yield _broken_command(self.command(rank), width)


def _row(label: str, text: str, style: str = "") -> Lines:
    return Lines(((StyledText(f"{label:<{MARGIN}}", "dim"), StyledText(text, style)),))


def _broken_command(command: str, width: int) -> Lines:
    """A command that can be copied whatever the width: what doesn't fit goes on after a backslash, between two words."""
    lines = [" "]
    for word in _SHELL_WORDS.findall(visible(command)):
        if len(lines[-1]) > 1 and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}"
    # A word that is longer than a line is wrapped by force: cut, it could not be copied.
    pieces = (line[start : start + width] for line in lines for start in range(0, len(line), width))
    return Lines(tuple(StyledText(piece, "cyan") for piece in pieces))


def way_to_master(meeting: Meeting) -> str:
    """Word what going to the master came to so far; "" before the first try has ended."""
    if meeting.unresolved:
        return one_line(f"the name {meeting.master} is not known yet: {meeting.unresolved}")
    tried = [f"{attempt.address} {_NOT_YET.get(attempt.met.value, attempt.met.value)}" for attempt in meeting.attempts]
    who = meeting.answered_by if meeting.answered_by not in ("", _OURS) else ""
    return one_line(listed(tried, 3) + (f"; it is {who}, not ddpdoctor" if who else ""))
