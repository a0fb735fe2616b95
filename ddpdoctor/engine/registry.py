"""The registry of checks, their selection, and `diagnose()`. Knows no illness."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from ddpdoctor.base.findings import Evidence, Finding, Owner, Severity
from ddpdoctor.base.log_signs import HEALTHY_RUNS
from ddpdoctor.base.log_signs import LogSign as LogSign
from ddpdoctor.base.log_signs import SignRole as SignRole
from ddpdoctor.base.text import clip, clip_middle
from ddpdoctor.base.unknown import Facts, NotKnown, NotLearned, Unknown
from ddpdoctor.engine.log_traits import PLAIN_SIGNS
from ddpdoctor.engine.log_traits import LogTraits as LogTraits
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import GROUPS, UNTRIED, Snapshot

Predicate = Callable[..., Iterator[Finding]]
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Subject(Enum):
    """What a check judges beside that of which its family is. Commands that look at little choose their checks by it."""

    RUNNING_JOB = "a job that runs, as the family `processes` does"
    NEXT_JOB = "a job that is yet to be started, and none that runs"
    TRAINING_PLAN = "what a smoke training is to run, before anything is started"
    TRAINING_SPEED = "how fast a smoke training is that has passed"
    OWN_HOST = "the host of each node of a smoke training, and no rank"
    JOB_FROM_WITHIN = "the ranks of a job that is about to train, by their own words"


class NotApplicable(Exception):
    """Raised by `requires()`: the check has nothing to look at on this host."""


class JudgedElsewhere(NotApplicable):
    """Raised by a check whose subject is there for another cause, of which another check speaks."""

    def __init__(self, reason: str, cause: Enum) -> None:
        super().__init__(reason)
        self.cause = cause


def requires(condition: object, reason: str) -> None:
    """Ends the check as not applicable unless the condition holds: `requires(gpus.devices, "no NVIDIA GPU")`.

    Raises:
        NotApplicable: with the reason, which the report shows under "not tested".
    """
    if not condition:
        raise NotApplicable(reason)


def required(value: T | None, reason: str) -> T:
    """The value, without which the check ends as not applicable.

    Raises:
        NotApplicable: it is None.
    """
    if value is None:
        raise NotApplicable(reason)
    return value


def leave_untested(reason: str) -> NoReturn:
    """Ends the check without a verdict, because a fact that it needs isn't known.

    Raises:
        NotKnown: with the reason, which the report shows under "not tested".
    """
    raise NotKnown(reason)


def judged_apart(looks: Iterable[Iterable[Finding]]) -> Iterator[Finding]:
    """The findings of several looks: one that ends for want of a fact hides nothing that the others find.

    Raises:
        NotKnown: after all of them, what the first such look lacked.
        NotApplicable: none lacked anything, and one had nothing to look at.
    """
    lacked: NotKnown | None = None
    idle: NotApplicable | None = None
    for look in looks:
        try:
            yield from look
        except NotKnown as reason:
            lacked = lacked or reason
        except NotApplicable as reason:
            idle = idle or reason
    if lacked:
        raise lacked
    if idle:
        raise idle


class Check:
    """One illness: its slug, family, severity, owner, page (the docstring), log signs and predicate.

    The family is the folder that its file lies in.

    Args:
        owner: whose it is to mend what it finds, unless a finding says otherwise.
        log_signs: in place of those that the catalogue has for the slug.
        stands_for: what of other parts' own lists it is the check of: causes of hangs, kinds of leftovers, signals of processes.
        judges: what else it judges than its family does.
        log: how the analysis of logs is to treat its signs.
        explains: slugs of illnesses of a run that what it finds in the run's script may bring about.
        catalogue: the one that it stands in.
    """

    def __init__(
        self,
        slug: str,
        severity: Severity,
        predicate: Predicate,
        *,
        owner: Owner = Owner.UNKNOWN,
        log_signs: tuple[LogSign, ...] | None = None,
        stands_for: tuple[Enum, ...] = (),
        judges: tuple[Subject, ...] = (),
        log: LogTraits = PLAIN_SIGNS,
        explains: tuple[str, ...] = (),
        catalogue: Catalogue | None = None,
    ) -> None:
        self.slug = slug
        self.severity = severity
        self.predicate = predicate
        self.owner = owner
        self.stands_for = stands_for
        self.judges = judges
        self.log = log
        self.explains = explains
        self.catalogue = Catalogue() if catalogue is None else catalogue
        self.module = predicate.__module__
        self.family = self.module.split(".")[-2]
        if log_signs is not None:
            self.log_signs = log_signs

    def __repr__(self) -> str:
        return f"Check({self.slug!r}, family={self.family!r})"

    def severity_of(self, finding: Finding) -> Severity:
        """How bad a finding of this check is: as it says itself, else as the check does."""
        return finding.severity or self.severity

    @cached_property
    def log_signs(self) -> tuple[LogSign, ...]:
        """The pieces of log text by which it shows itself; read from the catalogue's file when somebody first asks."""
        return self.catalogue.read_signs().get(self.slug, ())

    @cached_property
    def page(self) -> str:
        """The docstring: a title line, then "## What breaks", "## Why" and "## Fix"."""
        return inspect.cleandoc(self.predicate.__doc__ or "")

    @property
    def docs(self) -> str:
        """Where its page with an example lies in the project's repository."""
        return f"docs/checks/{self.slug}.md"

    @property
    def more(self) -> str:
        """The command that shows its page."""
        return f"ddpdoctor explain {self.slug}"

    @property
    def title(self) -> str:
        return self.page.partition("\n")[0]

    def section(self, heading: str) -> str:
        """The text under `## heading` of the page, or ""."""
        found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.page, re.MULTILINE | re.DOTALL)
        return found[1].strip() if found else ""

    @cached_property
    def needs(self) -> dict[str, type[Facts] | None]:
        """Parameter name to the group that must be known as soon as it decides: None where the check takes `Unknown`.

        Read as written, `Group` or `Maybe[Group]`: evaluating some hundred annotations takes longer than judging a host.
        """
        written = {name: text for name, text in self.predicate.__annotations__.items() if name != "return"}
        known = self.predicate.__globals__
        return {name: None if text.startswith("Maybe[") else known[text] for name, text in written.items()}

    @property
    def groups(self) -> set[str]:
        """The groups of facts that this check wants to see."""
        return {name for name in self.needs if name in GROUPS}

    def idle_reason(self, snapshot: Snapshot) -> str:
        """Tell why the check has nothing to look at there, if that is known without running it; "" if not."""
        return ""

    def load(self) -> None:
        """Have its module imported to its end, as that of a check that isn't listed is."""


class CheckListing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a check before its module is imported.

    Args:
        slug: of the check.
        groups: of facts that it wants to see.
        idle: its reason for having nothing to look at as long as nobody tried anything: all groups of `UNTRIED` that it wants are
            as they are there. "" where it may have something to look at all the same.
    """

    slug: str
    groups: tuple[str, ...]
    idle: str = ""


class ListedCheck(Check):
    """A check whose module is imported as soon as somebody wants to know more of it than its listing says."""

    def __init__(self, listing: CheckListing, module: str, catalogue: Catalogue) -> None:
        self.slug = listing.slug
        self.module = module
        self.family = module.split(".")[-2]
        self.catalogue = catalogue
        self._listing = listing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.has_predicate:
            raise AttributeError(name)
        self.load()
        return getattr(self, name)

    def load(self) -> None:
        """Import its module, or wait where another thread is about to: what follows the check in it may be missing yet.

        Raises:
            LookupError: the module has no such check.
        """
        importlib.import_module(self.module)
        if not self.has_predicate:
            raise LookupError(f"{self.module} has no check {self.slug}, though the index lists it there")

    @property
    def has_predicate(self) -> bool:
        """Whether its module has brought the check, be it that the rest of it is still being imported."""
        return "predicate" in vars(self)

    @property
    def groups(self) -> set[str]:
        """The groups of facts that this check wants to see."""
        return super().groups if self.has_predicate else set(self._listing.groups)

    def idle_reason(self, snapshot: Snapshot) -> str:
        """Tell why the check has nothing to look at there, if that is known without running it; "" if not."""
        wanted = UNTRIED.keys() & self._listing.groups
        return self._listing.idle if all(getattr(snapshot, name) == UNTRIED[name] for name in wanted) else ""


LEAST_SIGN = 12
"""Characters of a log sign by which alone a check is named: a shorter one may stand in any text."""
LONG_SIGN = 30
"""Characters of one that speaks for itself where the rest of its line was cut."""


class Catalogue:
    """Checks by slug, and by what they stand for: through it other parts find a check whose slug they don't know.

    Args:
        read_signs: gives the log signs by slug.
        import_all: imports the modules of all checks.
    """

    def __init__(
        self,
        read_signs: Callable[[], Mapping[str, tuple[LogSign, ...]]] = dict,
        import_all: Callable[[], object] = lambda: None,
    ) -> None:
        self.read_signs = read_signs
        self.import_all = import_all
        self._by_slug: dict[str, Check] = {}
        self._brought: list[str] = []
        self._by_topic: dict[tuple[type[Enum], Enum], list[Check]] = {}
        self._more_signs: Mapping[str, tuple[LogSign, ...]] = {}

    def extended(self, signs: Mapping[str, tuple[LogSign, ...]], checks: Iterable[Check]) -> Catalogue:
        """A catalogue that has more log signs, by slug, and more checks; this one stays as it is."""
        extended = Catalogue(self.read_signs, self.import_all)
        extended._by_slug = self._by_slug | {check.slug: check for check in checks}
        extended._more_signs = signs
        return extended

    def signs_of(self, check: Check) -> tuple[LogSign, ...]:
        """The log signs of a check: its own, and those that came in addition."""
        return (*check.log_signs, *self._more_signs.get(check.slug, ()))

    @property
    def harmless_signs(self) -> tuple[LogSign, ...]:
        """Messages of healthy runs that no check has."""
        return (*self.read_signs().get(HEALTHY_RUNS, ()), *self._more_signs.get(HEALTHY_RUNS, ()))

    def announce(self, module: str, listings: Iterable[CheckListing]) -> None:
        """List the checks of a module that need not be imported yet."""
        for listing in listings:
            self._by_slug.setdefault(listing.slug, ListedCheck(listing, module, self))

    def add(self, check: Check) -> None:
        """Adds a check, or what was not known yet of one that is listed.

        Raises:
            ValueError: there is one of that slug.
        """
        self._by_topic.clear()
        self._brought.append(check.slug)
        listed = self._by_slug.setdefault(check.slug, check)
        if listed is check:
            return
        if not isinstance(listed, ListedCheck) or listed.has_predicate:
            raise ValueError(f"two checks are called {check.slug}")
        vars(listed).update(vars(check))

    def drop_missing(self) -> None:
        """Drop what is listed and no module has brought; the rest in the order in which they did."""
        self._by_slug = {slug: self._by_slug[slug] for slug in self._brought}

    def get(self, slug: str) -> Check | None:
        """The check of that slug; None where this version has none."""
        return self._by_slug.get(slug)

    @property
    def checks(self) -> tuple[Check, ...]:
        """All, by family, file, and place in the file, whatever was imported first."""
        return tuple(sorted(self._by_slug.values(), key=lambda check: (check.family, check.module)))

    def standing_for(self, topic: Enum) -> tuple[Check, ...]:
        """The checks that declare it, in the same order."""
        if not self._by_topic:
            self.import_all()
            for check in self.checks:
                for own in check.stands_for:
                    self._by_topic.setdefault((type(own), own), []).append(check)
        # Members of two enumerations of strings or numbers may be equal.
        return tuple(self._by_topic.get((type(topic), topic), ()))

    def slug_for(self, topic: Enum) -> str:
        """The slug of the only check that declares it.

        Raises:
            LookupError: none does, or several do.
        """
        slugs = [check.slug for check in self.standing_for(topic)]
        if len(slugs) != 1:
            raise LookupError(f"{topic} has {len(slugs)} checks: {slugs}")
        return slugs[0]

    def saying(self, text: str) -> tuple[Check, ...]:
        """The checks with a log sign in that text, those with the longest first."""
        lines = text.splitlines()
        longest = {
            check: max((_said(sign, lines) for sign in self.signs_of(check)), default=0) for check in self.checks
        }
        fitting = [check for check, length in longest.items() if length >= LEAST_SIGN]
        return tuple(sorted(fitting, key=lambda check: -longest[check]))


def _said(sign: LogSign, lines: list[str]) -> int:
    """How many characters of the sign stand in those lines; 0 where it isn't theirs, or healthy runs say it, too."""
    if sign.role is SignRole.NOISE or (sign.near and not any(sign.near in line for line in lines)):
        return 0
    with_text = [line for line in lines if sign.text in line]
    if any(re.search(sign.pattern, line) for line in with_text):
        return max(len(sign.text), LEAST_SIGN if sign.pattern else 0)
    return len(sign.text) if with_text and len(sign.text) >= LONG_SIGN else 0


REGISTERED = Catalogue()
PRESCRIPTIONS: dict[str, Check] = {}


def check(
    slug: str,
    *,
    owner: Owner,
    severity: Severity = Severity.FAIL,
    stands_for: tuple[Enum, ...] = (),
    judges: tuple[Subject, ...] = (),
    log: LogTraits = PLAIN_SIGNS,
    explains: tuple[str, ...] = (),
) -> Callable[[Predicate], Predicate]:
    """Registers a predicate. Its parameter names say which groups of facts (or `plan`, or the `catalogue` of all checks) it is given."""

    def register(predicate: Predicate) -> Predicate:
        REGISTERED.add(
            Check(
                slug,
                severity,
                predicate,
                owner=owner,
                stands_for=stands_for,
                judges=judges,
                log=log,
                explains=explains,
                catalogue=REGISTERED,
            )
        )
        return predicate

    return register


def derived_check(
    register: Callable[[Predicate], Predicate], predicate_of: Callable[[F], Predicate]
) -> Callable[[F], F]:
    """Register a check that is made of a function, which gives it its name, its module and its page.

    Args:
        register: what `check` returns.
        predicate_of: makes the check of the function.
    """

    def derive(function: F) -> F:
        predicate = predicate_of(function)
        # What functools.wraps would copy as well are the parameters, which say what a check needs.
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(predicate, attribute, getattr(function, attribute))
        register(predicate)
        return function

    return derive


def prescription(topic: str) -> Callable[[Predicate], Predicate]:
    """Registers what `ddpdoctor explain TOPIC` works out for this very host: findings of severity info whose fixes are
    the commands to run. The docstring is the topic's page, with the same sections as a check's."""

    def register(predicate: Predicate) -> Predicate:
        if topic in PRESCRIPTIONS:
            raise ValueError(f"two prescriptions are called {topic}")
        PRESCRIPTIONS[topic] = Check(topic, Severity.INFO, predicate)
        return predicate

    return register


class UnknownSelection(ValueError):
    """A slug or family that doesn't exist, with the nearest ones."""

    def __init__(self, name: str, nearest: list[str]) -> None:
        self.name = name
        self.nearest = nearest
        hint = f" Did you mean {' or '.join(nearest)}?" if nearest else " `ddpdoctor list` shows them all."
        super().__init__(f"There is no check and no family called {name!r}.{hint}")


FORMER_FAMILIES: Final = {"patient": "python"}
"""Names that scripts may still choose by."""


def as_written(name: str) -> str:
    """A name as the registry writes it: `Shm_Too_Small` is shm-too-small, and a family's former name its present one."""
    written = name.strip().lower().replace("_", "-")
    return FORMER_FAMILIES.get(written, written)


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """Up to three of the names that look most like this one, or contain it."""
    names = sorted(names)
    wanted = as_written(name)
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    return close or [one for one in names if len(wanted) > 2 and wanted in one][:3]


class SkipReason(str, Enum):
    """Why a check gave no verdict."""

    UNKNOWN = "unknown"
    """A fact that it needs could not be learned."""
    NOT_APPLICABLE = "not-applicable"
    """There is nothing on this host for it to look at."""
    CRASHED = "crashed"
    """The check itself failed: a bug in ddpdoctor."""


class Skipped(msgspec.Struct, frozen=True):
    """A check without a verdict: never counted as fine."""

    why: SkipReason
    reason: str


class Result(msgspec.Struct, frozen=True):
    """What one check came to. Both may be there: it can find something and still miss a fact for the rest.

    Args:
        check: that judged.
        findings: of it.
        not_tested: why something of it could not be judged.
        seconds: that judging took.
    """

    check: Check
    findings: tuple[Finding, ...] = ()
    not_tested: Skipped | None = None
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.findings and self.not_tested is None


def diagnose(
    snapshot: Snapshot, plan: Plan, checks: Iterable[Check], *, passed_on: tuple[type[Exception], ...] = ()
) -> tuple[Result, ...]:
    """Judges a snapshot. A check that crashes is that check's result; the others go on.

    Args:
        snapshot: what is judged.
        plan: for its host.
        checks: by which it is.
        passed_on: exceptions of checks that are the caller's to handle, and no result.
    """
    return tuple(_idle(check, snapshot) or _timed(check, snapshot, plan, passed_on) for check in checks)


def _timed(check: Check, snapshot: Snapshot, plan: Plan, passed_on: tuple[type[Exception], ...]) -> Result:
    began = time.perf_counter()
    result = judge(check, snapshot, plan, passed_on)
    return msgspec.structs.replace(result, seconds=time.perf_counter() - began)


def load_needed(checks: Iterable[Check], snapshot: Snapshot) -> None:
    """Import what judging the snapshot will need, for whoever has the time to do it beforehand."""
    for check in checks:
        if not check.idle_reason(snapshot):
            check.load()


def _idle(check: Check, snapshot: Snapshot) -> Result | None:
    reason = check.idle_reason(snapshot)
    return Result(check, (), Skipped(SkipReason.NOT_APPLICABLE, reason)) if reason else None


def _short_enough(finding: Finding) -> Finding:
    """Cut a summary to what a line holds, and the middle out of evidence that nobody would read: a setting may be 128 KiB long."""
    evidence = tuple(Evidence(clip_middle(entry.text, 4000), entry.source) for entry in finding.evidence)
    return msgspec.structs.replace(finding, summary=clip(finding.summary), evidence=evidence)


def _given(name: str, check: Check, snapshot: Snapshot, plan: Plan) -> object:
    if name == "plan":
        return plan
    return check.catalogue if name == "catalogue" else getattr(snapshot, name)


def judge(one: Check, snapshot: Snapshot, plan: Plan, passed_on: tuple[type[Exception], ...] = ()) -> Result:
    """Runs one check, whatever its listing says. For `passed_on` see `diagnose`."""
    findings: list[Finding] = []
    try:
        one.load()
        arguments: dict[str, Any] = {}
        for name, group in one.needs.items():
            value = _given(name, one, snapshot, plan)
            arguments[name] = NotLearned(group, value.reason) if group and isinstance(value, Unknown) else value
        findings.extend(_short_enough(found) for found in one.predicate(**arguments))
    except passed_on:
        raise
    except NotKnown as missing:
        return Result(one, tuple(findings), Skipped(SkipReason.UNKNOWN, str(missing)))
    except JudgedElsewhere as reason:
        text = f"{reason}: see {one.catalogue.slug_for(reason.cause)}"
        return Result(one, tuple(findings), Skipped(SkipReason.NOT_APPLICABLE, text))
    except NotApplicable as reason:
        return Result(one, tuple(findings), Skipped(SkipReason.NOT_APPLICABLE, str(reason)))
    except Exception as crash:
        where = traceback.extract_tb(crash.__traceback__)[-1]
        text = (
            f"{type(crash).__name__}: {crash} ({where.name}, line {where.lineno}); a bug in ddpdoctor, please report it"
        )
        return Result(one, tuple(findings), Skipped(SkipReason.CRASHED, text))
    return Result(one, tuple(findings))
