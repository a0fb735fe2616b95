"""The report of `zombies` as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from ddpdoctor.base.findings import FAIL, Evidence, Fix
from ddpdoctor.base.text import clip, human, plural
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverEnding
from ddpdoctor.processes.leftovers.leftover import Leftover, kill_command
from ddpdoctor.processes.zombies_words import gathered, holds, of_whom
from ddpdoctor.report.contract import Report, ReportedFinding, build_report
from ddpdoctor.report.reported_leftovers import Certainty, Fate, ReportedLeftover

LONGEST_SUMMARY: Final = 160


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
    """Of leftovers of which the same is to be said. All fail, as the verdict does: how sure it is stands in the cause."""
    first = alike[0]
    (check,) = catalogue.standing_for(first.kind)
    what = first.what
    if len(alike) > 1:
        what = f"{plural(len(alike), 'segment')} in /dev/shm, {human(sum(one.size for one in alike))}"
    summary = f"{_SURE[first.certainty]}: {what}"
    details = ", ".join(filter(None, (of_whom(first), f"it holds {held}" if (held := holds(first)) else "")))
    return ReportedFinding(
        slug=check.slug,
        family=check.family,
        severity=FAIL,
        summary=clip(summary, LONGEST_SUMMARY),
        cause="; but ".join((f"{first.kind.value}: {first.why}", *first.doubts[:1])),
        evidence=(Evidence(f"{what}{f' ({details})' if details else ''}", "/proc, NVML, /dev/shm"),),
        fixes=tuple(_fixes(alike)),
        docs=check.docs,
    )


_SURE: Final = {
    Certainty.PROVEN: "left over",
    Certainty.DOUBT: "perhaps left over",
    Certainty.NOT_OURS: "perhaps left over, and not yours",
}


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


def _reported(one: Leftover, ending: LeftoverEnding | None) -> ReportedLeftover:
    return ReportedLeftover(
        kind=one.kind,
        certainty=one.certainty,
        what=one.what,
        why=one.why,
        doubts=one.doubts,
        command=one.command,
        owner=one.owner,
        age=one.age,
        pid=one.identity.pid if one.identity else None,
        start=one.identity.start if one.identity else None,
        children=tuple(child.pid for child in one.children),
        path=one.path,
        size=one.size,
        memory=one.memory,
        gpus=one.gpus,
        gpu_memory=one.gpu_memory,
        ports=one.ports,
        segments=one.segments,
        fate=ending.fate if ending else UNSET,
        reason=ending.reason if ending else UNSET,
    )
