"""The report of `fix-checkpoint`: a few lines of one file, one line each of many. It loads no more than it must: it starts at once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import clip_middle, listed, one_line, plural, visible
from ddpdoctor.checkpoints.render_words import COMMAND, LabelledPart, brief, heading, loud_parts, paragraphs, pins
from ddpdoctor.report.document import Block, Column, Command, Document, Paragraph, Row, Section, StyledText, Table
from ddpdoctor.report.reported_checkpoints import Action

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.editing import EditOptions
    from ddpdoctor.engine.examination import Verdict
    from ddpdoctor.facts.checkpoints import CheckpointFolder
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome

_MARGIN = 9
"""Columns: room for the longest of the words below."""
_MAX_PATHS = 8
_MAX_NAMES = 4
_LONG_NAME = re.compile(r"\S{401,}")
"""A name of thousands of characters, which nobody reads."""
_SHOWN_CHARACTERS = 200
"""Kept of a long name."""


_WORDS = {
    Action.FIXED: (StyledText("FIXED", "bold green"), "fixed"),
    Action.WRITTEN: (StyledText("WRITTEN", "bold green"), "written"),
    Action.UNDONE: (StyledText("UNDONE", "bold green"), "undone"),
    Action.WOULD_FIX: (StyledText("TO FIX", "bold yellow"), "to be fixed"),
    Action.WOULD_UNDO: (StyledText("FIXED", "bold green"), "can be undone"),
    Action.CLEAN: (StyledText("CLEAN", "bold green"), "had nothing to fix"),
    Action.LEFT: (StyledText("LEFT", "bold blue"), "left alone"),
    Action.REFUSED: (StyledText("REFUSED", "bold red"), "could not be handled"),
}
"""Of one file, and behind a number of files."""


def checkpoints_document(
    outcomes: Sequence[CheckpointOutcome],
    folders: Sequence[CheckpointFolder],
    paths: Sequence[str],
    options: EditOptions,
    verdict: Verdict,
) -> Document:
    """The report for people. folders: in which the files lie. paths: as the user named them."""
    first = tuple(map(folder_item, folders))
    if len(outcomes) == 1:
        heading_section, *others = file_sections(outcomes[0], options)
        sections = [Section((*first, *heading_section.blocks)), *others]
    else:
        sections = [Section((*first, *map(file_item, outcomes))), *sum_sections(outcomes, paths)]
    return Document(verdict=verdict, sections=tuple(sections))


def file_sections(outcome: CheckpointOutcome, options: EditOptions) -> list[Section]:
    """All there is to say of a file."""
    head = _item(StyledText(one_line(heading(outcome)), "bold"), _WORDS[outcome.action][0])
    rows = pins(outcome)
    parts = [tuple(block for part in parts for block in _part(part)) for parts in paragraphs(outcome, options)]
    if rows and outcome.action is not Action.REFUSED:
        return [Section((head,)), Section((_table(rows),)), *map(Section, parts)]
    return [Section((head, *(parts[0] if parts else ()))), *map(Section, parts[1:])]


def folder_item(folder: CheckpointFolder) -> Paragraph:
    """Say what the folder is in which the files lie."""
    return Paragraph(one_line(f"{folder.path}: {folder.called}"))


def file_item(outcome: CheckpointOutcome) -> Paragraph:
    """A line of a file among many."""
    return _item(one_line(brief(outcome)), _WORDS[outcome.action][0])


def sum_sections(outcomes: Sequence[CheckpointOutcome], paths: Sequence[str]) -> Iterator[Section]:
    """Say what must be said of some of the many files, then how many came to what. `paths`: as the user named them."""
    for parts, alike in _loud(outcomes).items():
        named = listed((outcome.path for outcome in alike), _MAX_NAMES)
        blocks = (block for part in parts for block in _part(part))
        yield Section((_item(StyledText(one_line(named), "bold"), "", margin=0), *blocks))
    counts = Counter(outcome.action for outcome in outcomes)
    summed = [f"{counts[action]} {words}" for action, (_, words) in _WORDS.items() if counts[action]]
    last: list[Block] = [
        Paragraph(StyledText(f"{plural(len(outcomes), 'file')}: {listed(summed, len(summed))}.", "bold"))
    ]
    if counts[Action.FIXED]:
        fixed = [Path(outcome.path) for outcome in outcomes if outcome.action is Action.FIXED]
        last += [
            Paragraph("Each that was fixed has an undo file beside it. To go back:"),
            Command(undo_command(fixed, paths)),
        ]
    yield Section(tuple(last))


def undo_command(fixed: Sequence[Path], paths: Sequence[str]) -> str:
    """Word the command that takes the changes of these files back. paths: as the user named them, and files besides these."""
    named = [path for path in paths if any(_names(path, file) for file in fixed)]
    if len(named) > _MAX_PATHS:
        named = [*named[:_MAX_PATHS], "..."]
    return f"{COMMAND} --undo {' '.join(map(quoted, named))}"


def _names(path: str, file: Path) -> bool:
    """Whether the path that the user typed means this file: it is it, a folder around it, or the index of shards."""
    return file.is_relative_to(path) or (path.endswith(".index.json") and file.is_relative_to(Path(path).parent))


def _loud(outcomes: Sequence[CheckpointOutcome]) -> dict[tuple[LabelledPart, ...], list[CheckpointOutcome]]:
    """The files of which the same must be said, together: the checkpoints of a run are mostly alike."""
    alike: dict[tuple[LabelledPart, ...], list[CheckpointOutcome]] = {}
    for outcome in outcomes:
        told = tuple(loud_parts(outcome))
        if told:
            alike.setdefault(told, []).append(outcome)
    return alike


def _table(rows: list[tuple[str, str, str, str]]) -> Table:
    now = any(row[3] for row in rows)
    columns = (Column("device"), Column("tensors", right=True), Column("bytes", right=True), Column("now"))
    shown = len(columns) if now else len(columns) - 1
    return Table(columns[:shown], tuple(Row(row[:shown]) for row in rows), _MARGIN)


def _part(part: LabelledPart) -> Iterator[Block]:
    label = StyledText(part.label, part.style)
    if part.text:
        yield _item(visible(part.text), label)
    for number, command in enumerate(part.commands):
        if part.text:
            yield Command(command, _MARGIN + 2)
        else:
            yield Command(command, _MARGIN, "" if number else label)


def _item(text: str | StyledText, label: str | StyledText, margin: int = _MARGIN) -> Paragraph:
    """A text in whose long names a middle is left out."""
    words, style = text if isinstance(text, StyledText) else (text, "")
    clipped = _LONG_NAME.sub(lambda name: clip_middle(name[0], _SHOWN_CHARACTERS), words)
    return Paragraph(StyledText(clipped, style), label, margin)
