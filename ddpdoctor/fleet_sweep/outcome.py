"""What came of a sweep: the hosts, who didn't answer, the odd ones out, what deviates, what changed, and who passes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ddpdoctor.base.findings import Owner, Severity
from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import listed
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.fleet_sweep.changes import FleetChange
from ddpdoctor.fleet_sweep.comparison import AlikeGroup, compare
from ddpdoctor.fleet_sweep.profiles import Held
from ddpdoctor.fleet_sweep.sweep import FleetFinding, FleetHost, Sweep, first_label, unjudged_hosts
from ddpdoctor.knowledge.hostlist import fold


class FleetOutcome:
    """All that is known of a fleet.

    Args:
        sweep: the hosts.
        labels: a host's name to what it has in common with those that should be like it.
        expected: hosts that should have answered; None where nobody said.
        no_file: what was given for the expected hosts, and is one name and no file, so that it may be mistyped; "" where it is more.
        held: what came of the baseline; None without one.
        changes: since an earlier sweep; None without one.
        problems: what else kept something from being judged.
    """

    def __init__(
        self,
        sweep: Sweep,
        labels: Mapping[str, str],
        *,
        expected: Sequence[str] | None = None,
        no_file: str = "",
        held: Held | None = None,
        changes: Sequence[FleetChange] | None = None,
        problems: Sequence[str] = (),
    ) -> None:
        self.sweep = sweep
        self.labels = labels
        self.expected = expected
        self.no_file = no_file
        self.held = held
        self.changes = changes
        more = sweep.unnamed_problems
        unnamed = [f"and {more} more that could not be judged"] if more else []
        self.problems = (*problems, *sweep.problems, *unnamed)

    @cached_property
    def groups(self) -> tuple[AlikeGroup, ...]:
        """Hosts that should be alike, the largest group first."""
        return compare(self.sweep, self.labels)

    @cached_property
    def absent(self) -> tuple[str, ...]:
        """Hosts that were expected and didn't answer."""
        return tuple(name for name in self.expected or () if name not in self._answers)

    @cached_property
    def unjudged(self) -> tuple[str, ...]:
        """Hosts of which something came, but no snapshot that could be judged. One that was expected by its short name is among the absent."""
        expected = set(self.expected or ())
        labels = {*map(first_label, expected)}
        names = unjudged_hosts(self.sweep, expected)
        return tuple(name for name in names if name in expected or first_label(name) not in labels)

    @cached_property
    def unexpected(self) -> tuple[str, ...]:
        """Hosts that answered and weren't expected."""
        if self.expected is None:
            return ()
        answered = set(self._answers.values())
        return tuple(name for name in self.sweep.hosts if name not in answered)

    @cached_property
    def other_domains(self) -> dict[str, str]:
        """Absent hosts to the one host that nobody expected and that is called the same in another domain: both may be one."""
        unexpected = grouped(self.unexpected, first_label)
        alike = {name: unexpected.get(first_label(name), []) for name in self.absent}
        return {name: hosts[0] for name, hosts in alike.items() if len(hosts) == 1}

    @cached_property
    def deviating(self) -> dict[str, list[str]]:
        """Hosts that are other than the baseline, and the paths of the facts in which they are."""
        found: dict[str, list[str]] = {}
        for fact in self.held.deviations if self.held else ():
            for name in fact.hosts:
                found.setdefault(name, []).append(fact.path)
        return found

    @cached_property
    def _answers(self) -> dict[str, str]:
        """Expected hosts that answered, and what they call themselves: "node1" may be node1.cluster.local, where no other host could be."""
        answers = {name: name for name in self.expected or () if name in self.sweep.hosts}
        asked = grouped(dict.fromkeys(name for name in self.expected or () if name not in answers), first_label)
        answered = grouped((name for name in self.sweep.hosts if name not in answers), first_label)
        for label, names in asked.items():
            hosts = answered.get(label, [])
            if len(names) == len(hosts) == 1 and label in (names[0], hosts[0]):
                answers[names[0]] = hosts[0]
        return answers

    @cached_property
    def exclusions(self) -> dict[str, str]:
        """Hosts on which no job should be put, and why: an absent one, one whose snapshot could not be read, one that is judged sick, differs from the
        baseline, or could not be judged or held against it.

        What is the user's to mend takes no host out.
        """
        why = {name: self._why(host, self.deviating.get(name, ())) for name, host in self.sweep.hosts.items()}
        why |= dict.fromkeys(self.absent, "it didn't answer")
        why |= dict.fromkeys(self.unjudged, "no snapshot of it could be read")
        return {name: text for name, text in why.items() if text}

    @cached_property
    def not_held(self) -> dict[str, str]:
        """Hosts that could not be held against the baseline, and why."""
        return self.held.not_held if self.held else {}

    def _why(self, host: FleetHost, deviating: Sequence[str]) -> str:
        slugs = [
            found.slug
            for found in self.sweep.findings_of(host)
            if found.severity is Severity.FAIL and found.owner is not Owner.USER
        ]
        reasons = list(dict.fromkeys(slugs))
        if deviating:
            reasons.append(f"other than the baseline: {listed(deviating, 3)}")
        if host.verdict is Verdict.UNKNOWN and not reasons:
            reasons.append(host.unanswered or "no verdict")
        if not reasons and host.name in self.not_held:
            reasons.append(self.not_held[host.name])
        return "; ".join(reasons)

    @cached_property
    def passing(self) -> tuple[str, ...]:
        """All other hosts."""
        return tuple(name for name in sorted(self.sweep.hosts) if name not in self.exclusions)

    @cached_property
    def odd_hosts(self) -> dict[str, list[str]]:
        """Odd ones out, and the paths of the facts in which they are."""
        found: dict[str, list[str]] = {}
        for group in self.groups:
            for fact in group.odd:
                for name in fact.hosts:
                    found.setdefault(name, []).append(fact.path)
        return found

    @cached_property
    def by_finding(self) -> list[tuple[FleetFinding, list[str]]]:
        """Each finding with its hosts: worst first, then those with the most hosts."""
        hosts: dict[int, list[str]] = {}
        for name in sorted(self.sweep.hosts):
            for place in self.sweep.hosts[name].findings:
                hosts.setdefault(place, []).append(name)
        found = [(self.sweep.findings[place], names) for place, names in hosts.items()]
        return sorted(found, key=lambda item: (item[0].severity.rank, -len(item[1]), item[0].slug))

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        verdicts = {host.verdict for host in self.sweep.hosts.values()}
        if Verdict.FAIL in verdicts or self.absent or (self.held and self.held.deviations):
            return Verdict.FAIL
        if not verdicts or Verdict.UNKNOWN in verdicts or self.problems or self.not_held:
            return Verdict.UNKNOWN
        odd = any(group.odd for group in self.groups)
        return Verdict.WARN if Verdict.WARN in verdicts or odd else Verdict.OK


def hosts_text(names: Sequence[str], most: int = 0) -> str:
    """Hosts as Slurm writes them, in at most so many characters where that is given: "node[001-064] and 12 more"."""
    text = fold(names)
    if not most or len(text) <= most:
        return text
    ordered = sorted(set(names))
    least, first_too_many = 1, len(ordered)
    while first_too_many - least > 1:
        middle = (least + first_too_many) // 2
        if len(fold(ordered[:middle])) <= most:
            least = middle
        else:
            first_too_many = middle
    return f"{fold(ordered[:least])} and {len(ordered) - least:,} more"
