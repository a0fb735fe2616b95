"""The report of `check`: who was looked at, what is wrong, worst first, then what was not tested, then what was fine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ddpdoctor.base.text import one_line, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict, conclusion, node_names, unless_unjudged
from ddpdoctor.engine.registry import SkipReason
from ddpdoctor.report.check_results import (
    finding_lines,
    more_on,
    passed_section,
    problems_and_warnings,
    result_sections,
)
from ddpdoctor.report.document import Document, LabelledRows, Paragraph, Section, StyledText, verdict_span
from ddpdoctor.report.summary import summary


def check_document(
    examinations: Sequence[Examination], problems: Sequence[str] = (), *, verbose: bool = False, quiet: bool = False
) -> Document:
    """The report for people.

    Args:
        examinations: one of each host.
        problems: why a host's snapshot, or a script, was not judged.
        verbose: what passed and had nothing to test, by name.
        quiet: a line a finding, and the verdict.
    """
    names = [one_line(name) for name in node_names(examinations)]
    hosts = list(zip(names, examinations, strict=True))
    several = len(hosts) > 1
    brief = check_verdict(examinations, problems)
    if quiet:
        lines = [line for name, host in hosts for line in finding_lines(host.findings, f"{name}: " if several else "")]
        unjudged = [(StyledText("not judged  ", "bold magenta"), problem) for problem in problems]
        return msgspec.structs.replace(brief, lines=(*lines, *unjudged))
    sections: list[Section] = []
    for name, host in hosts:
        if several and not verbose and host.conclusion is Verdict.OK:
            sections.append(Section((Paragraph(f"{name}: {_counts(host)}", verdict_span(Verdict.OK), 6),)))
        else:
            sections += _host_sections(host, verbose=verbose)
    unjudged_items = (Paragraph(problem, StyledText("not judged", "bold magenta"), 12) for problem in problems)
    return msgspec.structs.replace(
        brief,
        sections=(*sections, Section(tuple(unjudged_items))),
        folded=tuple(("Settings", text) for host in examinations if (text := _settings(host))),
    )


def check_verdict(examinations: Sequence[Examination], problems: Sequence[str] = ()) -> Document:
    """The whole in one sentence, which never says "fine" of what was not tested; of several hosts, each by name."""
    if not examinations:
        outcome, counts = "No verdict: nothing could be judged", ""
    elif len(examinations) == 1:
        outcome, counts = _outcome(examinations[0]), _counts(examinations[0])
    else:
        hosts = zip(node_names(examinations), examinations, strict=True)
        outcome, counts = "; ".join(f"{one_line(name)}: {_outcome(host)}" for name, host in hosts), ""
    unread = f"{plural(len(problems), 'file')} could not be judged." if problems else ""
    found = [finding for examination in examinations for finding in examination.findings]
    return Document(
        verdict=unless_unjudged(conclusion(examinations), problems),
        outcome=outcome,
        counts=" ".join(filter(None, (counts, unread))),
        hints=more_on(sorted(found, key=lambda finding: finding[1].rank)),
    )


def _host_sections(host: Examination, *, verbose: bool) -> Iterator[Section]:
    yield Section((LabelledRows(tuple((label, one_line(text)) for label, text in summary(host))),))
    yield from result_sections(host, verbose=verbose)
    yield passed_section(host.passed if verbose else ())


def _outcome(host: Examination) -> str:
    if host.verdict is Verdict.UNKNOWN:
        return "No verdict: not a single check could be judged"
    found = " and ".join(problems_and_warnings([severity for _, severity, _ in host.findings]))
    if host.conclusion is Verdict.UNKNOWN:
        unanswered, all_of_them = host.unanswered
        few = f"No verdict: {unanswered} of {all_of_them} checks that had something to look at could not be tested"
        return f"{few}; {found} so far" if found else few
    return found or "Nothing wrong was found"


def _counts(host: Examination) -> str:
    reasons = [result.not_tested.why for result in host.results if result.not_tested]
    idle = reasons.count(SkipReason.NOT_APPLICABLE)
    unknown = len(reasons) - idle
    return f"{plural(len(host.passed), 'check')} passed, {unknown} could not be tested, {idle} had nothing to look at."


def _settings(host: Examination) -> str:
    """The settings of that host, a line each."""
    environment = host.snapshot.environment
    settings = () if isinstance(environment, Unknown) else environment.settings
    return "\n".join(f"{setting.name}={setting.value}" for setting in settings)
