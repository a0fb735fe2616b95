"""Profiles: the facts that hosts must have, by what the hosts have in common; saved by one sweep, and held against the next. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import escaped_json
from ddpdoctor.fleet_sweep.comparable import PRESENT, TOOL_VERSION, UNKNOWN
from ddpdoctor.fleet_sweep.comparison import Comparison, OddFact
from ddpdoctor.fleet_sweep.sweep import Sweep

_IS_THERE = msgspec.Raw(b"{}")
"""In a file, for what is there and has facts of its own."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that must hold.

    Args:
        ddpdoctor_profile: the schema's version.
        groups: what hosts have in common, to paths and their values.
    """

    ddpdoctor_profile: int = 1
    groups: dict[str, dict[str, msgspec.Raw]] = {}

    def facts(self, label: str) -> dict[str, str] | None:
        """The facts of those hosts; None where it has none for them."""
        facts = self.groups.get(label)
        if facts is None:
            return None
        return {path: PRESENT if raw == _IS_THERE else _compact(raw) for path, raw in facts.items()}

    def to_json(self) -> str:
        """The file's text, for people to read and edit."""
        return escaped_json(msgspec.json.format(msgspec.json.encode(self), indent=1).decode()) + "\n"


def _compact(raw: msgspec.Raw) -> str:
    return msgspec.json.encode(msgspec.json.decode(raw)).decode()


def read_profile(content: bytes) -> Profile | None:
    """The profile in these bytes; None where there is none."""
    try:
        profile = msgspec.json.decode(content, type=Profile)
        header = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return profile if "ddpdoctor_profile" in header else None


def profile_of(sweep: Sweep, labels: Mapping[str, str]) -> Profile:
    """What most hosts of each group have."""
    groups = grouped(sorted(sweep.hosts), lambda name: labels[name])
    return Profile(
        groups={
            label: {
                path: _IS_THERE if value == PRESENT else msgspec.Raw(value.encode())
                for path, value in sorted(Comparison(sweep, label, names).shared().items())
                if path != TOOL_VERSION and not value.startswith(UNKNOWN)
            }
            for label, names in groups.items()
        }
    )


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What came of holding a profile against hosts.

    Args:
        deviations: facts that aren't as they must be.
        unknown: facts that could not be learned on a host, so that nobody can say.
        without: hosts of which the profile has no word.
    """

    deviations: tuple[OddFact, ...] = ()
    unknown: tuple[OddFact, ...] = ()
    without: tuple[str, ...] = ()


def hold(profile: Profile, sweep: Sweep, labels: Mapping[str, str]) -> Held:
    """Compare each host with the profile of hosts like it."""
    deviations: list[OddFact] = []
    without: list[str] = []
    for label, names in grouped(sorted(sweep.hosts), lambda name: labels[name]).items():
        facts = profile.facts(label)
        if facts is None:
            without += names
        else:
            deviations += Comparison(sweep, label, names).deviations(facts)
    return Held(
        deviations=tuple(fact for fact in deviations if not fact.value.startswith(UNKNOWN)),
        unknown=tuple(fact for fact in deviations if fact.value.startswith(UNKNOWN)),
        without=tuple(without),
    )
