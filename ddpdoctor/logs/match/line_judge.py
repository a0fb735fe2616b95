"""Reads the lines in which something was found: whose they are, when they were written, and what they say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.log_signs import NEAR, SignRole
from ddpdoctor.facts.log import LogLine
from ddpdoctor.logs.exceptions import LAST_ERROR, NAMED, announcement
from ddpdoctor.logs.match.gathering import MAX_ERRORS_OF_A_RANK, GatheredLog, SeenSign
from ddpdoctor.logs.match.repeated_lines import CountedLines
from ddpdoctor.logs.match.stated_facts import learn
from ddpdoctor.logs.match.streams import (
    MAX_OPEN,
    MAX_PENDING,
    NEIGHBOURS_BEFORE,
    QUOTED_APART,
    LogStream,
)
from ddpdoctor.logs.match.vocabulary import SoughtText, Vocabulary, VocabularySign, Wanted
from ddpdoctor.logs.parse import exit_tables
from ddpdoctor.logs.parse.error_words import is_ignored, is_name_alone, only_informs, speaks_of_error
from ddpdoctor.logs.parse.exits import exits_said
from ddpdoctor.logs.parse.file_names import LinePlace
from ddpdoctor.logs.parse.labels import (
    Labelled,
    Style,
    prefix_before,
    process_of,
    rank_of_heading,
    tags_output,
    unended_before,
    unlabelled,
    without,
)
from ddpdoctor.logs.parse.mentions import mentioned
from ddpdoctor.logs.parse.stacks import StackAssembler, begins_stack, reason_in
from ddpdoctor.logs.parse.tracebacks import FRAME, HEADER, Assembler, bare, chains, is_frame
from ddpdoctor.logs.parse.translations import in_english

MAX_LINE_BYTES: Final = 2000
"""Bytes of a line that are kept, around what was found in it."""
MAX_LINES_BACK: Final = 60
"""Lines of the file that are gone back for neighbours and a time."""
MAX_LABELLED: Final = 256
MAX_STREAMS: Final = 8192
_NOBODY: Final = "nobody"
_ANYBODY: Final = "anybody"


_BEHIND_ANOTHER: Final = re.compile(r"[ |]|[0-9a-f]{7}")
"""Lines that the one above may tell the meaning of."""
_OF_HOOK: Final = re.compile(rb"[^\n]{0,200}?\[rank\d{1,6}\]: ?[A-Za-z_][\w.]*: ")
_GOES_ON: Final = rb"(?!(?i:[^\n]{0,200}\b(?:steps?|iter\w*|epochs?|batch(?:es)?|loss|it/s|info|debug|warn\w*)\b)|\d|Traceback|[^\n]{0,40}wandb:)\S[^\n]*\n"
"""A line of an exception's message, and none of a training's steps."""
_LEAVES: Final = re.compile(
    rb"[^\n]*\n(?:" + _GOES_ON + rb"){0,4}(?:(?:\[[^\]\n]{1,40}\]:? ?)?wandb:[^\n]*\n|[ \t\r]*\n){1,60}"
    rb"[^\n]{0,200}?(?:\](?: \[\w+\])? (?:Sending process \d+ closing signal SIG|failed \(exitcode: )|srun: error: [^\n]{0,200}\btasks? [\d,-]+: Exited with exit code )"
)
"""Below a process's last word and an empty line, or what wandb sums up, a launcher says that one ended by itself, and wasn't cancelled."""

_RAYS_COUNT: Final = re.compile(r" \[repeated \d{1,12}x across cluster\]\s*$")
"""What Ray puts behind each line of which it leaves out those of other workers."""


class Spot(NamedTuple):
    """The beginning of a line in the bytes at hand, and which line of the file it is."""

    text: bytes
    start: int
    number: int

    def above(self) -> Iterator[bytes]:
        """Yield the lines above it, the nearest first; of long ones the end."""
        end = self.text.rfind(b"\n", 0, self.start)
        while end > 0:
            begin = self.text.rfind(b"\n", 0, end) + 1
            yield self.text[max(begin, end - MAX_LINE_BYTES) : end]
            end = begin - 1

    @property
    def below(self) -> bytes:
        """The next line that has something in it."""
        _, _, rest = self.text[self.start : self.start + 2 * MAX_LINE_BYTES].partition(b"\n")
        return rest.lstrip(b"\r\n").partition(b"\n")[0]


class LineJudge:
    """The judge of one file's lines."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        gathered: GatheredLog,
        file: int,
        place: LinePlace,
        number: Callable[[int], int] = int,
    ) -> None:
        self._vocabulary = vocabulary
        self._gathered = gathered
        self._file = file
        self.place = place
        self._number = number
        """Which line of the file a line that was read is from."""
        self._streams: dict[tuple[int | None, int | None, str], LogStream] = {}
        self._near_lines: dict[tuple[str, int | str], LogLine] = {}
        """The line of a stream, by its id, of nobody (NCCL's, a container's, before which no rank's label stands) or of anybody in which a text
        was last seen that makes others certain."""
        self._headless: LogStream | None = None
        """Of nobody, where its latest line is a frame that no header stands before."""
        self._first_order = gathered.order
        self._clocks = False
        """Whether any line has a timestamp."""
        self.style = Style()
        """Which labels the file has, as far as is known."""
        self._labelled_back = lru_cache(MAX_LABELLED)(lambda piece, style, prefix: self.labelled(piece))
        """Lines that were gone back to: for the next one found they are mostly the same."""
        self._prefix: re.Pattern[str] | None = None
        """Before the lines of a collector that nobody knows."""
        self._bare: Counter[int | None] = Counter()
        """How many exceptions without their tracebacks a rank has."""
        self.counted: dict[int, list[CountedLines]] = {}
        """What the last line has counted, by the text that was found."""

    def labelled(self, piece: bytes) -> Labelled:
        """Take the labels off a line."""
        found = unlabelled(self._without_prefix(piece), self.style)
        self._clocks |= found.time is not None
        if found.ahead is not None:
            self._gathered.ahead.add(found.ahead)
        return found

    def _without_prefix(self, piece: bytes) -> str:
        text = _RAYS_COUNT.sub("", piece.decode("utf-8", "replace"))
        found = self._prefix.match(text) if self._prefix else None
        return text[found.end() :] if found else text

    def _learn_prefix(self, spot: Spot, piece: bytes) -> None:
        """Learn what stands before a traceback's first line, and in the same way before the frame below."""
        lines = (piece, spot.below, next(spot.above(), b""))
        header, under, over = (raw.decode("utf-8", "replace") for raw in lines)
        self._prefix = prefix_before(header, under, self.style, over) or self._prefix

    def line(self, labelled: Labelled, number: int) -> LogLine:
        """Return the line as a fact."""
        place = self.place
        rank = labelled.rank if labelled.rank is not None else place.rank
        if rank is None and (process := process_of(labelled.text)):
            rank = self._gathered.rank_of.get(process)
        return LogLine(
            file=self._file,
            number=self._number(number),
            text=labelled.text,
            order=self._first_order + number,
            rank=rank,
            local_rank=labelled.local_rank if labelled.local_rank is not None else place.local_rank,
            host=labelled.host or place.host,
            time=labelled.time,
        )

    def meet(self, labelled: Labelled, number: int) -> None:
        """Note whose a line is, whatever it says."""
        self._gathered.met(self.line(labelled, number), labelled.said_by)

    def read(self, spot: Spot, piece: bytes, head: Labelled | None, hits: Sequence[int], *, waiting: bool) -> LogStream:
        """Read one line with the texts found in it, and return its stream. head: labels of the line that it is the end of."""
        labelled = self.labelled(piece)
        if HEADER.encode() in piece:
            self._learn_prefix(spot, piece)
            labelled = self.labelled(piece)
            text = piece.decode("utf-8", "replace")
            unended = "" if labelled.logger else unended_before(text)
            if self.labelled(unended.encode()).text.strip():
                own = [hit for hit in hits if self._vocabulary.texts[hit].text in unended]
                waiting = self.read(spot, unended.encode(), head, own, waiting=waiting).waits or waiting
                hits = [hit for hit in hits if hit not in own]
                behind = self.labelled(text[len(unended) :].encode())
                labelled = labelled if behind.rank is None else behind
        if head and labelled.rank is None and labelled.local_rank is None and not labelled.host:
            labelled = head._replace(text=labelled.text, time=labelled.time or head.time)
        if any(Wanted.FOREIGN in self._vocabulary.texts[hit].wanted for hit in hits):
            labelled = labelled._replace(text=in_english(labelled.text))
            hits = [place for place, _, _ in self._vocabulary.matches(memoryview(labelled.text.encode()))]
        stream = self._stream(labelled)
        labelled = self._without_logger(labelled, stream)
        stream.time = stream.time if labelled.time is None else labelled.time
        line = self.line(labelled, spot.number)
        self._adopt(stream, line)
        stream.heard_at = spot.number
        taken = False
        if waiting and stream.waits:
            line, taken = stream.go_on(line, self._gathered)
        if hits:
            self._gathered.met(line, labelled.said_by)
            self._judge(spot, stream, line, hits, taken=taken)
        return stream

    def _without_logger(self, labelled: Labelled, stream: LogStream) -> Labelled:
        """Return a line of a traceback or of a table as the program has written it: not as a logger tags it."""
        if labelled.logger:
            stream.logger = labelled.logger
        elif stream.logger:
            if not stream.waits or labelled.text.startswith(HEADER):
                stream.logger = ""
            elif labelled.text and stream.logger.startswith(labelled.text):
                return labelled._replace(text="")  # the log breaks off within it
            elif found := without(stream.logger).match(labelled.text):
                return labelled._replace(text=unlabelled(labelled.text[found.end() :], self.style).text)
        return labelled

    def end(self, lines: int) -> None:
        """Take note that the file has so many lines."""
        for stream in self._streams.values():
            stream.end(self._gathered)
        self._gathered.order = self._first_order + lines + 1

    def _judge(self, spot: Spot, stream: LogStream, line: LogLine, hits: Sequence[int], *, taken: bool) -> None:
        self.counted = {hit: [] for hit in hits}
        found = {hit: self._vocabulary.texts[hit] for hit in hits}
        for hit, sought in found.items():
            if sought.harmless:
                self.counted[hit].append(self._gathered.harmless(sought.harmless, line))
                taken = True
                if sought.harmless.alone:
                    return
            if sought.wanted:
                taken |= self._wanted(spot, stream, line, sought)
            if sought.is_near:
                whose: tuple[int | str, ...] = (id(stream), _ANYBODY, *((_NOBODY,) if stream.nobodys else ()))
                self._near_lines.update({(sought.text, one): line for one in whose})
        for hit, sought in found.items():
            for sign in sought.signs:
                taken |= self._sign(spot, stream, line, sign, self.counted[hit])
        for sought in found.values():
            self._settle(stream, sought.text, line)
        words = [sought.text for sought in found.values() if Wanted.ERROR in sought.wanted]
        if words and not taken and self._gathered.wants_error(line):
            self._error(spot, stream, line, words)

    def _wanted(self, spot: Spot, stream: LogStream, line: LogLine, sought: SoughtText) -> bool:
        taken, text, wanted = False, sought.text, sought.wanted
        if Wanted.TRACEBACK in wanted:
            taken |= self._traceback(spot, stream, line, text)
        if Wanted.FRAME in wanted and not stream.open and not stream.table and is_frame(line.text):
            taken |= self._traceback(spot, stream, line, text)
        if Wanted.STACK in wanted and stream.stack is None and begins_stack(line.text):
            before = self._texts_before(spot, line)
            stream.stack = StackAssembler(self._timed(spot, stream, line), reason_in(before))
        if Wanted.EXIT in wanted:
            if exit_tables.begins(line) and stream.table is None:
                before = self._texts_before(spot, line)
                stream.table = exit_tables.ExitTable(self._timed(spot, stream, line), before[::-1])
            for exited in exits_said(text, line):
                timed = self._timed(spot, stream, line)
                self._gathered.exit(msgspec.structs.replace(exited, line=timed, time=timed.time))
                taken = True
        if Wanted.FACT in wanted:
            learn(text, line, self._gathered)
        return taken

    def _traceback(self, spot: Spot, stream: LogStream, line: LogLine, text: str) -> bool:
        """Begin a traceback, at its header or, where the log lacks it, at a frame; unless it is only quoted."""
        is_headless = text == FRAME
        goes_on = is_headless and line.number - stream.quoting <= QUOTED_APART
        if goes_on or self._quoted(spot, line, text):
            stream.quoting = line.number
            return False
        if len(stream.open) < MAX_OPEN:
            # The line of an exception that was logged is the end of its traceback, and announces no other one.
            unannounced = is_headless or stream.follows_an_exception
            before = [] if unannounced else self._texts_before(spot, line)
            # A heading counts as the line of whom it names.
            texts = (line.text, self.labelled(next(spot.above(), b"")).text)
            heading = next((rank for rank in map(rank_of_heading, texts) if rank is not None), None)
            if before and chains(before[0]):
                stream.follows_on(line, self._gathered)
                heading = stream.heading if heading is None else heading
            line = stream.headed_by(heading, line)
            logger = "" if is_headless else stream.logger
            if logger and tags_output(logger):
                before = [without(logger).sub("", text, count=1) for text in before]
                logger = ""
            stream.open.append(Assembler(self._timed(spot, stream, line), announcement(before) or logger))
            self._headless = stream if is_headless and stream.nobodys else None
        return True

    def _adopt(self, stream: LogStream, line: LogLine) -> None:
        """Give a rank the frame right before its line, of which a paste has cut the label off."""
        nobodys, self._headless = self._headless, None
        if nobodys is None or not nobodys.open or stream.nobodys or stream.open:
            return
        if line.number - nobodys.open[-1].began.number == 1 and nobodys.open[-1].may_go_on(line.text):
            frame = nobodys.open.pop()
            frame.began = msgspec.structs.replace(
                frame.began, rank=line.rank, local_rank=line.local_rank, host=line.host
            )
            stream.open.append(frame)

    def _sign(
        self, spot: Spot, stream: LogStream, line: LogLine, sign: VocabularySign, counted: list[CountedLines]
    ) -> bool:
        """Whether the line says it. That it waits for a second text, or only mentions it, is no."""
        words: dict[str, str] = {}
        if sign.pattern:
            found = sign.pattern.search(line.text)
            if not found:
                return False
            words = {name: word for name, word in found.groupdict().items() if word}
        whose = (id(stream), _ANYBODY if sign.sign.anywhere else _NOBODY)
        nears = [near for one in whose if (near := self._near_lines.get((sign.sign.near, one)))]
        near = max(nears, key=lambda other: other.number, default=None)
        is_near = not sign.sign.near or (near is not None and self._is_beside(line, near, sign))
        if is_near and (seen := self._gathered.again(sign, line)):
            counted.append(seen)
            return True
        quoted = self._quoted(spot, line, sign.sign.text)
        quoted |= sign.sign.role is not SignRole.EFFECT and only_informs(line.text)
        match = SeenSign(sign, self._timed(spot, stream, line), words, quoted, beside=near)
        if is_near:
            if self._gathered.sighting(match) and self._gathered.wants_neighbours:
                match.before = tuple(self._before(spot, match.line))[::-1]
                stream.wanting.append(match.after)
            return True
        waiting = stream.pending.setdefault(sign.sign.near, [])
        if len(waiting) >= MAX_PENDING:
            del waiting[MAX_PENDING // 2]
        waiting.append(match)
        return False

    def _is_beside(self, line: LogLine, other: LogLine, sign: VocabularySign) -> bool:
        # Among so many lines of the file a stream has about `NEAR` of its own.
        near = NEAR * max(1, min(len(self._streams), 64))
        return line.number - other.number <= (sign.sign.within or near)

    def _settle(self, stream: LogStream, near: str, line: LogLine) -> None:
        """Let sightings count that waited for that text."""
        for waiting in stream.pending.pop(near, ()):
            is_beside = self._is_beside(line, waiting.line, waiting.sign)
            if is_beside and not self._gathered.again(waiting.sign, waiting.line):
                waiting.beside = line
                self._gathered.sighting(waiting)

    def _error(self, spot: Spot, stream: LogStream, line: LogLine, words: Sequence[str]) -> None:
        if not any(speaks_of_error(line.text, word) and not self._quoted(spot, line, word) for word in words):
            return
        if is_ignored(log_line.text for log_line in self._back(spot, line)):
            return
        timed = self._timed(spot, stream, line)
        if LAST_ERROR in words:
            behind: list[LogLine] = []
            self._gathered.error(line, behind)
            stream.wanting.append(behind)
            return
        timed = self._with_message(spot, timed) if is_name_alone(line.text) else timed
        if raised := bare(timed, is_uncaught=self._is_uncaught(spot, timed)):
            self._gathered.raise_(raised)
        else:
            self._gathered.error(line, [timed])

    def _is_uncaught(self, spot: Spot, line: LogLine) -> bool:
        """Whether nobody has caught an exception without its traceback: torch's own hook, or its process's end, shows it."""
        is_shown = _OF_HOOK.match(spot.text, spot.start) or _LEAVES.match(spot.text, spot.start)
        is_uncaught = is_shown is not None and NAMED.match(line.text) is not None
        self._bare[line.rank] += is_uncaught
        return is_uncaught and self._bare[line.rank] <= MAX_ERRORS_OF_A_RANK

    def _with_message(self, spot: Spot, line: LogLine) -> LogLine:
        """Join the name of an exception with the first line of its message, which stands below it."""
        below = self.labelled(spot.below)
        # A path or a value that was too long for the line stands in quotation marks.
        mine = below.rank in (None, line.rank) and below.text.startswith((" ", "\t", "'", '"'))
        return msgspec.structs.replace(line, text=f"{line.text} {below.text.strip()}") if mine else line

    def _quoted(self, spot: Spot, line: LogLine, literal: str) -> bool:
        # Only an indented line can be the code of a frame above it, and only a hash another line's.
        previous = next(self._back(spot, line), None) if _BEHIND_ANOTHER.match(line.text) else None
        return mentioned(line.text, literal, previous.text if previous else "")

    def _timed(self, spot: Spot, stream: LogStream, line: LogLine) -> LogLine:
        """Give the line a time: its own, that of a line before it, or the stream's last."""
        if line.time is None and self._clocks and stream.time_sought_at != line.number:
            stream.time_sought_at = line.number
            earlier = next((log_line.time for log_line in self._back(spot, line) if log_line.time is not None), None)
            stream.time = stream.time if earlier is None else earlier
        return stream.with_time(line)

    def _before(self, spot: Spot, line: LogLine) -> Iterator[LogLine]:
        return islice(self._back(spot, line), NEIGHBOURS_BEFORE)

    def _texts_before(self, spot: Spot, line: LogLine) -> list[str]:
        return [log_line.text for log_line in self._before(spot, line)]

    def _back(self, spot: Spot, line: LogLine) -> Iterator[LogLine]:
        """Yield the lines before it of the same stream, the nearest first."""
        for back, piece in enumerate(islice(spot.above(), MAX_LINES_BACK), 1):
            labelled = self._labelled_back(piece.rstrip(b"\r").rpartition(b"\r")[2], self.style, self._prefix)
            if labelled.rank is None or labelled.rank == line.rank:
                one = self.line(labelled, spot.number - back)
                if one.stream == line.stream and one.text.strip():
                    yield one

    def _stream(self, labelled: Labelled) -> LogStream:
        key = (labelled.rank, labelled.local_rank, labelled.host)
        if key not in self._streams and len(self._streams) >= MAX_STREAMS:
            key = (None, None, "")
        return self._streams.setdefault(key, LogStream(nobodys=key[:2] == (None, None)))
