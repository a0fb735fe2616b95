"""Profiles: the facts that hosts must have, by what the hosts have in common; saved by one sweep, and held against the next. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import escaped_json, listed, one_line
from ddpdoctor.fleet_sweep.comparable import PRESENT, TOOL_VERSION, UNKNOWN
from ddpdoctor.fleet_sweep.comparison import Comparison, OddFact
from ddpdoctor.fleet_sweep.sweep import Sweep

PROFILE: Final = 1
"""The schema's version."""
_IS_THERE = msgspec.Raw(b"{}")
"""In a file, for what is there and has facts of its own."""


class ProfileError(Exception):
    """A profile that can't be read; the text says why and what to do."""


class _Header(msgspec.Struct):
    ddpdoctor_profile: int


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that must hold.

    Args:
        ddpdoctor_profile: the schema's version.
        groups: what hosts have in common, to paths and their values.
    """

    ddpdoctor_profile: int = PROFILE
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


def claims_to_be_profile(content: bytes) -> bool:
    """Whether these bytes are meant as a profile, and as no snapshot."""
    return b'"ddpdoctor_profile"' in content and b'"ddpdoctor_snapshot"' not in content


def read_profile(content: bytes) -> Profile | None:
    """The profile in these bytes; None where they don't claim to be one.

    Raises:
        ProfileError: it is not whole, or of another version.
    """
    if not claims_to_be_profile(content):
        return None
    try:
        version = msgspec.json.decode(content, type=_Header).ddpdoctor_profile
        if version != PROFILE:
            raise ProfileError(
                f"a profile of version {version}, and this ddpdoctor reads version {PROFILE}; save it again with --save-profile, or update ddpdoctor"
            )
        profile = msgspec.json.decode(content, type=Profile)
        if not profile.groups:
            raise ProfileError(
                "a profile of no hosts; save one of a sweep over good hosts: ddpdoctor fleet FOLDER --save-profile FILE"
            )
        for label in profile.groups:
            profile.facts(label)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProfileError(f"not a whole profile: {one_line(str(error))}; was it edited by hand?") from error
    return profile


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

    @property
    def not_held(self) -> dict[str, str]:
        """Hosts of which nobody can say whether they are as they must be, and why."""
        paths: dict[str, list[str]] = {}
        for fact in self.unknown:
            for name in fact.hosts:
                paths.setdefault(name, []).append(fact.path)
        found = {
            name: f"unknown, and so not held against the baseline: {listed(own, 3)}" for name, own in paths.items()
        }
        return found | dict.fromkeys(self.without, "the baseline has no word of hosts like it")


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
