"""What the checks make of a log: a finding for each suspect, held against the facts of a host where there are any."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix, Severity
from ddpdoctor.base.text import clip, listed
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.explanations import Explanation
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.engine.registry import Catalogue, Check, Result, diagnose
from ddpdoctor.facts.log import Log, LoggedStack, LogLine, SignMatch
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.attempts import attempts_of
from ddpdoctor.logs.analyze.deciding_commands import deciding
from ddpdoctor.logs.analyze.good_runs import RunComparison
from ddpdoctor.logs.analyze.illness_traits import by_log_alone
from ddpdoctor.logs.analyze.kernel_kills import of_this_log
from ddpdoctor.logs.analyze.settings import as_the_log_names, looked_at
from ddpdoctor.logs.analyze.sightings import lines, named, own_line, stack_lines
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, Suspect, verdict_of
from ddpdoctor.logs.parse.labels import TASK

VERDICTS: Final = {
    RunOutcome.ILLNESS: Verdict.FAIL,
    RunOutcome.USER_ERROR: Verdict.FAIL,
    RunOutcome.STOPPED: Verdict.FAIL,
    RunOutcome.NOTHING: Verdict.OK,
    RunOutcome.UNRECOGNISED: Verdict.UNKNOWN,
    RunOutcome.EFFECTS_ONLY: Verdict.UNKNOWN,
}


INSTALLED: Final = frozenset({"packages", "torch", "extensions", "target_python"})
"""Facts that stay as they are: memory, disks, ports, processes, links, settings and even devices come and go, or are others elsewhere."""


NEAR_STACK: Final = 60
"""Lines between an error and the stack that its process then writes: C++ stacks, and what Python lists of modules."""


class HostVerdict(Enum):
    """The result of holding a suspicion against a host's facts. Contradicted is one that lasting facts of the very
    Python speak against; that others show no sign of it leaves it open."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOT_CONFIRMED = "not confirmed"
    NOT_TESTED = "not tested"


class HostCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A suspicion held against the facts of a host. words: a sentence for the reader. found: what the check itself found there."""

    slug: str
    standing: HostVerdict
    words: str
    found: Finding | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A suspect with its check and its finding. held: None where no host was looked at."""

    suspect: Suspect
    check: Check
    finding: Finding
    held: HostCheck | None = None


class LogJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """A log judged; of several attempts, what it says of the one that the verdict is on. opinions: on the suspects, the likeliest first; also: on illnesses that this failure doesn't come from."""

    log: Log
    verdict: LogVerdict
    examination: Examination
    catalogue: Catalogue
    """The checks by which it was judged."""
    opinions: tuple[Diagnosis, ...] = ()
    also: tuple[Diagnosis, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    """What in the run's script may have brought it about, where that was looked at."""
    comparison: RunComparison | None = None
    """The run beside good ones, where there are some."""

    @property
    def cause_in_script(self) -> Explanation | None:
        """What in the script certainly breaks, and explains it."""
        return next((found for found in self.explanations if found.severity is FAIL), None)

    @property
    def names_no_cause(self) -> bool:
        """Whether all that is known is what followed, and the script doesn't tell what it followed from either."""
        return self.verdict.outcome is RunOutcome.EFFECTS_ONLY and self.cause_in_script is None

    @property
    def stops_without_a_word(self) -> bool:
        """Whether nothing in it speaks of a failure, and yet it stops before what good runs go on with."""
        nothing = self.verdict.outcome is RunOutcome.NOTHING
        return nothing and self.comparison is not None and self.comparison.ends_early

    @property
    def new_before_it(self) -> LogLine | None:
        """Where the failure itself says nothing of why: the first line of before, in no good run, that speaks of something bad."""
        lead = self.verdict.lead
        if self.comparison is None or self.verdict.raised or lead is None:
            return None
        return next((line for line in self.comparison.new_errors if line.order < lead.order), None)

    @property
    def word(self) -> Verdict:
        """The exit code follows from it. A warning where nothing says that the run failed."""
        word = VERDICTS[self.verdict.outcome]
        if self.stops_without_a_word:
            return Verdict.UNKNOWN
        if self.verdict.outcome is RunOutcome.EFFECTS_ONLY and self.cause_in_script:
            return Verdict.FAIL
        return Verdict.WARN if word is Verdict.FAIL and self.verdict.ended_well else word


def judge_log(
    log: Log,
    catalogue: Catalogue,
    host: Snapshot | None = None,
    *,
    watched: bool = False,
    comparison: RunComparison | None = None,
) -> LogJudgement:
    """Judge a log.

    Args:
        log: of one run.
        catalogue: the checks to judge it by.
        host: the snapshot that the suspicions are held against.
        watched: the snapshot holds what happened during the run, and not before it.
        comparison: of the same run with good ones; the log is then without what stands in those, too.
    """
    whole = redact_facts(log)
    verdict = verdict_of(whole, catalogue)
    log = next((attempt for attempt in attempts_of(whole) if attempt.attempt == verdict.attempt), whole)
    snapshot = msgspec.structs.replace(host or Snapshot(host=""), log=log)
    helds = (
        {host_check.slug: host_check for host_check in confirm(verdict, snapshot, catalogue, watched=watched)}
        if host
        else {}
    )
    opinions = [
        each
        for suspect in _told_apart(verdict)
        if (each := _opinion(suspect, snapshot, catalogue, helds.get(suspect.slug)))
    ]
    told = tuple(
        _with_own_line(opinion, verdict, log) for opinion in sorted(opinions, key=lambda opinion: _place(opinion.held))
    )
    beside = tuple(each for suspect in verdict.also if (each := _opinion(suspect, snapshot, catalogue, None)))
    results = tuple(
        Result(one.check, (msgspec.structs.replace(one.finding, severity=_severity(number, one, beside, verdict)),))
        for number, one in enumerate((*told, *beside))
    )
    return LogJudgement(
        log=log,
        verdict=verdict,
        examination=Examination(msgspec.structs.replace(snapshot, log=whole), plan_for(snapshot, None), results),
        catalogue=catalogue,
        opinions=told,
        also=beside,
        comparison=comparison,
    )


def _told_apart(verdict: LogVerdict) -> list[Suspect]:
    """Drop suspects that rest on the same lines for the same reason as one before: nothing would tell the two apart."""
    different: list[Suspect] = []
    for suspect in verdict.suspects:
        if not any((suspect.why, suspect.sightings) == (other.why, other.sightings) for other in different):
            different.append(suspect)
    return different


def _with_own_line(opinion: Diagnosis, verdict: LogVerdict, log: Log) -> Diagnosis:
    """Add the line of the script by which the failure that leads came to it."""
    raised, finding = verdict.raised, opinion.finding
    if raised is None and (stack := _stack_near(opinion.suspect, log)):
        evidence = (*stack_lines(log, stack), *finding.evidence)
        return msgspec.structs.replace(opinion, finding=msgspec.structs.replace(finding, evidence=evidence))
    if raised is None or raised.own is None or LogTopic.MISTAKE in opinion.check.stands_for:
        return opinion
    began, last = raised.began.number, raised.line.number
    of_it = [sighting.line for sighting in opinion.suspect.sightings if sighting.line.file == raised.line.file]
    if not any(began <= log_line.number <= last and log_line.rank == raised.line.rank for log_line in of_it):
        return opinion
    place = own_line(log, raised)
    return msgspec.structs.replace(
        opinion, finding=msgspec.structs.replace(finding, evidence=(*place, *finding.evidence))
    )


def _stack_near(suspect: Suspect, log: Log) -> LoggedStack | None:
    """Find the stack that the process wrote with those words, as it was aborted or crashed."""
    for sighting in suspect.sightings:
        for stack in log.stacks:
            apart = stack.line.number - sighting.line.number
            same = (stack.line.file, stack.line.rank) == (sighting.line.file, sighting.line.rank)
            if same and -NEAR_STACK <= apart <= NEAR_STACK:
                return stack
    return None


def groups_that_decide(log: Log, catalogue: Catalogue) -> set[str]:
    """Name the facts of a host that the suspicions are to be held against; none where only the log can tell."""
    known = [check for suspect in verdict_of(log, catalogue).suspects if (check := catalogue.get(suspect.slug))]
    return set().union(*(check.groups for check in known if not by_log_alone(check)))


def confirm(
    verdict: LogVerdict, snapshot: Snapshot, catalogue: Catalogue, *, watched: bool = False
) -> tuple[HostCheck, ...]:
    """Judge each suspect by the facts of a host."""
    helds = []
    for suspect in verdict.suspects:
        if check := catalogue.get(suspect.slug):
            facts = as_the_log_names(snapshot, suspect.sightings, catalogue)
            (result,) = diagnose(facts, plan_for(facts, None), [check])
            of_log = _of_log(suspect, result, facts, watched)
            helds.append(_held(suspect, result, of_log, facts, _hosts(suspect, verdict, snapshot)))
    return tuple(helds)


def _of_log(suspect: Suspect, result: Result, snapshot: Snapshot, watched: bool) -> Finding | None:
    """Return what the check finds in those facts alone of which the log may speak."""
    log = Log() if isinstance(snapshot.log, Unknown) else snapshot.log
    ahead = float(time.localtime().tm_gmtoff)
    fitting = of_this_log(snapshot, log, suspect.sightings, ahead=ahead, watched=watched)
    if fitting == snapshot:
        return _found(result)
    return _found(*diagnose(fitting, plan_for(fitting, None), [result.check]))


def _found(result: Result) -> Finding | None:
    return next((finding for finding in result.findings if _counts(finding, result.check)), None)


def _held(
    suspect: Suspect, result: Result, of_log: Finding | None, snapshot: Snapshot, hosts: Sequence[str]
) -> HostCheck:
    """Hold a suspect against a host's facts. of_log: what was found that fits the log. hosts: of which it speaks."""
    slug, here = suspect.slug, snapshot.host or "this host"
    if by_log_alone(result.check):
        return HostCheck(
            slug=slug, standing=HostVerdict.NOT_TESTED, words="only a log shows it; no host's facts can decide it"
        )
    found = of_log or _found(result)
    other = hosts[0] if hosts and snapshot.host and not _among(snapshot.host, hosts) else ""
    if found and other:
        words = f"{here} has it too: {found.summary}; but the log speaks of {other}"
        return HostCheck(slug=slug, standing=HostVerdict.NOT_TESTED, words=words, found=found)
    if found and (object_named := other_than_named(found, suspect.sightings)):
        words = f"{here} has this: {found.summary}; but the log speaks of {object_named}"
        return HostCheck(slug=slug, standing=HostVerdict.NOT_TESTED, words=words, found=found)
    if of_log:
        words = f"the log says {slug}, and so does {here}: {of_log.summary}"
        return HostCheck(slug=slug, standing=HostVerdict.CONFIRMED, words=words, found=of_log)
    if found:
        words = f"it may be: {found.summary}; but neither process nor time shows that the log speaks of that"
        return HostCheck(slug=slug, standing=HostVerdict.NOT_TESTED, words=words, found=found)
    if other:
        words = f"the log speaks of {other}, and this is {here}: run it there"
        return HostCheck(slug=slug, standing=HostVerdict.NOT_TESTED, words=words)
    looked = looked_at(snapshot, suspect.sightings, result.check.catalogue)
    if result.not_tested:
        words = f"{result.not_tested.reason}; looked at {here}: {looked}" if looked else result.not_tested.reason
        return HostCheck(slug=slug, standing=HostVerdict.NOT_TESTED, words=words)
    if len(hosts) > 1:
        words = f"{here} shows no sign of it; the log speaks of {listed(hosts)}, and doesn't tell which of them it is"
        return HostCheck(slug=slug, standing=HostVerdict.NOT_TESTED, words=words)
    if result.check.groups <= INSTALLED and _ran_in(snapshot):
        words = f"nothing that is installed on {here} shows a sign of it"
        return HostCheck(slug=slug, standing=HostVerdict.CONTRADICTED, words=words)
    seen = f": {looked}" if looked else ""
    words = f"{here} shows no sign of it now{seen}; it may have been otherwise while the run went on, or lie elsewhere"
    return HostCheck(slug=slug, standing=HostVerdict.NOT_CONFIRMED, words=words)


def _ran_in(snapshot: Snapshot) -> bool:
    """Whether the log's tracebacks go through the packages of the Python that was looked at."""
    log, target_python = snapshot.log, snapshot.target_python
    if isinstance(log, Unknown) or isinstance(target_python, Unknown):
        return False
    folders = tuple(f"{site_package}/" for site_package in target_python.site_packages)
    return any(frame.path.startswith(folders) for raised in log.raised for frame in raised.frames)


def _counts(finding: Finding, check: Check) -> bool:
    return check.severity_of(finding) is not INFO or check.severity is INFO


def _hosts(suspect: Suspect, verdict: LogVerdict, snapshot: Snapshot) -> list[str]:
    """List the hosts on which the log saw it: by its own lines, else the line that leads, else all of the log."""
    log = snapshot.log
    lead = [verdict.lead.host] if verdict.lead else []
    every = [] if isinstance(log, Unknown) else list(log.hosts)
    for hosts in ([sighting.line.host for sighting in suspect.sightings], lead, every):
        known = (name for name in hosts if name and name != "localhost" and not name.startswith(TASK))
        if named := list(dict.fromkeys(known)):
            return named
    return []


def _among(host: str, others: Sequence[str]) -> bool:
    short_names = {name.partition(".")[0].lower() for name in others}
    return host.partition(".")[0].lower() in short_names


def _place(held: HostCheck | None) -> int:
    """Sort confirmed ones first, and contradicted ones last; the others stay in the log's own order."""
    return {HostVerdict.CONFIRMED: 0, HostVerdict.CONTRADICTED: 2}.get(held.standing, 1) if held else 1


def _opinion(suspect: Suspect, snapshot: Snapshot, catalogue: Catalogue, held: HostCheck | None) -> Diagnosis | None:
    check = catalogue.get(suspect.slug)
    if check is None:
        return None
    found = _own_finding(check, snapshot) or composed(check, suspect, snapshot, held)
    return Diagnosis(suspect=suspect, check=check, finding=found, held=held)


def _own_finding(check: Check, snapshot: Snapshot) -> Finding | None:
    if not by_log_alone(check):
        return None
    (result,) = diagnose(snapshot, plan_for(snapshot, None), [check])
    return next(iter(result.findings), None)


def composed(check: Check, suspect: Suspect, snapshot: Snapshot, held: HostCheck | None) -> Finding:
    """Make the finding of a check that judges hosts from its page and the log's lines."""
    log = snapshot.log
    log = Log() if isinstance(log, Unknown) else log
    said = (*lines(log, suspect.sightings), *named(log, suspect.sightings))
    who = _said_by(suspect)
    if held and held.standing is HostVerdict.CONFIRMED and held.found:
        found = held.found
        return msgspec.structs.replace(found, evidence=(*said, *found.evidence), rank=_rank(suspect))
    decide = deciding(check, suspect.sightings, log, sure=suspect.sure)
    own = particulars(check, suspect.sightings, log)
    fixes = own.fixes or (Fix(" ".join(check.section("Fix").split()).removesuffix(".")),)
    title = own.summary or check.title.removesuffix(".")
    return Finding(
        summary=clip(f"{title}, says {who}" if who and not own.of_everybody else title),
        cause=own.cause,
        evidence=said,
        fixes=(*fixes, decide) if decide else fixes,
        rank=_rank(suspect),
    )


def particulars(check: Check, seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Ask the check what the log itself tells of an illness beyond its page; mostly nothing."""
    return check.log.particulars(seen, log) if check.log.particulars and seen else Particulars()


def _rank(suspect: Suspect) -> int | None:
    return next((sighting.line.rank for sighting in suspect.sightings if sighting.line.rank is not None), None)


def _said_by(suspect: Suspect) -> str:
    for sighting in suspect.sightings:
        rank = f"rank {sighting.line.rank}" if sighting.line.rank is not None else ""
        if rank or sighting.line.host:
            return " on ".join(filter(None, (rank, sighting.line.host)))
    return ""


def _severity(number: int, opinion: Diagnosis, beside: Sequence[Diagnosis], verdict: LogVerdict) -> Severity:
    """Rate a diagnosis: the likeliest is what failed, other hypotheses may be, and the rest is good to know."""
    if opinion in beside:
        return INFO
    failed = not verdict.ended_well and verdict.outcome is not RunOutcome.EFFECTS_ONLY
    return FAIL if failed and (number == 0 or opinion.suspect.sure) else WARN


_NAME_SHAPES: Final = (
    re.compile(r"(?<![\w:])(?:PCI:)?[0-9a-f]{4,8}:(?P<object>[0-9a-f]{2}:[0-9a-f]{2})(?!\w)", re.IGNORECASE),
    re.compile(r"(?<!\w)(?:sm|compute)_(?P<object>\d+)"),
    re.compile(r"(?<!\w)(?P<object>(?:GLIBCXX|CXXABI)_[\d.]*\d)"),
    re.compile(r"(?<!\w)(?P<object>[a-z][a-z0-9]{0,15}_\d+)(?!\w)"),
    re.compile(r"(?<!\w)(?P<object>[A-Z][A-Z0-9]*_[A-Z][A-Z0-9_]*)(?!\w)"),
)
"""Addresses on the bus, architectures, symbols' versions, InfiniBand's devices, settings: by its looks it is known what a word names."""


def other_than_named(finding: Finding, seen: Iterable[SignMatch]) -> str:
    """Return what the log names, where the finding speaks of others of that kind and not of it; else ""."""
    text = "\n".join((finding.summary, *(evidence.text for evidence in finding.evidence)))
    for word in dict.fromkeys(word.strip() for match in seen for word in match.words.values()):
        shape = next(
            (
                candidate
                for candidate in _NAME_SHAPES
                if candidate.fullmatch(word) or candidate.fullmatch(word.partition(".")[0])
            ),
            None,
        )
        named = shape.match(word) if shape else None
        if shape and named:
            found = {thing["object"].lower() for thing in shape.finditer(text)}
            if found and named["object"].lower() not in found:
                return word
    return ""
