"""A sweep as a `Document`: who was looked at, what the checks found and on which hosts, and the odd ones out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import clip, clip_middle, listed, one_line, plural
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.fleet_sweep.changes import ChangeKind
from ddpdoctor.fleet_sweep.comparison import CLOCK, AlikeGroup, OddFact, is_item, shown_value
from ddpdoctor.fleet_sweep.outcome import FleetOutcome, hosts_text
from ddpdoctor.fleet_sweep.sweep import FleetFinding, counts
from ddpdoctor.report.document import (
    STYLES,
    Block,
    Column,
    Document,
    Paragraph,
    Row,
    Section,
    StyledText,
    Table,
    ToldFinding,
    Words,
)

HOSTS_CHARACTERS: Final = 120
VALUE_CHARACTERS: Final = 60
PATH_CHARACTERS: Final = 100
MAX_ROWS: Final = 25
"""Of one table; -v shows all."""
MAX_PROBLEMS: Final = 20
SOURCES_SHOWN: Final = 3
"""Of those of which the same is said."""
BASELINE: Final = "in the baseline"
BASELINE_FACTS: Final = 3
"""That the last line names."""
SETUP_FACTS: Final = 8

_NOT_JUDGED: Final = StyledText("not judged", "bold magenta")

Renamed = Callable[[str], str]

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def fleet_document(
    outcome: FleetOutcome,
    catalogue: Catalogue,
    *,
    verbose: bool = False,
    quiet: bool = False,
    renamed: dict[str, str] | None = None,
) -> Document:
    """The report for people.

    Args:
        outcome: what there is to tell.
        catalogue: of all checks.
        verbose: all rows, and each finding with its evidence and fixes.
        quiet: a line a finding and an odd fact, and the verdict.
        renamed: what hosts are called in a report that is not to name them.
    """
    writer = _Writer(outcome, catalogue, verbose=verbose, renamed=renamed or {})
    return Document(
        verdict=outcome.verdict,
        rows=() if quiet else tuple(writer.rows()),
        sections=() if quiet else tuple(writer.sections()),
        lines=tuple(writer.lines()) if quiet else (),
        outcome=writer.outcome(),
        counts=writer.counts(),
        hints=() if quiet else tuple(writer.hints()),
    )


class _Writer:
    def __init__(self, outcome: FleetOutcome, catalogue: Catalogue, *, verbose: bool, renamed: dict[str, str]) -> None:
        self._outcome = outcome
        self._catalogue = catalogue
        self._verbose = verbose
        self._renamed = renamed

    # --- words ---

    def _hosts(self, names: Sequence[str]) -> str:
        return hosts_text([self._renamed.get(name, name) for name in names], 0 if self._verbose else HOSTS_CHARACTERS)

    def _text(self, text: str) -> str:
        """A text in which hosts may be named."""
        if not self._renamed:
            return one_line(text)
        return one_line(_NAME.sub(self._rename, text))

    def _rename(self, found: re.Match[str]) -> str:
        word = found[0]
        first, dot, rest = word.partition(".")
        return self._renamed.get(word) or f"{self._renamed.get(first, first)}{dot}{rest}"

    # --- the whole ---

    def rows(self) -> Iterator[tuple[str, Words]]:
        hosts = self._outcome.sweep.hosts
        yield "hosts", f"{plural(len(hosts), 'host')} out of {plural(self._outcome.sweep.read, 'snapshot')}"
        for group in self._outcome.groups[:MAX_ROWS]:
            yield "alike", f"{group.label}: {plural(len(group.hosts), 'host')}, {self._hosts(group.hosts)}"

    def outcome(self) -> str:
        hosts = self._outcome.sweep.hosts
        others = self._without_verdict()
        if not hosts:
            nothing = "No host could be judged" if self._outcome.absent else "No verdict: nothing could be judged"
            return "; ".join([nothing, *others])
        tally = counts(hosts)
        parts = [
            f"{tally[verdict]:,} {words if tally[verdict] == 1 else words_of_several}"
            for verdict, words, words_of_several in (
                (Verdict.FAIL, "fails", "fail"),
                (Verdict.UNKNOWN, "has no verdict", "have no verdict"),
                (Verdict.WARN, "has warnings", "have warnings"),
                (Verdict.OK, "is without findings", "are without findings"),
            )
            if tally[verdict]
        ]
        if self._outcome.odd_hosts:
            odd = len(self._outcome.odd_hosts)
            parts.append(
                f"{odd:,} {'differs' if odd == 1 else 'differ'} from hosts like {'it' if odd == 1 else 'them'}"
            )
        judged = f"Of {plural(len(hosts), 'host')} {', '.join(parts)}"
        return "; ".join([judged, *self._against_baseline(), *others])

    def _against_baseline(self) -> Iterator[str]:
        if self._outcome.held is None:
            return
        if deviating := self._outcome.deviating:
            paths = dict.fromkeys(
                clip_middle(path, VALUE_CHARACTERS) for of_host in deviating.values() for path in of_host
            )
            differ = "differs" if len(deviating) == 1 else "differ"
            yield f"{len(deviating):,} {differ} from the baseline: {listed(map(self._text, paths), BASELINE_FACTS)}"
        if self._outcome.not_held:
            yield f"{len(self._outcome.not_held):,} could not be held against the baseline"
        if not deviating and not self._outcome.not_held:
            yield "none differs from the baseline"

    def _without_verdict(self) -> Iterator[str]:
        more = " more" if self._outcome.sweep.hosts else ""
        silent, _ = self._silent_and_unread()
        if silent:
            yield f"{len(silent):,}{more} did not answer"
        if self._outcome.unjudged:
            yield f"{len(self._outcome.unjudged):,}{more} could not be read"

    def _silent_and_unread(self) -> tuple[list[str], list[str]]:
        """The absent hosts of which nothing came, and those of which something did."""
        unjudged = set(self._outcome.unjudged)
        silent = [name for name in self._outcome.absent if name not in unjudged]
        return silent, [name for name in self._outcome.absent if name in unjudged]

    def counts(self) -> str:
        problems = len(self._outcome.problems) + max(0, self._outcome.sweep.unnamed_problems - 1)
        return f"{plural(problems, 'problem')} with what was read." if problems else ""

    def hints(self) -> Iterator[Words]:
        if names := sorted(self._outcome.exclusions):
            clipped = (
                "" if self._verbose or len(hosts_text(names)) <= HOSTS_CHARACTERS else "; --nodes-out . writes all"
            )
            yield f"Put no job on: {self._hosts(names)}{clipped}"
        worst = next(iter(self._outcome.by_finding), None)
        if worst and worst[0].severity is not Severity.INFO:
            yield f"More on the first: ddpdoctor explain {worst[0].slug}"
            host = self._outcome.sweep.hosts[worst[1][0]]
            if host.source and " " not in host.source and not self._renamed:
                yield f"One host in full: ddpdoctor check --snapshot {host.source}"

    def lines(self) -> Iterator[Words]:
        if self._outcome.absent:
            yield StyledText("FAIL  ", STYLES[Severity.FAIL]), f"no answer from {self._hosts(self._outcome.absent)}"
        for found, names in self._outcome.by_finding:
            yield (
                StyledText(f"{found.severity.value.upper():<6}", STYLES[found.severity]),
                f"{found.slug}: {self._hosts(names)}: {self._text(found.finding.summary)}",
            )
        for fact in self._outcome.held.deviations if self._outcome.held else ():
            yield StyledText("FAIL  ", STYLES[Severity.FAIL]), f"baseline: {self._odd_words(fact, BASELINE)}"
        for why, names in grouped(self._outcome.not_held, self._outcome.not_held.__getitem__).items():
            yield _NOT_JUDGED, f"  {self._hosts(names)}: {self._text(why)}"
        for group in self._outcome.groups:
            for fact in group.odd:
                yield StyledText("ODD   ", STYLES[Severity.WARN]), self._odd_words(fact)
        for problem in self._folded_problems():
            yield _NOT_JUDGED, f"  {self._text(problem)}"

    def sections(self) -> Iterator[Section]:
        yield self._answers()
        yield from self._findings()
        yield from self._baseline()
        for group in self._outcome.groups:
            yield from self._group(group)
        yield from self._since()
        yield self._problems()

    # --- parts ---

    def _answers(self) -> Section:
        blocks: list[Block] = []
        silent, unread = self._silent_and_unread()
        for names, words in ((silent, "did not answer"), (unread, "sent no snapshot that could be read")):
            if names:
                text = f"{plural(len(names), 'host')} {words}: {self._hosts(names)}"
                blocks.append(Paragraph(text, StyledText("FAIL", STYLES[Severity.FAIL]), 6))
        if unexpected := self._outcome.unexpected:
            text = f"{plural(len(unexpected), 'host')} answered that nobody expected: {self._hosts(unexpected)}"
            blocks.append(Paragraph(text, StyledText("INFO", STYLES[Severity.INFO]), 6))
        if why := self._why_nobody_expected():
            blocks.append(Paragraph(why, StyledText("INFO", STYLES[Severity.INFO]), 6))
        return Section(tuple(blocks))

    def _why_nobody_expected(self) -> str:
        """The likeliest slip in the list of expected hosts, where others answered in their place."""
        outcome = self._outcome
        if not outcome.unexpected:
            return ""
        if outcome.other_domains:
            name, other = next(iter(outcome.other_domains.items()))
            more = len(outcome.other_domains) - 1
            alike = f" (and {plural(more, 'more host')} alike)" if more else ""
            text = f"{name} was expected, and {other} answered{alike}: if both are one, write the names in --expect as the hosts' own `hostname` prints them"
        elif outcome.no_file in outcome.absent:
            text = f"there is no file {outcome.no_file}, so --expect took it for the name of a host"
        elif outcome.expected and len(outcome.absent) == len(set(outcome.expected)):
            text = "not one of the hosts that answered is in --expect: is that the list of another partition, cluster or job?"
        else:
            return ""
        return self._text(text)

    def _findings(self) -> Iterator[Section]:
        found = self._outcome.by_finding
        shown = found if self._verbose else found[:MAX_ROWS]
        if not shown:
            return
        rows = tuple(
            Row(
                (StyledText(finding.severity.value.upper(), STYLES[finding.severity]), f"{len(names):,}"),
                (StyledText(finding.slug, "bold"), f": {self._hosts(names)}: {self._summary(finding, names)}"),
            )
            for finding, names in shown
        )
        columns = (Column(""), Column("hosts", right=True))
        yield Section((Table(columns, rows, 0), *_more(len(found) - len(shown))), "What the checks found")
        if self._verbose:
            for finding, names in found:
                if check := self._catalogue.get(finding.slug):
                    cause = finding.finding.cause or check.section("Why")
                    where = Paragraph(f"on {self._hosts(names)}; in the words of {self._text(finding.host)}:")
                    yield Section((where, ToldFinding(check, finding.severity, finding.finding, cause)))

    def _summary(self, found: FleetFinding, names: Sequence[str]) -> str:
        summary = self._text(found.finding.summary)
        if len(names) > 1:
            summary = summary.replace(self._renamed.get(found.host, found.host), "HOST")
        return summary

    def _baseline(self) -> Iterator[Section]:
        held = self._outcome.held
        if held is None:
            return
        blocks: list[Block] = []
        if held.deviations:
            blocks.append(self._fact_table(held.deviations, BASELINE))
        if held.unknown:
            hosts = sorted({name for fact in held.unknown for name in fact.hosts})
            text = f"Unknown on {self._hosts(hosts)}, so that nobody can say: {_paths(held.unknown)}"
            blocks.append(Paragraph(text, _NOT_JUDGED, 12))
        if held.without:
            blocks.append(Paragraph(self._without(held.without), _NOT_JUDGED, 12))
        if not blocks:
            blocks.append(Paragraph("Every host has it as the baseline has it."))
        yield Section(tuple(blocks), "Against the baseline")

    def _without(self, names: Sequence[str]) -> str:
        return (
            f"The baseline has no word of hosts like these: {self._hosts(names)}; take one that was saved of such hosts, with the same "
            "--group-by"
        )

    def _group(self, group: AlikeGroup) -> Iterator[Section]:
        blocks: list[Block] = []
        if len(group.hosts) == 1:
            yield Section((Paragraph(f"{group.label}: no other host is like it, so nothing was compared.", ""),))
            return
        if group.odd:
            blocks.append(self._fact_table(group.odd))
        by_path: dict[str, list[OddFact]] = {}
        for fact in group.undecided:
            by_path.setdefault(fact.path, []).append(fact)
        for path, facts in list(by_path.items())[: None if self._verbose else MAX_ROWS]:
            values = "; ".join(f"{_value(fact)} on {self._hosts(fact.hosts)}" for fact in facts)
            blocks.append(Paragraph(f"{path}: no value has a majority: {values}", "", 0, 2))
        if group.unknown:
            blocks.append(Paragraph(f"Known on some hosts only: {_paths(group.unknown)}", "", 0, 2))
        if self._verbose and group.different:
            text = f"Different on nearly every host, so that nothing follows: {', '.join(group.different)}"
            blocks.append(Paragraph(text, "", 0, 2))
        if not blocks:
            blocks.append(Paragraph(f"All {plural(group.compared, 'fact')} are the same.", "", 0, 2))
        yield Section(tuple(blocks), f"The odd ones out of {plural(len(group.hosts), 'host')} with {group.label}")

    def _fact_table(self, facts: Sequence[OddFact], standard: str = "") -> Table:
        shown = facts if self._verbose else facts[:MAX_ROWS]
        rows = [Row((f"{len(fact.hosts):,}",), self._odd_words(fact, standard)) for fact in shown]
        if len(facts) > len(shown):
            rest = facts[len(shown) :]
            hosts = sorted({name for fact in rest for name in fact.hosts})
            rows.append(Row((f"{len(hosts):,}",), f"{len(rest):,} more facts, on {self._hosts(hosts)}; -v shows each"))
        return Table((Column("hosts", right=True),), tuple(rows), 0)

    def _odd_words(self, fact: OddFact, standard: str = "") -> str:
        path = fact.path if self._verbose else clip_middle(fact.path, PATH_CHARACTERS)
        return f"{self._text(path)}: {self._hosts(fact.hosts)}: {self._text(_difference(fact, standard))}"

    def _since(self) -> Iterator[Section]:
        changes = self._outcome.changes
        if changes is None:
            return
        styles = {ChangeKind.FAULT: "bold red", ChangeKind.HEALED: "bold green", ChangeKind.GONE: "bold red"}
        rows = []
        for change in changes[: None if self._verbose else MAX_ROWS]:
            values = ""
            if change.kind is ChangeKind.FACT:
                values = f": {_shown(change.before)} before, {_shown(change.after)} now"
            rows.append(
                Row(
                    (StyledText(change.kind.value, styles.get(change.kind, "")), f"{len(change.hosts):,}"),
                    f"{self._text(change.what)}{': ' if change.what else ''}{self._hosts(change.hosts)}{self._text(values)}",
                )
            )
        columns = (Column(""), Column("hosts", right=True))
        blocks: tuple[Block, ...] = (
            (Table(columns, tuple(rows), 0), *_more(len(changes) - len(rows))) if rows else (Paragraph("Nothing."),)
        )
        yield Section(blocks, "What changed since the last sweep")

    def _folded_problems(self) -> Sequence[str]:
        """The problems; what is said of many sources in the same words once."""
        problems: list[str] = []
        for reason, alike in grouped(self._outcome.problems, _reason).items():
            if not reason or len(alike) <= SOURCES_SHOWN:
                problems += alike
            else:
                sources = [problem.removesuffix(f": {reason}") for problem in alike]
                problems.append(
                    f"{', '.join(sources[:SOURCES_SHOWN])} and {len(sources) - SOURCES_SHOWN:,} more: {reason}"
                )
        return problems

    def _problems(self) -> Section:
        problems = self._outcome.problems if self._verbose else self._folded_problems()
        shown = problems if self._verbose else problems[:MAX_PROBLEMS]
        return Section(
            (
                *(Paragraph(self._text(problem), _NOT_JUDGED, 12) for problem in shown),
                *_more(len(problems) - len(shown)),
            )
        )


def _reason(problem: str) -> str:
    """What is said of the source that a problem begins with."""
    return problem.partition(": ")[2]


def _more(count: int) -> tuple[Block, ...]:
    return (Paragraph(f"and {count:,} more; -v shows each", "", 0, 2),) if count > 0 else ()


def _paths(facts: Sequence[OddFact]) -> str:
    paths = list(dict.fromkeys(fact.path for fact in facts))
    more = f" and {len(paths) - SETUP_FACTS} more" if len(paths) > SETUP_FACTS else ""
    return f"{', '.join(paths[:SETUP_FACTS])}{more}"


def _shown(value: str) -> str:
    return clip(shown_value(value), VALUE_CHARACTERS)


def _value(fact: OddFact) -> str:
    return _shown(fact.value)


def _difference(fact: OddFact, standard: str = "") -> str:
    """What a host has, and what those like it have, or what the standard does that it is held against."""
    expected = fact.expected or ""
    if fact.path == CLOCK:
        return f"taken at {_value(fact)}, most at about {_shown(expected)}: an old snapshot, or a wrong clock"
    here, others = shown_value(fact.value), shown_value(expected)
    where = standard or f"on {fact.agreeing:,} of {fact.of:,}"
    if is_item(fact.path) or "present" in (fact.value, expected):
        return f"{here}, not {others} as {where}"
    if fact.value[:1] == expected[:1] == "[":
        mine, theirs = here.split(", "), others.split(", ")
        lacking = [word for word in theirs if word not in mine]
        besides = [word for word in mine if word not in theirs]
        parts = [f"lacks {clip(', '.join(lacking), VALUE_CHARACTERS)}"] if lacking and lacking != ["none"] else []
        parts += (
            [f"has {clip(', '.join(besides), VALUE_CHARACTERS)} besides"] if besides and besides != ["none"] else []
        )
        if parts:
            return f"{' and '.join(parts)}, other than {where}"
    return f"{clip(here, VALUE_CHARACTERS)}, not {clip(others, VALUE_CHARACTERS)} as {where}"
