"""The findings of many nodes as one list: what several have in common is said once, with their names in front."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ddpdoctor.base.findings import Evidence, Finding, Fix, Severity
from ddpdoctor.base.text import listed
from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.registry import Check, SkipReason
from ddpdoctor.report.check_results import Found

MAX_NAMED_NODES = 3
MAX_WHOLE_FINDINGS = 4
MAX_FIXES = 3


class _Same(msgspec.Struct):
    """One finding and the nodes that have it, by their place."""

    check: Check
    severity: Severity
    places: list[int]
    findings: list[Finding]


def folded(examinations: Sequence[Examination], names: Sequence[str], *, verbose: bool = False) -> list[Found]:
    """All findings, worst first, each naming its nodes. Of one check that found more than some things only the first are
    whole, the rest is one finding that counts them; `verbose`: all."""
    alike: dict[tuple[str, Severity, str], _Same] = {}
    for place, examination in enumerate(examinations):
        for check, severity, finding in examination.findings:
            key = (check.slug, severity, _without(names[place], finding.summary))
            same = alike.setdefault(key, _Same(check, severity, [], []))
            same.places.append(place)
            same.findings.append(finding)
    by_check: dict[tuple[str, Severity], list[_Same]] = {}
    for same in alike.values():
        by_check.setdefault((same.check.slug, same.severity), []).append(same)
    found: list[Found] = []
    for sames in by_check.values():
        whole = len(sames) if verbose or len(sames) <= MAX_WHOLE_FINDINGS else MAX_WHOLE_FINDINGS - 1
        found += [(same.check, same.severity, _named(same, names)) for same in sames[:whole]]
        if sames[whole:]:
            found.append((sames[0].check, sames[0].severity, _counted(sames[whole:], names, found[-1][2])))
    return sorted(found, key=lambda finding: finding[1].rank)


def on(places: Sequence[int], names: Sequence[str]) -> str:
    """ "n1, n4 and 12 more", "all 8 nodes"."""
    chosen = list(dict.fromkeys(places))
    if len(chosen) == len(names) > 2:
        return f"all {len(names)} nodes"
    return listed((names[place] for place in chosen), MAX_NAMED_NODES)


def reasons(examinations: Sequence[Examination], names: Sequence[str]) -> dict[str, list[str]]:
    """Why checks crashed or could not be judged, to their slugs; a reason that isn't every node's names its nodes."""
    nodes: dict[tuple[str, str], list[int]] = {}
    for wanted in (SkipReason.CRASHED, SkipReason.UNKNOWN):
        for place, examination in enumerate(examinations):
            for result in examination.results:
                if result.not_tested is not None and result.not_tested.why is wanted:
                    nodes.setdefault((result.not_tested.reason, result.check.slug), []).append(place)
    slugs: dict[str, list[str]] = {}
    for (reason, slug), places in nodes.items():
        where = "" if len(places) == len(names) else f" (on {on(places, names)})"
        slugs.setdefault(reason + where, []).append(slug)
    return slugs


def idle_everywhere(examinations: Sequence[Examination]) -> dict[str, list[str]]:
    """Why checks had nothing to look at on any node, to their slugs: the first node's reason."""
    idle = [
        {
            result.check.slug: result.not_tested.reason
            for result in examination.results
            if result.not_tested is not None and result.not_tested.why is SkipReason.NOT_APPLICABLE
        }
        for examination in examinations
    ]
    slugs: dict[str, list[str]] = {}
    for slug, reason in idle[0].items() if idle else ():
        if all(slug in reasons_of_node for reasons_of_node in idle):
            slugs.setdefault(reason, []).append(slug)
    return slugs


def passed_everywhere(examinations: Sequence[Examination]) -> list[str]:
    """The slugs that passed on every node."""
    sets = [set(examination.passed) for examination in examinations]
    return [slug for slug in examinations[0].passed if all(slug in passed for passed in sets)] if sets else []


def _without(name: str, summary: str) -> str:
    """The summary without the node's own name, by which alone those of two nodes may differ."""
    return _word(name).sub("\0", summary)


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(name.partition(' (')[0])}(?![\w-])")


def _named(same: _Same, names: Sequence[str]) -> Finding:
    """The first node's finding, with the names of all of them."""
    first, places = same.findings[0], same.places
    if len(names) == 1:
        return first
    evidence = first.evidence
    summary = first.summary
    if _names_a_node(summary, places[0], names):
        if len(places) > 1:
            evidence = (Evidence(f"the same on {on(places[1:], names)}"), *evidence)
    else:
        summary = f"{on(places, names)}: {summary}"
        if len(places) > 1 and evidence:
            evidence = (Evidence(f"on {names[places[0]]}:"), *evidence)
    return msgspec.structs.replace(first, summary=summary, evidence=evidence, fixes=_fixes(same, names))


def _names_a_node(summary: str, place: int, names: Sequence[str]) -> bool:
    """Whether it says by itself whom it is about: its own node, its rank where a node is one, or (node 0 speaks for those that
    are not there) another."""
    if _word(names[place]).search(summary):
        return True
    own_rank = re.search(r" \(rank (\d+)\)$", names[place])
    if own_rank and re.search(r"\branks? \d" if place == 0 else rf"\branks? {own_rank[1]}\b", summary):
        return True
    return place == 0 and bool(re.search(r"\bnodes? \d", summary) or any(_word(name).search(summary) for name in names))


def _fixes(same: _Same, names: Sequence[str]) -> tuple[Fix, ...]:
    """Once what is the same everywhere; where they differ each with its node, the first few."""
    differing: dict[tuple[Fix, ...], list[int]] = {}
    for place, finding in zip(same.places, same.findings, strict=True):
        differing.setdefault(finding.fixes, []).append(place)
    if len(differing) == 1:
        return same.findings[0].fixes
    fixes = [
        msgspec.structs.replace(fix, text=f"On {on(places, names)}: {fix.text}")
        for group, places in list(differing.items())[:MAX_FIXES]
        for fix in group
    ]
    if len(differing) > MAX_FIXES:
        fixes.append(Fix(f"Likewise on the other {sum(map(len, list(differing.values())[MAX_FIXES:]))}"))
    return tuple(fixes)


def _counted(sames: Sequence[_Same], names: Sequence[str], before: Finding) -> Finding:
    """The rest of what one check found, in a line."""
    places = [place for same in sames for place in same.places]
    summary = f"{len(sames)} more of this kind, on {on(places, names)}; -v shows each"
    return Finding(summary, before.cause)
