"""The report of `fix-checkpoint` for a person at a terminal: a few lines of one file, one line each of many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import listed, one_line, plural, visible
from ddpdoctor.checkpoints.render_words import COMMAND, LabelledPart, brief, heading, loud_parts, paragraphs, pins
from ddpdoctor.report.reported_checkpoints import Action
from ddpdoctor.report.screen import Screen

if TYPE_CHECKING:
    from ddpdoctor.checkpoints.pickles.editing import EditOptions
    from ddpdoctor.facts.checkpoints import CheckpointFolder
    from ddpdoctor.report.reported_checkpoints import CheckpointOutcome

_MARGIN = 9
"""Columns: room for the longest of the words below."""

_MOST_PATHS = 8

_WORDS = {
    Action.CLEAN: ("CLEAN", "green"),
    Action.WOULD_FIX: ("TO FIX", "yellow"),
    Action.FIXED: ("FIXED", "green"),
    Action.WRITTEN: ("WRITTEN", "green"),
    Action.UNDONE: ("UNDONE", "green"),
    Action.WOULD_UNDO: ("FIXED", "green"),
    Action.LEFT: ("LEFT", "blue"),
    Action.REFUSED: ("REFUSED", "red"),
}

_COUNTED = {
    Action.FIXED: "fixed",
    Action.WRITTEN: "written",
    Action.UNDONE: "undone",
    Action.WOULD_FIX: "to be fixed",
    Action.WOULD_UNDO: "can be undone",
    Action.CLEAN: "had nothing to fix",
    Action.LEFT: "left alone",
    Action.REFUSED: "could not be handled",
}


def show_one(screen: Screen, outcome: CheckpointOutcome, wishes: EditOptions) -> None:
    """All there is to say of a file."""
    word, style = _WORDS[outcome.action]
    screen.labelled(word, one_line(heading(outcome)), _MARGIN, style, "bold")
    rows = pins(outcome)
    if rows and outcome.action is not Action.REFUSED:
        _show_table(screen, rows)
    for number, told in enumerate(paragraphs(outcome, wishes)):
        if number:
            screen.line()
        for part in told:
            _show_part(screen, part)


def show_folder(screen: Screen, folder: CheckpointFolder) -> None:
    """What the folder is in which the files lie."""
    screen.labelled("", one_line(f"{folder.path}: {folder.called}"), 0)


def show_line(screen: Screen, outcome: CheckpointOutcome) -> None:
    """A line of a file among many."""
    word, style = _WORDS[outcome.action]
    screen.labelled(word, one_line(brief(outcome)), _MARGIN, style)


def show_sum(screen: Screen, outcomes: Sequence[CheckpointOutcome], paths: Sequence[str]) -> None:
    """What must be said of some of the many files, then how many came to what. `paths`: as the user named them."""
    for told, alike in _loud(outcomes).items():
        screen.line()
        screen.labelled(
            "", one_line(listed((checkpoint_outcome.path for checkpoint_outcome in alike), 4)), 0, style="bold"
        )
        for part in told:
            _show_part(screen, part)
    screen.line()
    counts = Counter(outcome.action for outcome in outcomes)
    summed = listed((f"{counts[action]} {text}" for action, text in _COUNTED.items() if counts[action]), len(_COUNTED))
    screen.labelled("", f"{plural(len(outcomes), 'file')}: {summed}.", 0, style="bold")
    if counts[Action.FIXED]:
        screen.labelled("", "Each that was fixed has an undo file beside it. To go back:", 0)
        fixed = [Path(one.path) for one in outcomes if one.action is Action.FIXED]
        screen.line(visible(f"    {undo_command(fixed, paths)}"), "cyan")


def undo_command(fixed: Sequence[Path], paths: Sequence[str]) -> str:
    """What takes the changes of these files back. paths: as the user named them, and files besides these."""
    named = [path for path in paths if any(_names(path, one) for one in fixed)]
    if len(named) > _MOST_PATHS:
        named = [*named[:_MOST_PATHS], "..."]
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


def _show_table(screen: Screen, rows: list[tuple[str, str, str, str]]) -> None:
    titles = ("device", "tensors", "bytes", "now" if any(row[3] for row in rows) else "")
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(3)]
    screen.line()
    for number, (device, tensors, size, now) in enumerate([titles, *rows]):
        line = f"{device:<{widths[0]}}  {tensors:>{widths[1]}}  {size:>{widths[2]}}  {now}".rstrip()
        screen.line(" " * _MARGIN + screen.styled(line, "" if number else "dim"))
    screen.line()


def _show_part(screen: Screen, part: LabelledPart) -> None:
    if part.text:
        screen.labelled(part.label, visible(part.text), _MARGIN, part.style)
    for number, command in enumerate(part.commands):
        label = part.label if not part.text and not number else ""
        start = screen.styled(label, part.style) + " " * (_MARGIN - len(label)) + "  " * bool(part.text)
        screen.line(start + screen.styled(visible(command), "cyan"))
