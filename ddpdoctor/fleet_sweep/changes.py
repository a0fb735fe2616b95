"""What changed on the hosts since an earlier sweep: new faults, what healed, and facts. Pure."""

from __future__ import annotations

from enum import Enum

import msgspec

from ddpdoctor.base.findings import Severity
from ddpdoctor.fleet_sweep.comparable import ABSENT, UNKNOWN, with_own_words
from ddpdoctor.fleet_sweep.comparison import are_alike, parent_of
from ddpdoctor.fleet_sweep.sweep import FleetHost, Sweep, unjudged_hosts


class ChangeKind(str, Enum):
    """Sort of a change."""

    FAULT = "new fault"
    HEALED = "healed"
    FACT = "changed fact"
    APPEARED = "new host"
    GONE = "gone"


class FleetChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change on some hosts.

    Args:
        kind: its sort.
        what: the check's slug, or the fact's path; "" for a host.
        before: the fact's value; "" for others.
        after: likewise.
        hosts: their names.
    """

    kind: ChangeKind
    what: str
    before: str
    after: str
    hosts: tuple[str, ...]


def changes(before: Sweep, after: Sweep) -> tuple[FleetChange, ...]:
    """What is otherwise than it was, by kind; the most hosts first. A host whose snapshot could not be read has neither come nor gone."""
    found: dict[tuple[ChangeKind, str, str, str], list[str]] = {}
    facts = _Facts(before, after)
    unjudged = {*unjudged_hosts(before, after.hosts), *unjudged_hosts(after, before.hosts)}
    for name in sorted({*before.hosts, *after.hosts}):
        old, new = before.hosts.get(name), after.hosts.get(name)
        if old is None or new is None:
            if name not in unjudged:
                kind = ChangeKind.GONE if new is None else ChangeKind.APPEARED
                found.setdefault((kind, "", "", ""), []).append(name)
            continue
        faults_before, faults = _faults(before, old), _faults(after, new)
        for slug in sorted(faults - faults_before):
            found.setdefault((ChangeKind.FAULT, slug, "", ""), []).append(name)
        for slug in sorted(faults_before - faults):
            # What can no longer be tested has not healed.
            if new.states[after.checks.index(slug)] == "." if slug in after.checks else False:
                found.setdefault((ChangeKind.HEALED, slug, "", ""), []).append(name)
        for path, value_before, value in facts.changed(old, new):
            if with_own_words(value_before, old.own_words) != with_own_words(value, new.own_words):
                found.setdefault((ChangeKind.FACT, path, value_before, value), []).append(name)
    order = list(ChangeKind)
    return tuple(
        FleetChange(kind=kind, what=what, before=value_before, after=value, hosts=tuple(hosts))
        for (kind, what, value_before, value), hosts in sorted(
            found.items(), key=lambda item: (order.index(item[0][0]), -len(item[1]), item[0])
        )
    )


def _faults(sweep: Sweep, host: FleetHost) -> set[str]:
    return {found.slug for found in sweep.findings_of(host) if found.severity is not Severity.INFO}


class _Facts:
    """Facts of two sweeps. Hosts that were alike and are alike are compared once."""

    def __init__(self, before: Sweep, after: Sweep) -> None:
        self._before = before
        self._after = after
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[str, str, str]]] = {}

    def changed(self, old: FleetHost, new: FleetHost) -> list[tuple[str, str, str]]:
        """Paths, with the values before and now."""
        key = (old.groups, new.groups)
        if key not in self._known:
            self._known[key] = self._compare(old, new)
        return self._known[key]

    def _compare(self, old: FleetHost, new: FleetHost) -> list[tuple[str, str, str]]:
        before, after = dict(self._before.facts_of(old)), dict(self._after.facts_of(new))
        found = {
            path: (before.get(path, ABSENT), after.get(path, ABSENT))
            for path in sorted(before.keys() | after.keys())
            if not are_alike(before.get(path, ABSENT), after.get(path, ABSENT))
        }
        return [
            (path, *values)
            for path, values in found.items()
            # What was not learned did not change, and of a part that came or went its own facts are not told.
            if not any(value.startswith(UNKNOWN) for value in values)
            and not (ABSENT in values and parent_of(path) in found)
        ]
