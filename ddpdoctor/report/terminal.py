"""A `Document` on a terminal: wrapped to its width, in colour where it has some. Without rich, which takes its time to load."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TextIO

from ddpdoctor.base import terminal
from ddpdoctor.base.text import one_line, visible
from ddpdoctor.report.document import (
    Block,
    Command,
    Document,
    LabelledRows,
    Lines,
    Paragraph,
    Section,
    StyledText,
    Table,
    ToldFinding,
    Words,
    evidence_words,
    pieces,
    placed_summary,
    plain,
    severity_span,
    verdict_span,
)
from ddpdoctor.report.line_wrapping import Line, count_columns, wrap_text

LEAST_WIDTH: Final = 20
"""Columns that a text has, however narrow the terminal."""
FINDING_MARGIN: Final = 6
GAP: Final = 2
"""Columns between those of a table."""
LEAST_NOTE: Final = 20
"""Columns for a table's note, which is wrapped there, unless it is shorter."""

_CODES: Final = {
    "bold": "1", "dim": "2", "reverse": "7", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35",
    "cyan": "36", "dark_orange": "38;5;208",
}  # fmt: skip


class Screen:
    """Writes to `file`.

    Args:
        file: a terminal, or what is read as one.
        width: in columns.
        colour: whether styles become escape codes.
    """

    def __init__(self, file: TextIO, width: int, *, colour: bool = False) -> None:
        self._file = file
        self._width = width
        self._colour = colour
        encoding: str | None = getattr(file, "encoding", None)
        self._unicode = (encoding or "utf-8").lower().startswith("utf")

    def show(self, document: Document) -> None:
        """Write the whole report."""
        self.show_sections(_sections_of(document))

    def show_sections(self, sections: Iterable[Section]) -> None:
        """Write parts of one, with an empty line between them."""
        shown = [section for section in sections if section.title or section.blocks]
        for number, section in enumerate(shown):
            if number:
                self._file.write("\n")
            if title := section.title:
                self.write(Paragraph(StyledText(title, "bold") if isinstance(title, str) else title))
            self.write(*section.blocks)

    def write(self, *blocks: Block) -> None:
        """Write a part of one."""
        for block in blocks:
            for line in lines_of(block, self._width, unicode=self._unicode):
                self._file.write(self._coloured(line))
        # At once, so that a reader who has gone is noticed where something is written, and a live view goes on below.
        self._file.flush()

    def _coloured(self, line: Line) -> str:
        if not self._colour:
            return "".join(text for text, _ in line).rstrip() + "\n"
        while line and not line[-1].text.strip():
            line = line[:-1]
        last = [StyledText(line[-1].text.rstrip(), line[-1].style)] if line else []
        return "".join(_coded(*span) for span in (*line[:-1], *last)) + "\n"


def screen_for(file: TextIO, environ: Mapping[str, str] = os.environ) -> Screen:
    """Make a screen as wide as the terminal; in colour on a terminal that has some, unless NO_COLOR or FORCE_COLOR says otherwise."""
    if environ.get("NO_COLOR"):
        colour = False
    elif environ.get("FORCE_COLOR"):
        colour = True
    else:
        colour = terminal.moves_its_cursor(file, environ)
    return Screen(file, terminal.width(environ=environ), colour=colour)


def text_of(document: Document, width: int) -> str:
    """Render a report for a terminal of that width, without colours."""
    file = io.StringIO()
    Screen(file, width).show(document)
    return file.getvalue()


def _coded(text: str, style: str) -> str:
    codes = ";".join(_CODES[name] for name in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text.strip() else text


def _sections_of(document: Document) -> Iterator[Section]:
    if document.headline:
        word = verdict_span(document.verdict)
        margin = max(FINDING_MARGIN, len(word.text) + 2)
        yield Section((Paragraph(StyledText(one_line(document.headline), "bold"), word, margin),))
    if document.rows:
        yield Section((LabelledRows(document.rows, document.margin),))
    yield from document.sections
    yield Section((*([Lines(document.lines)] if document.lines else []), *_last(document)))


def _last(document: Document) -> Iterator[Block]:
    if document.outcome:
        counts = f" {document.counts}" if document.counts else ""
        yield Paragraph(
            (verdict_span(document.verdict), "  ", StyledText(f"{one_line(document.outcome)}.", "bold"), counts)
        )
    for hint in document.hints:
        yield Paragraph(StyledText(hint, "dim") if isinstance(hint, str) else hint)


# --- blocks -------------------------------------------------------------------------------------------------------------------


def lines_of(block: Block, width: int, *, unicode: bool) -> Iterator[Line]:
    """The lines of a part of a report, on a terminal of that width."""
    if isinstance(block, Paragraph):
        yield from _item(block, width)
    elif isinstance(block, Command):
        start = _padded(_harmless(block.label), block.indent)
        for line in visible(block.text).splitlines():
            yield (*start, StyledText(line, "cyan"))
            start = (StyledText(" " * block.indent),)
    elif isinstance(block, Lines):
        yield from (_harmless(line) for line in block.lines)
    elif isinstance(block, LabelledRows):
        margin = block.margin or max((len(label) for label, _ in block.rows), default=0) + GAP
        for label, text in block.rows:
            yield from _item(Paragraph(text, StyledText(label, "dim"), margin), width)
    elif isinstance(block, Table):
        yield from _table(block, width)
    elif isinstance(block, ToldFinding):
        for part in _finding(block):
            yield from lines_of(part, width, unicode=unicode)
    else:
        for part in block.build(width, unicode):
            yield from lines_of(part, width, unicode=unicode)


def _harmless(words: Words) -> Line:
    """On one line, with its columns as they are."""
    return tuple(
        StyledText(visible(text).replace("\n", " ").replace("\t", " "), style) for text, style in pieces(words) if text
    )


def _item(item: Paragraph, width: int) -> Iterator[Line]:
    start = (StyledText(" " * item.indent), *_padded(_harmless(item.label), item.margin))
    for line in wrap_text(item.text, max(LEAST_WIDTH, width - count_columns(plain(start)))):
        yield (*start, *line)
        start = (StyledText(" " * (item.indent + item.margin)),)


def _padded(label: Line, columns: int) -> Line:
    return (*label, StyledText(" " * (columns - count_columns(plain(label)))))


def _finding(told: ToldFinding) -> Iterator[Block]:
    finding = told.finding
    summary = (StyledText(placed_summary(finding), "bold"), StyledText(f"  [{told.check.slug}]", "dim"))
    yield Paragraph(summary, severity_span(told.severity), FINDING_MARGIN)
    if told.cause:
        yield _labelled("why", _paragraph(told.cause))
    for number, evidence in enumerate(finding.evidence):
        # The source of several in a row stands after the last of them.
        following = finding.evidence[number + 1 : number + 2]
        again = bool(following) and following[0].source == evidence.source
        yield _labelled("" if number else "seen", one_line(evidence.text) if again else evidence_words(evidence))
    for fix in finding.fixes:
        yield _labelled("fix", _paragraph(fix.text))
        for command in fix.commands:
            yield Command(command, FINDING_MARGIN + 8)


def _labelled(label: str, text: Words) -> Paragraph:
    return Paragraph(text, StyledText(label, "dim"), FINDING_MARGIN, FINDING_MARGIN)


def _paragraph(text: str) -> str:
    """Source line breaks become spaces; blank lines and list items stay."""
    lines: list[str] = []
    for line in visible(text).splitlines():
        stripped = line.strip()
        if lines and stripped and lines[-1] and not stripped.startswith(("- ", "* ")):
            lines[-1] += " " + stripped
        else:
            lines.append(stripped)
    return "\n".join(lines)


# --- tables -------------------------------------------------------------------------------------------------------------------


def _table(table: Table, width: int) -> Iterator[Line]:
    widths = [
        max([count_columns(column.heading), *(count_columns(plain(row.cells[place])) for row in table.rows)])
        for place, column in enumerate(table.columns)
    ]
    shown = _fitting(table, widths, width - table.indent)
    margin = StyledText(" " * table.indent)
    headings = (_cell(StyledText(table.columns[place].heading, "dim"), table, place, widths) for place in shown)
    yield (margin, *(span for cell in headings for span in cell))
    for row in table.rows:
        cells = (_cell(row.cells[place], table, place, widths) for place in shown)
        line = (margin, *(span for cell in cells for span in cell))
        used = count_columns(plain(line))
        if row.note and width - used >= min(count_columns(plain(row.note)), LEAST_NOTE):
            yield from _item(Paragraph(row.note, line, used), width)
        else:
            yield line
            if row.note:
                yield from _item(Paragraph(row.note, indent=table.indent + 2), width)


def _fitting(table: Table, widths: Sequence[int], width: int) -> tuple[int, ...]:
    """The places of the columns for which there is room beside the notes."""
    note = max((count_columns(plain(row.note)) for row in table.rows), default=0)
    most = max((column.leaves for column in table.columns), default=0)
    # A note is rather wrapped than that a third column goes for it, and rather put below than that a fourth does.
    steps = [(0, note), (1, note), (2, note), (2, LEAST_NOTE), (3, LEAST_NOTE), *((step, 0) for step in range(4, most))]
    for step, least in steps:
        shown = _left(table, step)
        if sum(widths[place] + GAP for place in shown) + min(least, note) <= width:
            return shown
    return _left(table, most)


def _left(table: Table, step: int) -> tuple[int, ...]:
    return tuple(place for place, column in enumerate(table.columns) if not 0 < column.leaves <= step)


def _cell(words: Words, table: Table, place: int, widths: Sequence[int]) -> Line:
    line = _harmless(words)
    padding = StyledText(" " * (widths[place] - count_columns(plain(line))))
    return (
        (padding, *line, StyledText(" " * GAP))
        if table.columns[place].right
        else (*line, padding, StyledText(" " * GAP))
    )
