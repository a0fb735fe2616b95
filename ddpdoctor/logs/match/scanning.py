"""Goes through the bytes of one file: finds the lines that matter, and hands them on."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from ddpdoctor.facts.log import LogLine
from ddpdoctor.logs.match.first_lines import FIRST, FirstLines
from ddpdoctor.logs.match.gathering import GatheredLog
from ddpdoctor.logs.match.line_judge import MAX_LINE_BYTES, LineJudge, Spot
from ddpdoctor.logs.match.progress_bars import ProgressBars
from ddpdoctor.logs.match.repeated_lines import MAX_ENTRIES, Routine, key_of
from ddpdoctor.logs.match.streams import LogStream
from ddpdoctor.logs.match.vocabulary import Vocabulary
from ddpdoctor.logs.parse.encodings import colourless, margin_of
from ddpdoctor.logs.parse.file_names import LinePlace, uncontradicted
from ddpdoctor.logs.parse.labels import OF_TORCHRUN, Labelled, StyleFinder

BLOCK_BYTES: Final = 1 << 20
"""Bytes that are searched at once."""
LAST_BYTES: Final = 1 << 19
"""At least so many bytes at the end of a file are read whole, routine or not; and at most twice as many."""
CONTEXT_BYTES: Final = 1 << 15
"""Bytes before a block that are kept for looking back."""
SAMPLES_OF_FIRST_BLOCK: Final = 2000
SAMPLES_OF_BLOCK: Final = 60
"""Lines of the first block, and of each other one, that are looked at for their labels alone."""
REMEMBERED_BYTES: Final = 4096
MAX_REMEMBERED_BYTES: Final = 1 << 16
"""Bytes at the end of a block, and of the file, in which every line counts as the latest of its rank."""
MAX_LABEL_BYTES: Final = 300
"""Bytes at the start of a line in which its labels stand."""

MAX_PIECES: Final = 256
"""Pieces of a line, each with something in it, that are read whatever comes."""
LAST_HITS: Final = 16

Hit = tuple[int, int, int]
"""Place among the texts, start, end."""


class FileScan:
    """The scan of one file: `feed()` takes its bytes in pieces of any size, `end()` finishes it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        gathered: GatheredLog,
        file: int,
        place: LinePlace = LinePlace(),  # noqa: B008 (immutable)
        number: Callable[[int], int] = int,
    ) -> None:
        self._vocabulary = vocabulary
        self._gathered = gathered
        self._judge = LineJudge(vocabulary, gathered, file, place, number)
        self._styles = StyleFinder()
        self._routine = Routine(vocabulary.texts)
        self._awaited: dict[int, LogStream] = {}
        self._stream_of: dict[bytes, LogStream] = {}
        """Whose lines with that key are."""
        self._pieces = bytearray()
        self._context = b""
        self._begin = 0
        """Where in the bytes at hand the block begins; what is before it was searched already."""
        self._within = False
        """The block begins within a line."""
        self._margin: re.Pattern[bytes] | None = None
        """What stands before each line, as far as the first block shows."""
        self._ends = False
        """What is left is the last: all of it is read, routine or not."""
        self._first = FirstLines(())
        self._bars = ProgressBars()
        self._ends_here = False
        """The block at hand is the last one."""
        self._head = Labelled("")
        self._head_key = b""
        """Of the line that began in an earlier block."""
        self._pieces_of_one = 0
        """Pieces that were read of the part of a line, between two carriage returns, that is at hand."""
        self.left_out: set[int] = set()
        """Numbers of the lines of which some was not read."""
        self.bytes = 0
        self.lines = 0

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        self.bytes += len(piece)
        self._pieces += piece
        while len(self._pieces) >= 2 * BLOCK_BYTES:
            self._take(BLOCK_BYTES)

    def _take(self, size: int) -> None:
        """Search so much of what is held, or less: whole lines, if it holds one; of the last, all."""
        taken = self._pieces.rfind(b"\n", 0, size) + 1 or min(size, len(self._pieces))
        if self._ends and len(self._pieces) <= size:
            taken = len(self._pieces)
        self._ends_here = self._ends and taken == len(self._pieces)
        self._block(bytes(memoryview(self._pieces)[:taken]))
        del self._pieces[:taken]

    def end(self) -> None:
        """Take note that there are no more bytes."""
        while len(self._pieces) > 2 * LAST_BYTES:
            self._take(min(BLOCK_BYTES, len(self._pieces) - LAST_BYTES))
        self._ends = True
        while self._pieces:
            self._take(BLOCK_BYTES)
        if self._within:
            self.lines += 1
        if self._gathered.shapes:
            self._gathered.shapes.end_file()
        self._judge.end(self.lines)
        self._gathered.begins_again(self._first, self._bars)

    def _block(self, new: bytes) -> None:
        """Whole lines, or a part of one that is longer than a block."""
        ends_line = new.endswith(b"\n")
        plain = colourless(new)
        if not self.lines and not self._within:
            self._margin = margin_of(plain)
        if self._margin:
            plain = self._margin.sub(b"", plain)
        text = self._context + plain
        start = self._begin = len(self._context)
        self._judge.place = uncontradicted(self._judge.place, plain)
        self._learn(text, start)
        if self._gathered.shapes:
            self._gathered.shapes.add(plain, self.lines + 1, self._line_at, within=self._within, ends=self._ends)
        first = self.lines + 1
        self._search(text, start)
        if first == 1 and not self._within:
            self._first = FirstLines(
                [self._judge.labelled(line[:MAX_LINE_BYTES]).text for line in plain.split(b"\n", FIRST)[:FIRST]]
            )
        self._first.seek(text, start, first, self._line_at)
        self._bars.seek(text, start, first)
        self._remember(text, start)
        if not ends_line and not (self._within and b"\n" not in new):
            line = text.rfind(b"\n", start) + 1 or start
            self._head = self._judge.labelled(text[line : line + MAX_LABEL_BYTES])
            self._head_key = key_of(text, line, len(text))
        self._within = not ends_line
        self._context = text[-CONTEXT_BYTES:]

    def _line_at(self, piece: bytes, number: int) -> LogLine:
        return self._judge.line(self._judge.labelled(piece[:MAX_LINE_BYTES]), number)

    def _learn(self, text: bytes, start: int) -> None:
        """Sample the lines: which labels the file has, of which ranks, and what they said last."""
        most = SAMPLES_OF_BLOCK if self.lines else SAMPLES_OF_FIRST_BLOCK
        apart = (len(text) - start) // most
        spread = text.count(b"\n", start) > most
        at, number = start, self.lines + 1
        sampled: list[tuple[int, bytes]] = []
        while at < len(text) and len(sampled) < most:
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            sampled.append((number, text[at:end]))
            after = end + 1
            if spread:
                after = text.find(b"\n", max(after, start + len(sampled) * apart) - 1) + 1 or len(text)
            number += text.count(b"\n", at, after)
            at = after
        for _, piece in sampled:
            self._styles.add(piece[:MAX_LABEL_BYTES].decode("utf-8", "replace"))
        style = self._styles.style()
        if style.numbers and not style.tasks and any(text.find(words, start) >= 0 for words in OF_TORCHRUN):
            self._styles.are_tasks = True
            style = self._styles.style()
        if style != self._judge.style:
            self._judge.style = style
            self._stream_of.clear()
        goes_on = self._within
        for number, piece in sampled:
            self._heard(number, piece, goes_on=goes_on)
            goes_on = False

    def _heard(self, number: int, piece: bytes, *, goes_on: bool) -> None:
        """Note a line as the latest of its rank, whatever it says."""
        if not piece:
            return
        labelled = self._head if goes_on else self._judge.labelled(piece[:MAX_LABEL_BYTES])
        self._judge.meet(labelled, number)
        if len(piece) > MAX_LABEL_BYTES or b"\r" in piece:
            end = piece.rstrip(b"\r").rpartition(b"\r")[2][-MAX_LINE_BYTES:]
            labelled = labelled._replace(text=self._judge.labelled(end).text)
        self._gathered.last_words(self._judge.line(labelled, number))

    def _search(self, text: bytes, start: int) -> None:
        """Go from line to line with something in it; through all lines as long as a stream waits for its next one."""
        # A text may begin in the part of a long line that came before.
        base = start - min(self._vocabulary.longest - 1, start) if self._within else start
        matches = self._vocabulary.matches(memoryview(text)[base:])
        if self._ends_here and (cut := self._vocabulary.cut_off(text[base:].rstrip()[-MAX_LINE_BYTES:])):
            place, begin, _ = cut
            behind = len(text.rstrip()) - base
            matches = [*matches, (place, behind - min(behind, MAX_LINE_BYTES) + begin, behind)]
        at, most = 0, len(matches)
        here = counted = start
        while at < most and base + matches[at][2] <= start:
            at += 1
        while at < most or self._awaited:
            if not self._awaited:
                here = text.rfind(b"\n", here, base + matches[at][1]) + 1 or here
            elif here >= len(text):
                break
            end = text.find(b"\n", here)
            end = len(text) if end < 0 else end
            first = at
            while at < most and base + matches[at][1] < end:
                at += 1
            key = self._head_key if self._goes_on(here) else key_of(text, here, end)
            if self._awaited or not self._is_bare(text, here, end) or not self._is_routine(key, matches[first:at]):
                # Most lines need no number: newlines are counted up to those that do.
                self.lines += text.count(b"\n", counted, here)
                counted = here
                if not self._awaited or not self._is_others(text, here, end, key, matches[first:at]):
                    hits = [(place, base + begin, base + stop) for place, begin, stop in matches[first:at]]
                    self._line(text, here, end, key, hits)
                if self._awaited and (self.lines + 1) % 64 == 0:
                    self._tire(self.lines + 1)
            here = end + 1
        self.lines += text.count(b"\n", counted)

    def _is_bare(self, text: bytes, start: int, end: int) -> bool:
        """Whether it has one label at most, at its start: what follows a carriage return may have its own."""
        return text.find(b"\r", start, end - 1) < 0

    def _is_others(self, text: bytes, start: int, end: int, key: bytes, hits: Sequence[Hit]) -> bool:
        """Whether, while streams wait for their next lines, it is of one that doesn't, and brings nothing new."""
        stream = self._stream_of.get(key)
        if stream is None or id(stream) in self._awaited or self._goes_on(start) or not self._is_bare(text, start, end):
            return False
        return not hits or self._is_routine(key, hits)

    def _is_routine(self, key: bytes, hits: Sequence[Hit]) -> bool:
        """Whether the line brings nothing new; it is counted then."""
        if self._ends:
            return False
        entries = [self._routine.entry(hits[0][0], key)]
        if len(hits) > 1:
            entries = [self._routine.entry(place, key) for place in {hit[0] for hit in hits}]
        for entry in entries:
            if not entry.is_routine:
                return False
        for entry in entries:
            entry.count()
        return True

    def _line(self, text: bytes, start: int, end: int, key: bytes, hits: list[Hit]) -> None:
        if text.endswith(b"\r", start, end):
            end -= 1
        if text.find(b"\r", start, end) < 0 and not self._goes_on(start) and end - start <= MAX_LINE_BYTES:
            self._piece(text, start, end, None, key, hits)
        else:
            self._parts(text, start, end, key, hits)

    def _goes_on(self, start: int) -> bool:
        """Whether the line that is at hand there began in an earlier block."""
        return self._within and start == self._begin

    def _parts(self, text: bytes, start: int, end: int, key: bytes, hits: list[Hit]) -> None:
        """Split a line that was written over and over, or is too long to be kept, into what is around the hits."""
        goes_on = self._goes_on(start)
        head: Labelled | None = None
        at = 0
        segment = start if goes_on else -1
        while at < len(hits):
            begin = max(text.rfind(b"\r", start, hits[at][1]) + 1, start)
            stop = text.find(b"\r", hits[at][2], end)
            stop = end if stop < 0 else stop
            if begin != segment:
                segment, self._pieces_of_one = begin, 0
            if stop - begin > MAX_LINE_BYTES:
                at = self._after_what_is_left_out(hits, at, stop)
            first = at
            own = key if begin == start else key + key_of(text, begin, stop)
            if stop - begin > MAX_LINE_BYTES:
                begin = max(hits[at][1] - MAX_LINE_BYTES // 4, begin)
                stop = min(max(begin + MAX_LINE_BYTES, hits[at][2]), stop)
            while at < len(hits) and hits[at][1] < stop:
                at += 1
            if self._awaited or not self._is_routine(own, hits[first:at]):
                head = head or self._head_of(text, start, end)
                self._piece(text, begin, stop, None if begin == start and not goes_on else head, own, hits[first:at])
        if self._awaited and not goes_on:
            begin = max(text.rfind(b"\r", start, end) + 1, end - MAX_LINE_BYTES, start)
            head = None if begin == start else head or self._head_of(text, start, end)
            self._piece(text, begin, end, head, key, [])

    def _after_what_is_left_out(self, hits: list[Hit], at: int, stop: int) -> int:
        """Tell which hit is read next of a part without an end: after many only the last in each block."""
        self._pieces_of_one += 1
        if self._pieces_of_one <= MAX_PIECES:
            return at
        behind = bisect_left(hits, stop, at, key=lambda hit: hit[1])
        if behind - LAST_HITS > at:
            self.left_out.add(self.lines + 1)
        return max(at, behind - LAST_HITS)

    def _head_of(self, text: bytes, start: int, end: int) -> Labelled:
        if self._goes_on(start):
            return self._head
        return self._judge.labelled(text[start : min(start + MAX_LABEL_BYTES, end)])

    def _piece(self, text: bytes, start: int, end: int, head: Labelled | None, key: bytes, hits: list[Hit]) -> None:
        places = dict.fromkeys(hit[0] for hit in hits)
        if self._awaited:
            # The line is read for those who wait; what else is in it may bring nothing new.
            places = dict.fromkeys(place for place in places if not self._is_routine(key, [(place, 0, 0)]))
        spot = Spot(text, start, self.lines + 1)
        stream = self._judge.read(spot, text[start:end], head, list(places), waiting=bool(self._awaited))
        if head is None:
            if len(self._stream_of) >= MAX_ENTRIES:
                self._stream_of.clear()
            self._stream_of[key] = stream
        for place in places:
            self._routine.entry(place, key).read(self._judge.counted.get(place, ()))
        if stream.waits:
            self._awaited[id(stream)] = stream
        else:
            self._awaited.pop(id(stream), None)

    def _tire(self, number: int) -> None:
        for key, stream in list(self._awaited.items()):
            stream.tire(number, self._gathered)
            if not stream.waits:
                del self._awaited[key]

    def _remember(self, text: bytes, start: int) -> None:
        """Note the last lines of the block, or of the file, each as the latest of its rank."""
        begin = max(start, len(text) - (MAX_REMEMBERED_BYTES if self._ends else REMEMBERED_BYTES))
        if begin > start:
            begin = text.find(b"\n", begin) + 1 or len(text)
        first = self.lines - text.count(b"\n", begin) + 1
        for number, piece in enumerate(text[begin:].split(b"\n"), start=first):
            self._heard(number, piece, goes_on=number == first and self._goes_on(begin))
