"""What one rank writes into one file: tracebacks, tables and neighbours that are put together over several lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from ddpdoctor.facts.log import LoggedException, LogLine
from ddpdoctor.logs.match.gathering import GatheredLog, SeenSign
from ddpdoctor.logs.parse.exit_tables import ExitTable
from ddpdoctor.logs.parse.labels import names_process
from ddpdoctor.logs.parse.stacks import StackAssembler
from ddpdoctor.logs.parse.tracebacks import Assembler, begins_below, chains, goes_on_below, is_advice, nested_in

NEIGHBOURS: Final = 2
NEIGHBOURS_BEFORE: Final = 3
"""A file's name, a line of it and a mark below that."""
LOOK_AHEAD: Final = 200
"""Lines of the file in which a stream says nothing, after which nobody waits any more for a neighbour, or for a second exception."""
MAX_OPEN: Final = 16
"""Tracebacks at once: of ranks whose lines nothing tells apart."""
MAX_PENDING: Final = 16
"""Sightings of a stream, for each second text that they wait for: of more the first and the last ones."""
ENDS_AFTER: Final = 4
"""Other lines behind an exception after which none of its chain follows, unless its traceback says that it does."""
CHAINED_WITHIN: Final = 60
"""Lines of the file that the message of an exception may take, where the traceback below says that it led on from there."""
QUOTED_APART: Final = 4
"""Lines within which the next frame of a traceback that is only quoted stands."""
_MAX_SILENT_LINES: Final = 5000
"""Lines of the file after which a stream that says nothing isn't waited for: its traceback or table was cut off."""


@dataclass
class LogStream:
    """The state of one stream between two lines. nobodys: of lines without a rank's label."""

    nobodys: bool = False
    open: list[Assembler] = field(default_factory=list)
    table: ExitTable | None = None
    stack: StackAssembler | None = None
    logger: str = ""
    """What a logger puts before the lines of the traceback or table that it is in."""
    quoting: int = -QUOTED_APART
    """The latest line of a traceback that is only quoted."""
    wanting: list[list[LogLine]] = field(default_factory=list)
    """Lists that want the next lines."""
    pending: dict[str, list[SeenSign]] = field(default_factory=dict)
    """Sightings that count once their second text is seen, by that."""
    heading: int | None = None
    """The rank that a heading above the traceback at hand says it is of."""
    raised: LoggedException | None = None
    """The exception that just ended, as long as another may follow."""
    latest: LoggedException | None = None
    """The same, whatever followed."""
    because: bool = False
    """The line before says that this one tells why it was raised."""
    raised_lines: int = 0
    """Lines of this stream since then."""
    time: float | None = None
    time_sought_at: int = 0
    """The line before which lines were gone back to for their time."""
    heard_at: int = 0
    """Its latest line that was read."""

    @property
    def waits(self) -> bool:
        """Whether it wants to see the next lines, whatever they say."""
        return bool(self.open or self.wanting or self.raised or self.table or self.stack)

    @property
    def follows_an_exception(self) -> bool:
        """Whether the line at hand is the next one behind an exception's own."""
        return self.raised is not None and self.raised_lines == 1

    def with_time(self, line: LogLine) -> LogLine:
        """Give the line the stream's time, if it has none."""
        if line.time is not None or self.time is None:
            return line
        return msgspec.structs.replace(line, time=self.time, lent=True)

    def headed_by(self, rank: int | None, line: LogLine) -> LogLine:
        """Give the line of a traceback that a rank's heading stands above that rank, though another one shows it."""
        self.heading = rank
        if rank is None or line.rank == rank:
            return line
        shown = line.rank is not None or names_process(line.host)
        return msgspec.structs.replace(line, rank=rank, local_rank=None, host="" if shown else line.host)

    def go_on(self, line: LogLine, gathered: GatheredLog) -> tuple[LogLine, bool]:
        """Take the next line; return it with its table's rank, and whether a traceback or table takes it for its own."""
        for wanting in self.wanting:
            wanting.append(line)
        self.wanting = [wanting for wanting in self.wanting if len(wanting) < NEIGHBOURS]
        headed = self.open or (self.raised and line.rank is None)
        line = self.headed_by(self.heading if headed else None, line)
        mine = self.table is not None
        if self.table:
            line = self._table(self.table, line, gathered)
        mine |= self._after_exception(line, gathered)
        if self.stack and self.stack.add(line):
            mine = True
        else:
            self._end_stack(gathered)
        if self.open:
            mine |= self._traceback(self.open[-1], line, gathered)
        return line, mine

    def _end_stack(self, gathered: GatheredLog) -> None:
        if self.stack and (stack := self.stack.stack()):
            gathered.stack(stack)
        self.stack = None

    def _table(self, table: ExitTable, line: LogLine, gathered: GatheredLog) -> LogLine:
        if done := table.add(self.with_time(line)):
            gathered.exit(done)
        if table.over:
            self.table = None
        if table.rank is None or line.rank is not None:
            return line
        return msgspec.structs.replace(line, rank=table.rank, host=line.host or table.host)

    def _after_exception(self, line: LogLine, gathered: GatheredLog) -> bool:
        text = line.text.strip(" |")
        if not self.raised or not text:
            return False
        if chains(text):
            gathered.amend(self.raised, chained=True)
            self.raised = self.latest = None
            return True
        if begins_below(self.raised, line):
            self.raised = self.latest = gathered.amend(self.raised, message=text.strip())
            return True
        if nested := nested_in(self.raised, line):
            self.raised = self.latest = gathered.amend(self.raised, **nested)
            return True
        self.raised_lines += 1
        if is_advice(text) or (self.because and self.raised.reason is None):
            self.raised = self.latest = gathered.amend(self.raised, reason=line)
        self.because = text.endswith("because:")
        if not self.open and goes_on_below(line):
            self.raised = self.latest = gathered.amend(self.raised, below=line.number - self.raised.line.number)
            self.raised_lines = 0
        elif self.raised_lines > ENDS_AFTER:
            self.raised = None
        return False

    def follows_on(self, line: LogLine, gathered: GatheredLog) -> None:
        """Take note that the traceback that begins with this line is of a chain: however long the message was of the exception before it."""
        if self.latest and not self.open and line.number - self.latest.line.number <= CHAINED_WITHIN:
            gathered.amend(self.latest, chained=True)
        self.latest = None

    def _traceback(self, last: Assembler, line: LogLine, gathered: GatheredLog) -> bool:
        raised = last.add(line)
        if last.given_up:
            self.open.pop()
            return False
        if raised:
            self.open.pop()
            raised = self._timed(raised)
            self.raised, self.latest, self.raised_lines = raised, raised, 0
            gathered.raise_(raised)
        return True

    def _timed(self, raised: LoggedException) -> LoggedException:
        """Give the exception a time: of what a logger writes only the first line has one, and that is of the whole."""
        line, began = self.with_time(raised.line), raised.began
        of_the_whole = line.lent and not began.lent and line.time == began.time
        return msgspec.structs.replace(raised, line=msgspec.structs.replace(line, lent=False) if of_the_whole else line)

    def tire(self, number: int, gathered: GatheredLog) -> None:
        """Give up what has kept it waiting for too long, at that line of the file."""
        if number - self.heard_at > LOOK_AHEAD:
            self.wanting, self.raised = [], None
        if number - self.heard_at > _MAX_SILENT_LINES:
            self.end(gathered)

    def end(self, gathered: GatheredLog) -> None:
        """Take note that the file is over."""
        self._end_stack(gathered)
        if self.table and (last := self.table.rest()):
            gathered.exit(last)
        self.table = None
        for assembler in self.open:
            if cut := assembler.rest():
                gathered.raise_(self._timed(cut))
        self.open.clear()
