"""A report as data: a subject's render.py builds a `Document`, and a renderer decides how it looks on its medium."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import one_line

if TYPE_CHECKING:
    # fix-checkpoint starts without them.
    from ddpdoctor.base.findings import Evidence, Finding
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.engine.registry import Check

STYLES: Final = {Severity.FAIL: "bold red", Severity.WARN: "bold yellow", Severity.INFO: "bold blue"}
_VERDICT_STYLES: Final = {"ok": "bold green", "warn": "bold yellow", "fail": "bold red", "unknown": "bold magenta"}


class StyledText(NamedTuple):
    """A piece of text in one style: "bold", "dim", "reverse" and a colour, in any combination."""

    text: str
    style: str = ""


Words = str | StyledText | tuple[str | StyledText, ...]
"""A text, whole or in pieces of several styles. Renderers name the characters in it that aren't seen."""


class Paragraph(msgspec.Struct, frozen=True):
    """A text that is wrapped in a column of its own, and the label before its first line.

    Args:
        text: line feeds in it stay.
        label: "" for none.
        margin: columns from where the label begins to where the text does.
        indent: columns before the label.
    """

    text: Words
    label: Words = ""
    margin: int = 0
    indent: int = 0


class Command(msgspec.Struct, frozen=True):
    """A command to be copied: never wrapped. Its line feeds stay.

    Args:
        text: the command.
        indent: columns before it.
        label: within these, before the first line.
    """

    text: str
    indent: int = 4
    label: Words = ""


class Lines(msgspec.Struct, frozen=True):
    """Lines in which every column counts: never wrapped."""

    lines: tuple[Words, ...]


class LabelledRows(msgspec.Struct, frozen=True):
    """Labels and what there is to say to each. margin: columns for the labels; 0: as many as the longest needs."""

    rows: tuple[tuple[str, Words], ...]
    margin: int = 0


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Args:
        heading: its name.
        right: its cells end at the same place.
        leaves: in which order columns are left out where there is no room, from 1; 0: never. Up to 2 before a note is wrapped, 3 before
            one goes below its row.
    """

    heading: str
    right: bool = False
    leaves: int = 0


class Row(msgspec.Struct, frozen=True):
    """A row of a table: a cell a column, and a note on it, which is wrapped beside it, or below where there is no room."""

    cells: tuple[Words, ...]
    note: Words = ""


class Table(msgspec.Struct, frozen=True):
    """Rows under headings, indented by that many columns."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    indent: int = 2


class ToldFinding(msgspec.Struct, frozen=True):
    """A finding with its check. cause: "" where the one before had the same."""

    check: Check
    severity: Severity
    finding: Finding
    cause: str


class Fitted(msgspec.Struct, frozen=True):
    """Blocks that depend on the room.

    Args:
        build: takes the width in columns, and whether there is Unicode.
    """

    build: Callable[[int, bool], Sequence[Block]]


Block = Paragraph | Command | Lines | LabelledRows | Table | ToldFinding | Fitted


class Section(msgspec.Struct, frozen=True):
    """Blocks that belong together, with an empty line around them. One without a title and blocks is left out.

    Args:
        blocks: in their order.
        title: bold, unless it has a style.
    """

    blocks: tuple[Block, ...] = ()
    title: Words = ""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report.

    Args:
        verdict: the whole in a word.
        headline: what must be seen first, beside the verdict.
        rows: who was looked at: labels and texts.
        margin: columns for their labels; 0: as many as the longest needs.
        sections: what there is to say, in its order.
        lines: of a report in brief, a line a finding.
        outcome: the last sentence, beside the verdict again; "": there is none.
        counts: what stands behind it in plain letters.
        hints: what to do to learn more, a line each.
        folded: title and text of what a bug report has besides, to be unfolded.
    """

    verdict: Verdict
    headline: str = ""
    rows: tuple[tuple[str, Words], ...] = ()
    margin: int = 0
    sections: tuple[Section, ...] = ()
    lines: tuple[Words, ...] = ()
    outcome: str = ""
    counts: str = ""
    hints: tuple[Words, ...] = ()
    folded: tuple[tuple[str, str], ...] = ()


def pieces(words: Words) -> tuple[StyledText, ...]:
    """The text in its pieces."""
    if isinstance(words, StyledText):
        return (words,)
    if isinstance(words, str):
        return (StyledText(words),) if words else ()
    return tuple(piece if isinstance(piece, StyledText) else StyledText(piece) for piece in words)


def plain(words: Words) -> str:
    """The text without its styles."""
    return "".join(span.text for span in pieces(words))


def verdict_span(verdict: Verdict) -> StyledText:
    return StyledText(verdict.value.upper(), _VERDICT_STYLES[verdict.value])


def severity_span(severity: Severity) -> StyledText:
    return StyledText(severity.value.upper(), STYLES[severity])


def placed_summary(finding: Finding) -> str:
    """The summary of a finding, behind its place where it is one about source code."""
    place = finding.place
    return one_line(f"{place.file}:{place.line}:{place.column}: {finding.summary}" if place else finding.summary)


def evidence_words(evidence: Evidence) -> Words:
    """Evidence, and its source in small letters."""
    source = f"  ({one_line(evidence.source)})" if evidence.source else ""
    return (one_line(evidence.text), StyledText(source, "dim"))
