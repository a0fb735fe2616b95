"""A `Sweep`: many hosts, each with its verdict, its findings and its facts, kept small, so that ten thousand have room."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Finding, Owner, Severity
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.fleet_sweep.comparable import Pair

MAX_WORDINGS: Final = 20
"""Different summaries that are kept of one check, by severity and owner; hosts beyond them count as those of the last."""
MAX_PROBLEMS: Final = 1000
"""What could not be judged and is named; more is counted."""


class FleetFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, as the first host has it.

    Args:
        key: the same on other hosts with the same finding.
        host: the first's name, which may stand in the finding's words.
    """

    key: str
    slug: str
    family: str
    severity: Severity
    owner: Owner
    finding: Finding
    docs: str
    host: str


class FleetHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host.

    Args:
        name: as its snapshot has it.
        source: the file or line it came from.
        taken_at: UTC, ISO 8601.
        verdict: of the checks.
        unanswered: why there is none, where too few checks could be judged; "" where there is.
        states: a letter a check, in the checks' order; see `STATES`.
        findings: places in `Sweep.findings`.
        groups: places in `Sweep.facts`, one a compared group.
        own_words: its name and addresses, for which signs stand in its facts.
        models: names of its GPUs.
        pci_models: vendor and device of its GPUs on the PCI bus.
        partition: Slurm's; "" where it isn't known.
    """

    name: str
    source: str
    taken_at: str
    verdict: Verdict
    unanswered: str = ""
    states: str = ""
    findings: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    own_words: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    pci_models: tuple[str, ...] = ()
    partition: str = ""


STATES: Final = {
    "fail": "f", "warn": "w", "info": "i", "passed": ".", "unknown": "?", "crashed": "!", "not-applicable": "-",
}  # fmt: skip
"""What a check came to on a host, and its letter in `FleetHost.states`."""


class Sweep(msgspec.Struct, kw_only=True):
    """All hosts of a sweep. What several have in common stands here once, and they name its place.

    Args:
        checks: slugs, in the order of the hosts' `states`.
        hosts: by name.
        findings: see `FleetHost.findings`.
        facts: each a tuple of places in `pairs`.
        pairs: paths and values.
        problems: what was not judged, and why, a sentence each.
        unnamed_problems: how many more.
        read: the snapshots that were, whether they could be judged or not.
        unread: names of whose snapshots could not be read; True where a snapshot says itself whose it is, False where a launcher's word or
            a file's name is all that tells, which may mean something else.
    """

    checks: tuple[str, ...] = ()
    hosts: dict[str, FleetHost] = {}
    findings: list[FleetFinding] = []
    facts: list[tuple[int, ...]] = []
    pairs: list[Pair] = []
    problems: list[str] = []
    unnamed_problems: int = 0
    read: int = 0
    unread: dict[str, bool] = {}

    def facts_of(self, host: FleetHost) -> Iterator[Pair]:
        """All compared facts of a host, with signs for its own words."""
        for group in host.groups:
            for place in self.facts[group]:
                yield self.pairs[place]

    def findings_of(self, host: FleetHost) -> list[FleetFinding]:
        """What is wrong with it, worst first."""
        return [self.findings[place] for place in host.findings]


def unjudged_hosts(sweep: Sweep, expected: Collection[str] = ()) -> tuple[str, ...]:
    """The hosts of which no snapshot could be judged, though something came. What a launcher or a file calls them counts where such a host was
    expected, or another host is called so but for its number: in the list that `srun --exclude` reads nothing may stand that is no host.

    Args:
        sweep: with the hosts that were judged.
        expected: hosts that should have answered.
    """
    judged = {*sweep.hosts, *map(first_label, sweep.hosts)}
    forms = {_form(name) for name in judged}
    return tuple(
        name
        for name, says_so_itself in sorted(sweep.unread.items())
        if name not in judged and (says_so_itself or name in expected or _form(name) in forms)
    )


def first_label(name: str) -> str:
    """A host's name without its domain."""
    return name.partition(".")[0]


def _form(name: str) -> str:
    return re.sub(r"\d+", "0", name)


class SweepBuilder:
    """Adds to a sweep, and finds what is there already."""

    def __init__(self, checks: Sequence[str]) -> None:
        self.sweep = Sweep(checks=tuple(checks))
        self._pairs: dict[Pair, int] = {}
        self._facts: dict[tuple[int, ...], int] = {}
        self._findings: dict[tuple[str, Owner, str], int] = {}
        self._wordings: dict[tuple[str, Severity, Owner], list[int]] = {}
        self._states: dict[str, str] = {}

    def problem(self, text: str, names: Iterable[str] = (), *, says_so_itself: bool = False) -> None:
        """Note why something was not judged.

        Args:
            text: a sentence.
            names: of the hosts that it was perhaps of.
            says_so_itself: the snapshot has that name in it.
        """
        for name in names:
            self.sweep.unread[name] = says_so_itself or self.sweep.unread.get(name, False)
        if len(self.sweep.problems) < MAX_PROBLEMS:
            self.sweep.problems.append(text)
        else:
            self.sweep.unnamed_problems += 1

    def facts(self, pairs: Sequence[Pair]) -> int:
        """The place of a group's facts."""
        places = []
        for pair in pairs:
            place = self._pairs.get(pair)
            if place is None:
                place = self._pairs[pair] = len(self.sweep.pairs)
                self.sweep.pairs.append(pair)
            places.append(place)
        key = tuple(places)
        number = self._facts.get(key)
        if number is None:
            number = self._facts[key] = len(self.sweep.facts)
            self.sweep.facts.append(key)
        return number

    def finding(self, found: FleetFinding) -> int:
        """The place of a finding."""
        key = (found.slug, found.owner, found.key)
        place = self._findings.get(key)
        if place is not None:
            return place
        # By the owner, too: whose the last one is decides whether a host may take jobs.
        wordings = self._wordings.setdefault((found.slug, found.severity, found.owner), [])
        if len(wordings) >= MAX_WORDINGS:
            return wordings[-1]
        place = self._findings[key] = len(self.sweep.findings)
        wordings.append(place)
        self.sweep.findings.append(found)
        return place

    def add(self, host: FleetHost) -> None:
        """Add a host. Of two snapshots of one host the later counts."""
        self.sweep.read += 1
        before = self.sweep.hosts.get(host.name)
        if before is not None:
            first, last = sorted((before, host), key=lambda duplicate: duplicate.taken_at)
            self.problem(
                f"{host.name}: two snapshots are of this host; {last.source} counts, which was taken last, and not {first.source}"
            )
            host = last
        self.sweep.hosts[host.name] = msgspec.structs.replace(
            host, states=self._states.setdefault(host.states, host.states)
        )

    def merge(self, other: Sweep) -> None:
        """Add all that stands in another sweep."""
        groups = [self.facts([other.pairs[place] for place in places]) for places in other.facts]
        findings = [self.finding(found) for found in other.findings]
        for text in other.problems:
            self.problem(text)
        for name, says_so_itself in other.unread.items():
            self.sweep.unread[name] = says_so_itself or self.sweep.unread.get(name, False)
        self.sweep.unnamed_problems += other.unnamed_problems
        self.sweep.read += other.read - len(other.hosts)
        for host in other.hosts.values():
            self.add(
                msgspec.structs.replace(
                    host,
                    groups=tuple(groups[place] for place in host.groups),
                    findings=tuple(dict.fromkeys(findings[place] for place in host.findings)),
                )
            )


def counts(hosts: Mapping[str, FleetHost]) -> dict[Verdict, int]:
    """How many hosts came to which verdict."""
    found = dict.fromkeys(Verdict, 0)
    for host in hosts.values():
        found[host.verdict] += 1
    return found
