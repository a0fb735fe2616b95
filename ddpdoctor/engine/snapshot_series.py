"""Many hosts' snapshots in a row: what several have in common, byte for byte, is decoded, vetted and judged once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, get_type_hints

import msgspec

from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Check, Result, diagnose
from ddpdoctor.engine.sanitize_facts import is_host, is_version, plausible_group
from ddpdoctor.engine.snapshot_lines import joined
from ddpdoctor.engine.snapshots import UNREADABLE, SnapshotError, attributed, check_header
from ddpdoctor.facts.snapshot import GROUPS, HEADER, UNTRIED, Snapshot

MAX_REMEMBERED: Final = 64
"""Forms of one group of facts, and results of one check: hosts that are alike have few."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_KEYS: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Snapshot)}
_DEFAULTS: Final = Snapshot()


class Remembered(Generic[K, T]):
    """The values that were asked for last, by key."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._values: dict[K, T] = {}
        self._most = most

    def get(self, key: K, make: Callable[[], T]) -> T:
        """The value of that key, made if it isn't known any more."""
        if key in self._values:
            value = self._values.pop(key)
        else:
            value = make()
            if len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
        self._values[key] = value
        return value


class KnownGroup(msgspec.Struct, frozen=True):
    """A group of facts as it was decoded and vetted. number: the same for the same bytes, as long as they are remembered."""

    number: int
    facts: Any


class HostInSeries(msgspec.Struct, frozen=True):
    """One host's snapshot.

    Args:
        snapshot: its facts.
        numbers: of its groups, by name: where two hosts have the same number, they have the same facts.
        written: the JSON of each group; without those that the file doesn't have.
    """

    snapshot: Snapshot
    numbers: Mapping[str, int]
    written: Mapping[str, msgspec.Raw]


class SnapshotSeries:
    """Reads and judges many snapshots.

    Args:
        checks: by which they are judged.
        nproc: ranks planned on each; None: as many as it has GPUs.
    """

    def __init__(self, checks: Sequence[Check], nproc: int | None = None) -> None:
        hints = get_type_hints(Snapshot)
        self._decoders = {name: msgspec.json.Decoder(hints[name]) for name in _KEYS}
        self._groups: dict[str, Remembered[bytes, KnownGroup]] = {name: Remembered() for name in GROUPS}
        self._results: dict[str, Remembered[Hashable, Result]] = {check.slug: Remembered() for check in checks}
        self._checks = [(check, sorted(check.groups)) for check in checks]
        self._nproc = nproc
        self._numbers = 0

    def read(self, content: bytes, name: str) -> HostInSeries:
        """Decode one snapshot, as `decode_snapshot` does.

        Args:
            content: JSON, or the lines of `snapshot_lines`.
            name: stands in the errors.
        Raises:
            SnapshotError: truncated, not ours, or from a newer ddpdoctor.
        """
        content = joined(content)
        check_header(content, name)
        try:
            written = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
            header = {field: self._header(field, written) for field in HEADER}
            known = {group: self._known(group, written.get(_KEYS[group])) for group in GROUPS}
        except UNREADABLE as error:
            raise SnapshotError(f"{name}: not a whole snapshot: {error}") from error
        if not is_host(header["host"]):
            header["host"] = ""
        if not is_version(header["tool_version"]):
            header["tool_version"] = ""
        return HostInSeries(
            Snapshot(**header, **{group: facts.facts for group, facts in known.items()}),
            {group: facts.number for group, facts in known.items()},
            {group: written[_KEYS[group]] for group in GROUPS if _KEYS[group] in written},
        )

    def _header(self, field: str, written: Mapping[str, msgspec.Raw]) -> Any:
        return self._decoders[field].decode(written[field]) if field in written else getattr(_DEFAULTS, field)

    def _known(self, group: str, written: msgspec.Raw | None) -> KnownGroup:
        content = b"" if written is None else bytes(written)
        digest = hashlib.blake2b(content, digest_size=16).digest()
        return self._groups[group].get(digest, lambda: self._learn(group, content))

    def _learn(self, group: str, content: bytes) -> KnownGroup:
        self._numbers += 1
        if not content:
            return KnownGroup(self._numbers, getattr(_DEFAULTS, group))
        try:
            facts = plausible_group(self._decoders[group].decode(content))
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} of `{_KEYS[group]}`") from error
        if group == "checkpoints":
            facts = attributed(facts)
        # What is as it is where nobody tried anything, is that: checks ask for it by comparing.
        return KnownGroup(self._numbers, UNTRIED[group] if facts == UNTRIED.get(group) else facts)

    def examine(self, host: HostInSeries) -> Examination:
        """Judge one of them."""
        plan = plan_for(host.snapshot, self._nproc)
        results = []
        for check, groups in self._checks:
            # Whether a check asks for the plan isn't known before it is loaded.
            key = (plan, *(host.numbers[group] for group in groups))
            results.append(
                self._results[check.slug].get(key, lambda check=check: diagnose(host.snapshot, plan, [check])[0])  # type: ignore[misc]
            )
        return Examination(host.snapshot, plan, tuple(results))
