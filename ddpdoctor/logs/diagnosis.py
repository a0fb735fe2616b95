"""What the checks make of a log: a finding for each suspect, held against the facts of a host where there are any."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from ddpdoctor.base.findings import FAIL, INFO, WARN, Evidence, Finding, Fix, Severity
from ddpdoctor.base.text import clip, listed
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.explanations import Explanation
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.redaction import redact_facts
from ddpdoctor.engine.registry import Catalogue, Check, Result, diagnose
from ddpdoctor.facts.log import Log, LogLine, SignMatch
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.attempts import attempts_of
from ddpdoctor.logs.analyze.deciding_commands import deciding
from ddpdoctor.logs.analyze.good_runs import RunComparison
from ddpdoctor.logs.analyze.illness_traits import by_log_alone
from ddpdoctor.logs.analyze.kernel_kills import of_this_log
from ddpdoctor.logs.analyze.settings import as_the_log_names, looked_at, settings_of
from ddpdoctor.logs.analyze.sightings import lines, named, own_line, said_by, stack_lines
from ddpdoctor.logs.analyze.verdict import LogVerdict, RunOutcome, Suspect, verdict_of
from ddpdoctor.logs.parse.labels import TASK

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
    """A suspicion held against the facts of a host. words: a sentence for the reader. found: of one that is confirmed, what the check itself
    found there."""

    standing: HostVerdict
    words: str
    found: Finding | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A suspect with its check and its finding. held: None where no host was looked at."""

    suspect: Suspect
    check: Check
    finding: Finding
    held: HostCheck | None = None

    def stands(self, standing: HostVerdict) -> bool:
        """Whether that came of holding it against a host's facts."""
        return self.held is not None and self.held.standing is standing


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
    def blamed(self) -> Diagnosis | None:
        """The likeliest, where the log tells more than what followed."""
        followed_only = self.verdict.outcome is RunOutcome.EFFECTS_ONLY
        return self.opinions[0] if self.opinions and not followed_only else None

    @property
    def is_contradicted(self) -> bool:
        """Whether the facts of a host speak against every suspicion: what they contradict comes last."""
        return any(opinion.stands(HostVerdict.CONTRADICTED) for opinion in self.opinions[:1])

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
        """The exit code follows from it. A warning where nothing says that the run failed; never well where something could not be read
        to its end."""
        outcome = self.verdict.outcome
        known = outcome in (RunOutcome.ILLNESS, RunOutcome.USER_ERROR, RunOutcome.STOPPED)
        if (known and not self.verdict.ended_well) or (outcome is RunOutcome.EFFECTS_ONLY and self.cause_in_script):
            return Verdict.FAIL
        if self.stops_without_a_word or any(file.problem for file in self.log.files):
            return Verdict.UNKNOWN
        return Verdict.WARN if known else Verdict.OK if outcome is RunOutcome.NOTHING else Verdict.UNKNOWN


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
    opinions = []
    for suspect, check in _with_checks(_told_apart(verdict.suspects), catalogue):
        held = _held(suspect, check, verdict, log, snapshot, watched=watched) if host else None
        opinions.append(_diagnosis(suspect, check, log, snapshot, held, _lines_of_script(suspect, check, verdict, log)))
    # Confirmed ones first, and contradicted ones last; the others stay in the log's own order.
    opinions.sort(key=lambda opinion: opinion.stands(HostVerdict.CONTRADICTED) - opinion.stands(HostVerdict.CONFIRMED))
    also = [_diagnosis(suspect, check, log, snapshot) for suspect, check in _with_checks(verdict.also, catalogue)]
    # The likeliest is what failed, other hypotheses may be, and the rest is good to know.
    failed = not verdict.ended_well and verdict.outcome is not RunOutcome.EFFECTS_ONLY
    results = [
        _result(opinion, FAIL if failed and (number == 0 or opinion.suspect.sure) else WARN)
        for number, opinion in enumerate(opinions)
    ]
    results += [_result(diagnosis, INFO) for diagnosis in also]
    return LogJudgement(
        log=log,
        verdict=verdict,
        examination=Examination(msgspec.structs.replace(snapshot, log=whole), plan_for(snapshot, None), tuple(results)),
        catalogue=catalogue,
        opinions=tuple(opinions),
        also=tuple(also),
        comparison=comparison,
    )


def _with_checks(suspects: Iterable[Suspect], catalogue: Catalogue) -> list[tuple[Suspect, Check]]:
    return [(suspect, check) for suspect in suspects if (check := catalogue.get(suspect.slug))]


def _told_apart(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Drop suspects that rest on the same lines for the same reason as one before: nothing would tell the two apart."""
    different: list[Suspect] = []
    for suspect in suspects:
        if not any((suspect.why, suspect.sightings) == (other.why, other.sightings) for other in different):
            different.append(suspect)
    return different


def _result(diagnosis: Diagnosis, severity: Severity) -> Result:
    return Result(diagnosis.check, (msgspec.structs.replace(diagnosis.finding, severity=severity),))


# --- the finding --------------------------------------------------------------------------------------------------------


def _diagnosis(
    suspect: Suspect,
    check: Check,
    log: Log,
    snapshot: Snapshot,
    held: HostCheck | None = None,
    of_script: tuple[Evidence, ...] = (),
) -> Diagnosis:
    of_log = _judged(check, snapshot).findings if by_log_alone(check) else ()
    found = of_log[0] if of_log else _composed(suspect, check, log, held)
    finding = msgspec.structs.replace(found, evidence=(*of_script, *found.evidence))
    return Diagnosis(suspect=suspect, check=check, finding=finding, held=held)


def _judged(check: Check, snapshot: Snapshot) -> Result:
    (result,) = diagnose(snapshot, plan_for(snapshot, None), [check])
    return result


def _composed(suspect: Suspect, check: Check, log: Log, held: HostCheck | None) -> Finding:
    """Make the finding of a check that judges hosts from its page and the log's lines."""
    seen = suspect.sightings
    evidence, rank = (*lines(log, seen), *named(log, seen)), said_by(seen)
    if held and held.found:
        return msgspec.structs.replace(held.found, evidence=(*evidence, *held.found.evidence), rank=rank)
    own = particulars(check, seen, log)
    title = own.summary or check.title.removesuffix(".")
    speaker = next((line for line in (sighting.line for sighting in seen) if line.rank is not None or line.host), None)
    if speaker and not own.of_everybody:
        rank_and_host = ("" if speaker.rank is None else f"rank {speaker.rank}", speaker.host)
        title = f"{title}, says {' on '.join(filter(None, rank_and_host))}"
    fixes = own.fixes or (Fix(" ".join(check.section("Fix").split()).removesuffix(".")),)
    decide = None if own.decided else deciding(check, seen, log, sure=suspect.sure)
    return Finding(clip(title), own.cause, evidence, (*fixes, decide) if decide else fixes, rank=rank)


def particulars(check: Check, seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Ask the check what the log itself tells of an illness beyond its page; mostly nothing."""
    return check.log.particulars(seen, log) if check.log.particulars and seen else Particulars()


def _lines_of_script(suspect: Suspect, check: Check, verdict: LogVerdict, log: Log) -> tuple[Evidence, ...]:
    """The line of the script by which the failure that leads came to it; else where the process stood that wrote those words."""
    raised, said = verdict.raised, [sighting.line for sighting in suspect.sightings]
    if raised is None:
        pairs = ((stack, line) for line in said for stack in log.stacks if stack.line.stream == line.stream)
        stack = next((stack for stack, line in pairs if abs(stack.line.number - line.number) <= NEAR_STACK), None)
        return stack_lines(log, stack) if stack else ()
    span = range(raised.began.number, raised.line.number + 1)
    within = any(line.stream == raised.line.stream and line.number in span for line in said)
    return own_line(log, raised) if within and LogTopic.MISTAKE not in check.stands_for else ()


# --- the facts of a host ------------------------------------------------------------------------------------------------


def collect_deciding(log: Log, catalogue: Catalogue, python: str | None = None) -> Snapshot | None:
    """Collect those facts of this host that the suspicions are to be held against; None where only the log can tell.

    Args:
        log: of a run.
        catalogue: the checks to judge it by.
        python: the Python in which training runs; None: the active environment's.
    """
    from ddpdoctor.probes.session import collect_facts, start_probes

    suspects = verdict_of(log, catalogue).suspects
    checks = [check for _, check in _with_checks(suspects, catalogue)]
    groups = set().union(*(check.groups for check in checks if not by_log_alone(check)))
    if not groups:
        return None
    quick, settings = not {"torch", "libraries"} & groups, settings_of(suspects, os.environ, catalogue)
    return collect_facts(start_probes(python, quick=quick, settings=settings), groups | {"machine", "container"})


def _held(
    suspect: Suspect, check: Check, verdict: LogVerdict, log: Log, snapshot: Snapshot, *, watched: bool
) -> HostCheck:
    """Judge a suspect by the facts of a host."""
    if by_log_alone(check):
        words = "only a log shows it; no host's facts can decide it"
        return HostCheck(standing=HostVerdict.NOT_TESTED, words=words)
    facts = as_the_log_names(snapshot, suspect.sightings, check.catalogue)
    result = _judged(check, facts)
    ahead = float(time.localtime().tm_gmtoff)
    fitting = of_this_log(facts, log, suspect.sightings, ahead=ahead, watched=watched)
    of_log = _found(_judged(check, fitting))
    standing, words = _standing(suspect, result, of_log, _hosts(suspect, verdict, log), log, facts)
    return HostCheck(standing=standing, words=words, found=of_log if standing is HostVerdict.CONFIRMED else None)


def _found(result: Result) -> Finding | None:
    """The first finding that is more than a note, unless all that the check gives is notes."""
    usual = result.check.severity
    return next(
        (finding for finding in result.findings if (finding.severity or usual) is not INFO or usual is INFO), None
    )


def _standing(
    suspect: Suspect, result: Result, of_log: Finding | None, hosts: Sequence[str], log: Log, snapshot: Snapshot
) -> tuple[HostVerdict, str]:
    """What a host's facts say of a suspicion. of_log: what was found that fits the log. hosts: of which that speaks."""
    here = snapshot.host or "this host"
    found = of_log or _found(result)
    other_host = hosts[0] if hosts and snapshot.host and not _among(snapshot.host, hosts) else ""
    if found and other_host:
        return HostVerdict.NOT_TESTED, f"{here} has it too: {found.summary}; but the log speaks of {other_host}"
    if found and (other_object := other_than_named(found, suspect.sightings)):
        return HostVerdict.NOT_TESTED, f"{here} has this: {found.summary}; but the log speaks of {other_object}"
    if of_log:
        return HostVerdict.CONFIRMED, f"the log says {suspect.slug}, and so does {here}: {of_log.summary}"
    if found:
        words = f"it may be: {found.summary}; but neither process nor time shows that the log speaks of that"
        return HostVerdict.NOT_TESTED, words
    if other_host:
        return HostVerdict.NOT_TESTED, f"the log speaks of {other_host}, and this is {here}: run it there"
    looked = looked_at(snapshot, suspect.sightings, result.check.catalogue)
    if result.not_tested:
        reason = result.not_tested.reason
        return HostVerdict.NOT_TESTED, f"{reason}; looked at {here}: {looked}" if looked else reason
    if len(hosts) > 1:
        words = f"{here} shows no sign of it; the log speaks of {listed(hosts)}, and doesn't tell which of them it is"
        return HostVerdict.NOT_TESTED, words
    if result.check.groups <= INSTALLED and _ran_in(snapshot, log):
        return HostVerdict.CONTRADICTED, f"nothing that is installed on {here} shows a sign of it"
    seen = f": {looked}" if looked else ""
    words = f"{here} shows no sign of it now{seen}; it may have been otherwise while the run went on, or lie elsewhere"
    return HostVerdict.NOT_CONFIRMED, words


def _ran_in(snapshot: Snapshot, log: Log) -> bool:
    """Whether the log's tracebacks go through the packages of the Python that was looked at."""
    if isinstance(snapshot.target_python, Unknown):
        return False
    folders = tuple(f"{site_package}/" for site_package in snapshot.target_python.site_packages)
    return any(frame.path.startswith(folders) for raised in log.raised for frame in raised.frames)


def _hosts(suspect: Suspect, verdict: LogVerdict, log: Log) -> list[str]:
    """List the hosts on which the log saw it: by its own lines, else the line that leads, else all of the log."""
    lead = [verdict.lead.host] if verdict.lead else []
    for hosts in ([sighting.line.host for sighting in suspect.sightings], lead, log.hosts):
        known = (name for name in hosts if name and name != "localhost" and not name.startswith(TASK))
        if named := list(dict.fromkeys(known)):
            return named
    return []


def _among(host: str, others: Sequence[str]) -> bool:
    here, *there = (name.partition(".")[0].lower() for name in (host, *others))
    return here in there


_NAMES: Final = re.compile(
    r"(?<![\w:])(?i:(?:PCI:)?[0-9a-f]{4,8}:(?P<address>[0-9a-f]{2}:[0-9a-f]{2}))(?!\w)"
    r"|(?<!\w)(?:sm|compute)_(?P<architecture>\d+)"
    r"|(?<!\w)(?P<version>(?:GLIBCXX|CXXABI)_[\d.]*\d)"
    r"|(?<!\w)(?P<device>[a-z][a-z0-9]{0,15}_\d+)(?!\w)"
    r"|(?<!\w)(?P<setting>[A-Z][A-Z0-9]*_[A-Z][A-Z0-9_]*)(?!\w)"
)
"""By its looks it is known what a word names: an address on the bus, a symbol's version, InfiniBand's device ..."""


def other_than_named(finding: Finding, seen: Iterable[SignMatch]) -> str:
    """Return what the log names, where the finding speaks of others of that kind and not of it; else ""."""
    there = _objects("\n".join((finding.summary, *(evidence.text for evidence in finding.evidence))))
    for word in dict.fromkeys(word.strip() for match in seen for word in match.words.values()):
        if any(map(_NAMES.fullmatch, (word, word.partition(".")[0]))):
            named = _objects(word)
            of_that_kind = {kind for kind, _ in there} & {kind for kind, _ in named}
            if of_that_kind and not there & named:
                return word
    return ""


def _objects(text: str) -> set[tuple[str, str]]:
    """(kind, name) of each."""
    return {(kind, found[kind].lower()) for found in _NAMES.finditer(text) if (kind := found.lastgroup)}
