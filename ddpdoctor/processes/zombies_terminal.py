"""What `ddpdoctor zombies` shows: each leftover with its owner, what it holds, why it is thought dead, and the command."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import human, listed, one_line, plural
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverEnding
from ddpdoctor.processes.leftovers.leftover import MAX_NAMED, Leftover, kill_command
from ddpdoctor.processes.zombies_words import LABELS, gathered, holds, of_whom, summed
from ddpdoctor.report.reported_leftovers import Certainty, Fate, LeftoverKind
from ddpdoctor.report.screen import Screen

MARGIN = 11
"""Columns: room for the longest label."""
_MOST_DOUBTS = 3

_FATES = {
    Fate.ENDED: ("ENDED", "green"),
    Fate.KILLED: ("KILLED", "green"),
    Fate.REMOVED: ("REMOVED", "green"),
    Fate.GONE: ("GONE", "blue"),
    Fate.LEFT: ("LEFT", "yellow"),
    Fate.STAYS: ("STAYS", "red"),
}


def show_leftovers(
    screen: Screen, leftovers: Sequence[Leftover], spots: Sequence[str], *, killing: bool = False
) -> None:
    """All that was found, and where nobody could look. killing: the command that would end them has been given already."""
    for alike in gathered(leftovers):
        (_show_segments if alike[0].kind is LeftoverKind.SEGMENT else _show_one)(screen, alike, killing=killing)
        screen.line()
    for spot in spots:
        screen.labelled("NOT SEEN", one_line(spot), MARGIN, "blue")
    if spots:
        screen.line()
    screen.labelled("", summed(leftovers, spots), 0, style="bold")
    proven = [leftover for leftover in leftovers if leftover.proven]
    if len(proven) > 1 and not killing:
        screen.labelled("", "To end what is proven, after a second look:", 0)
        screen.line("    ddpdoctor zombies --kill", "cyan")


def _show_one(screen: Screen, alike: Sequence[Leftover], *, killing: bool) -> None:
    (one,) = alike
    label, style = LABELS[one.certainty]
    whose = of_whom(one)
    screen.labelled(label, one_line(f"{one.what}" if not whose else f"{one.what} ({whose})"), MARGIN, style, "bold")
    screen.labelled("", one_line(f"{one.kind.value}: {one.why}"), MARGIN)
    if held := holds(one):
        screen.labelled("", f"It holds {held}", MARGIN)
    _show_doubts(screen, one)
    if one.command and not (killing and one.proven):
        screen.line(" " * (MARGIN + 4) + one_line(one.command), "cyan")
    if one.then:
        screen.labelled("", "If that shows that nobody needs it:", MARGIN)
        screen.line(" " * (MARGIN + 4) + one_line(one.then), "cyan")


def _show_segments(screen: Screen, alike: Sequence[Leftover], *, killing: bool) -> None:
    first, size = alike[0], human(sum(leftover.size for leftover in alike))
    label, style = LABELS[first.certainty]
    head = f"{plural(len(alike), 'segment')} in /dev/shm, {size}" + (f", {first.owner}'s" if first.owner else "")
    screen.labelled(label, one_line(head), MARGIN, style, "bold")
    screen.labelled("", one_line(f"{first.why}: {listed(one.path for one in alike)}"), MARGIN)
    _show_doubts(screen, first)
    if first.command and not (killing and first.proven):
        paths = [leftover.path for leftover in alike[:MAX_NAMED]]
        command = kill_command(alike) if first.proven else f"rm -f {' '.join(map(quoted, paths))}"
        screen.line(" " * (MARGIN + 4) + one_line(command), "cyan")


def _show_doubts(screen: Screen, one: Leftover) -> None:
    for doubt in one.doubts[:_MOST_DOUBTS]:
        screen.labelled("", one_line(f"But: {doubt}"), MARGIN, style="yellow")
    if len(one.doubts) > _MOST_DOUBTS:
        screen.labelled(
            "",
            f"But: {plural(len(one.doubts) - _MOST_DOUBTS, 'more reason')} (--json tells them)",
            MARGIN,
            style="yellow",
        )


def show_plan(screen: Screen, proven: Sequence[Leftover]) -> None:
    """What `--kill` would do."""
    processes = [leftover for leftover in proven if leftover.pid]
    segments = [leftover for leftover in proven if leftover.path]
    screen.line()
    if processes:
        text = f"To be ended (SIGTERM, then SIGKILL): pid {', '.join(str(process.pid) for process in processes)}"
        children = [child.pid for process in processes for child in process.children]
        text += (
            f", with {'its' if len(processes) == 1 else 'their'} children {listed(children, 20)}" if children else ""
        )
        screen.labelled("", f"{text}.", 0)
    if segments:
        screen.labelled("", f"To be removed: {listed((one_line(segment.path) for segment in segments), 12)}.", 0)


def show_endings(screen: Screen, ending: Endings) -> None:
    """What became of each, and what was freed."""
    screen.line()
    for leftover_ending in ending.all:
        label, style = _FATES[leftover_ending.fate]
        screen.labelled(label, one_line(_told(leftover_ending)), MARGIN, style)
    if ending.freed:
        screen.labelled("FREED", listed(ending.freed, 20), MARGIN, "green", "bold")


def _told(one: LeftoverEnding) -> str:
    return f"{one.leftover.what}: {one.reason}" if one.reason else one.leftover.what


def certain(leftovers: Sequence[Leftover]) -> list[Leftover]:
    """Those that may be ended."""
    return [leftover for leftover in leftovers if leftover.certainty is Certainty.PROVEN]
