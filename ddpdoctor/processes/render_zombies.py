"""The report of `zombies`: each leftover with its owner, what it holds, why it is thought dead, and the command; and for programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from ddpdoctor.base.findings import FAIL, Evidence, Fix
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.shell import quoted
from ddpdoctor.base.text import clip, human, listed, one_line, plural
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.processes.job_words import age
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverEnding
from ddpdoctor.processes.leftovers.leftover import MAX_NAMED, Leftover, kill_command
from ddpdoctor.report.contract import Report, ReportedFinding, build_report, mirror
from ddpdoctor.report.document import Block, Command, Document, Paragraph, Section, StyledText
from ddpdoctor.report.reported_leftovers import Certainty, Fate, LeftoverKind, ReportedLeftover

MARGIN: Final = 11
"""Columns: room for the longest label."""
COMMAND_INDENT: Final = MARGIN + 4
MOST_DOUBTS: Final = 3
MOST_SUMMARY: Final = 160
"""Characters."""

_LABELS: Final = {
    Certainty.PROVEN: StyledText("LEFT OVER", "bold red"),
    Certainty.DOUBT: StyledText("IN DOUBT", "bold yellow"),
    Certainty.NOT_OURS: StyledText("NOT YOURS", "bold blue"),
}
_FATES: Final = {
    Fate.ENDED: StyledText("ENDED", "bold green"),
    Fate.KILLED: StyledText("KILLED", "bold green"),
    Fate.REMOVED: StyledText("REMOVED", "bold green"),
    Fate.GONE: StyledText("GONE", "bold blue"),
    Fate.LEFT: StyledText("LEFT", "bold yellow"),
    Fate.STAYS: StyledText("STAYS", "bold red"),
}
_SURE: Final = {
    Certainty.PROVEN: "left over",
    Certainty.DOUBT: "perhaps left over",
    Certainty.NOT_OURS: "perhaps left over, and not yours",
}


def zombies_document(
    leftovers: Sequence[Leftover],
    spots: Sequence[str],
    problems: Sequence[str],
    endings: Endings | None,
    verdict: Verdict,
) -> Document:
    """The report for people. spots: where nobody could look. problems: what was asked for and isn't left over. endings: what was done, if anything was to be."""
    found = leftover_sections(leftovers, spots, problems, killing=endings is not None)
    return Document(verdict=verdict, sections=(*found, *([endings_section(endings)] if endings else ())))


def leftover_sections(
    leftovers: Sequence[Leftover], spots: Sequence[str], problems: Sequence[str] = (), *, killing: bool = False
) -> Iterator[Section]:
    """All that was found, and where nobody could look. killing: the command that would end them has been given already."""
    if problems:
        yield Section(tuple(Paragraph(StyledText(one_line(problem), "bold yellow")) for problem in problems))
    for alike in gathered(leftovers):
        are_segments = alike[0].kind is LeftoverKind.SEGMENT
        yield Section(tuple(_segments(alike, killing=killing) if are_segments else _one(alike[0], killing=killing)))
    yield Section(tuple(Paragraph(one_line(spot), StyledText("NOT SEEN", "bold blue"), MARGIN) for spot in spots))
    last: list[Block] = [Paragraph(StyledText(summed(leftovers, spots), "bold"))]
    if sum(leftover.proven for leftover in leftovers) > 1 and not killing:
        last += [Paragraph("To end what is proven, after a second look:"), Command("ddpdoctor zombies --kill")]
    yield Section(tuple(last))


def _one(leftover: Leftover, *, killing: bool) -> Iterator[Block]:
    whose = of_whom(leftover)
    what = one_line(f"{leftover.what} ({whose})" if whose else leftover.what)
    yield Paragraph(StyledText(what, "bold"), _LABELS[leftover.certainty], MARGIN)
    yield _below(one_line(f"{leftover.kind.value}: {leftover.why}"))
    if held := holds(leftover):
        yield _below(f"It holds {held}")
    yield from _doubts(leftover)
    if leftover.command and not (killing and leftover.proven):
        yield Command(one_line(leftover.command), COMMAND_INDENT)
    if leftover.then:
        yield _below("If that shows that nobody needs it:")
        yield Command(one_line(leftover.then), COMMAND_INDENT)


def _segments(alike: Sequence[Leftover], *, killing: bool) -> Iterator[Block]:
    first, size = alike[0], human(sum(leftover.size for leftover in alike))
    head = f"{plural(len(alike), 'segment')} in /dev/shm, {size}" + (f", {first.owner}'s" if first.owner else "")
    yield Paragraph(StyledText(one_line(head), "bold"), _LABELS[first.certainty], MARGIN)
    yield _below(one_line(f"{first.why}: {listed(leftover.path for leftover in alike)}"))
    yield from _doubts(first)
    if first.command and not (killing and first.proven):
        paths = [leftover.path for leftover in alike[:MAX_NAMED]]
        command = kill_command(alike) if first.proven else f"rm -f {' '.join(map(quoted, paths))}"
        yield Command(one_line(command), COMMAND_INDENT)


def _doubts(leftover: Leftover) -> Iterator[Block]:
    for doubt in leftover.doubts[:MOST_DOUBTS]:
        yield _below(StyledText(one_line(f"But: {doubt}"), "bold yellow"))
    if (more := len(leftover.doubts) - MOST_DOUBTS) > 0:
        yield _below(StyledText(f"But: {plural(more, 'more reason')} (--json tells them)", "bold yellow"))


def _below(text: str | StyledText) -> Paragraph:
    return Paragraph(text, margin=MARGIN)


def plan_section(proven: Sequence[Leftover]) -> Section:
    """Say what `--kill` would do."""
    processes = [leftover for leftover in proven if leftover.pid]
    segments = [leftover for leftover in proven if leftover.path]
    items = []
    if processes:
        children = [child.pid for process in processes for child in process.children]
        pids = ", ".join(str(process.pid) for process in processes)
        whose = "its" if len(processes) == 1 else "their"
        with_them = f", with {whose} children {listed(children, 20)}" if children else ""
        items.append(Paragraph(f"To be ended (SIGTERM, then SIGKILL): pid {pids}{with_them}."))
    if segments:
        items.append(Paragraph(f"To be removed: {listed((one_line(segment.path) for segment in segments), 12)}."))
    return Section(tuple(items))


def endings_section(endings: Endings) -> Section:
    """Say what became of each, and what was freed."""
    items = []
    for ending in endings.all:
        what = f"{ending.leftover.what}: {ending.reason}" if ending.reason else ending.leftover.what
        items.append(Paragraph(one_line(what), _FATES[ending.fate], MARGIN))
    if endings.freed:
        items.append(
            Paragraph(StyledText(listed(endings.freed, 20), "bold"), StyledText("FREED", "bold green"), MARGIN)
        )
    return Section(tuple(items))


# --- words: what each holds, how long it has been there, and the sum ----------------------------------------------------------


def holds(leftover: Leftover) -> str:
    """ "1.5 GiB of GPU 3, port 29500, 2 segments in /dev/shm, 210 MiB of memory"; "" where it holds nothing."""
    return ", ".join(_parts(leftover))


def _parts(leftover: Leftover) -> Iterator[str]:
    if leftover.gpus and leftover.pid:
        named = f"GPU{'' if len(leftover.gpus) == 1 else 's'} {listed(leftover.gpus)}"
        yield f"{human(leftover.gpu_memory)} of {named}" if leftover.gpu_memory else named
    elif leftover.kind is LeftoverKind.MEMORY:
        yield f"{human(leftover.size)} of its memory"
    if leftover.path:
        yield human(leftover.size)
    if leftover.ports:
        yield f"port{'' if len(leftover.ports) == 1 else 's'} {listed(leftover.ports)}"
    if leftover.segments:
        yield f"{plural(len(leftover.segments), 'segment')} in /dev/shm"
    if leftover.memory:
        yield f"{human(leftover.memory)} of memory"


def of_whom(leftover: Leftover) -> str:
    """ "ann's, for 3 h"."""
    parts = [f"{leftover.owner}'s"] if leftover.owner else []
    if leftover.age is not None:
        parts.append(f"{age(leftover.age)} old")
    if leftover.children:
        parts.append(f"with {plural(len(leftover.children), 'child', 'children')}")
    return ", ".join(parts)


def gathered(leftovers: Sequence[Leftover]) -> list[tuple[Leftover, ...]]:
    """One process by itself, segments of which the same is to be said together."""
    alike = grouped(
        leftovers,
        lambda leftover: (
            (leftover.certainty, leftover.doubts, leftover.owner)
            if leftover.kind is LeftoverKind.SEGMENT
            else leftover.identity or leftover
        ),
    )
    return [tuple(group) for group in alike.values()]


def summed(leftovers: Sequence[Leftover], spots: Sequence[str]) -> str:
    """The last line. spots: where nobody could look."""
    if not leftovers:
        return "Nothing is left over, as far as could be seen." if spots else "Nothing is left over."
    counts = [(sum(leftover.certainty is which for leftover in leftovers), which) for which in Certainty]
    words = {
        Certainty.PROVEN: "proven to be left over",
        Certainty.DOUBT: "in doubt, and left alone",
        Certainty.NOT_OURS: "not yours, and left alone",
    }
    return f"{listed(f'{count} {words[which]}' for count, which in counts if count)}."


# --- for programs -----------------------------------------------------------------------------------------------------------


def zombies_report(
    leftovers: Sequence[Leftover],
    spots: Sequence[str],
    problems: Sequence[str],
    ending: Endings | None,
    verdict: Verdict,
    catalogue: Catalogue,
) -> Report:
    """spots: where nobody could look. ending: what was done, None where nothing was to be. The findings are what is left after that."""
    report = build_report("zombies", [], problems, of_all=verdict)
    settled = {
        leftover_ending.leftover
        for leftover_ending in (ending.all if ending else ())
        if leftover_ending.fate not in (Fate.LEFT, Fate.STAYS)
    }
    left = [leftover for leftover in leftovers if leftover not in settled]
    return msgspec.structs.replace(
        report,
        host=os.uname().nodename,
        findings=tuple(_finding(alike, catalogue) for alike in gathered(left)),
        leftovers=reported_leftovers(leftovers, ending.all if ending else ()),
        not_seen=tuple(spots),
        freed=tuple(ending.freed) if ending else (),
    )


def _finding(alike: Sequence[Leftover], catalogue: Catalogue) -> ReportedFinding:
    """Make one finding of leftovers of which the same is to be said. All fail, as the verdict does: how sure it is stands in the cause."""
    first = alike[0]
    (check,) = catalogue.standing_for(first.kind)
    what = first.what
    if len(alike) > 1:
        what = f"{plural(len(alike), 'segment')} in /dev/shm, {human(sum(leftover.size for leftover in alike))}"
    summary = f"{_SURE[first.certainty]}: {what}"
    details = ", ".join(filter(None, (of_whom(first), f"it holds {held}" if (held := holds(first)) else "")))
    return ReportedFinding(
        slug=check.slug,
        family=check.family,
        severity=FAIL,
        owner=check.owner,
        summary=clip(summary, MOST_SUMMARY),
        cause="; but ".join((f"{first.kind.value}: {first.why}", *first.doubts[:1])),
        evidence=(Evidence(f"{what}{f' ({details})' if details else ''}", "/proc, NVML, /dev/shm"),),
        fixes=tuple(_fixes(alike)),
        docs=check.docs,
    )


def _fixes(alike: Sequence[Leftover]) -> Iterator[Fix]:
    first = alike[0]
    if first.proven:
        yield Fix("End it; it is looked at a second time before", (kill_command(alike),))
    elif first.certainty is Certainty.NOT_OURS:
        yield Fix(f"Ask {first.owner or 'its owner'}, whose it is, whether it is still needed")
    else:
        yield Fix("Look at it first: nobody is certain that it is left over", (first.command,) if first.command else ())
    if first.then:
        yield Fix("If that shows that nobody needs it", (first.then,))


def reported_leftovers(
    leftovers: Iterable[Leftover], endings: Sequence[LeftoverEnding] = ()
) -> tuple[ReportedLeftover, ...]:
    """endings: what became of those that were chosen."""
    fates = {ending.leftover: ending for ending in endings}
    return tuple(_reported(leftover, fates.get(leftover)) for leftover in leftovers)


def _reported(leftover: Leftover, ending: LeftoverEnding | None) -> ReportedLeftover:
    identity = leftover.identity
    return mirror(
        ReportedLeftover,
        leftover,
        pid=identity.pid if identity else None,
        start=identity.start if identity else None,
        children=tuple(child.pid for child in leftover.children),
        fate=ending.fate if ending else UNSET,
        reason=ending.reason if ending else UNSET,
    )
