"""Many hosts' snapshots in a row: what several have in common is decoded, vetted and judged once.

A group of facts that another host had, byte for byte, is that host's. In most groups something differs on every host; what is worked out of
them is remembered by those fields that it asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, get_type_hints

import msgspec

from ddpdoctor.engine.examination import Examination
from ddpdoctor.engine.planning import plan_for
from ddpdoctor.engine.registry import Check, Result, diagnose
from ddpdoctor.engine.sanitize_facts import is_host, is_plausible, is_version, plausible_group
from ddpdoctor.engine.snapshot_lines import joined
from ddpdoctor.engine.snapshots import UNREADABLE, SnapshotError, attributed, check_header
from ddpdoctor.engine.varying_fields import Field, SplitFacts, VaryingFields, digest
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.snapshot import GROUPS, HEADER, UNTRIED, Snapshot

MAX_REMEMBERED: Final = 64
"""Forms of one group of facts, and answers of one function: hosts that are alike have few."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_KEYS: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Snapshot)}
_DEFAULTS: Final = Snapshot()


class Remembered(Generic[K, T]):
    """The values that were asked for last, by key."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._values: dict[K, T] = {}
        self._most = most

    def get(self, key: K) -> T | None:
        """The value of that key; None where it isn't known any more."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def put(self, key: K, value: T) -> T:
        """Remember a value, and forget which was asked for the longest ago."""
        if len(self._values) >= self._most:
            del self._values[next(iter(self._values))]
        self._values[key] = value
        return value


Reads = tuple[Field, ...] | None
"""The varying fields of a group that a function asks for, in the order in which it was found to; None: all, and more cannot be said."""


class GroupForm:
    """One content of a group of facts.

    Args:
        facts: decoded and vetted.
        content: a digest of its JSON.
        varying: the group's fields in which hosts differ; None where none is ever left out.
        split: the facts, where that was done already.
    """

    def __init__(
        self, facts: Any, content: bytes, varying: VaryingFields | None = None, split: SplitFacts | None = None
    ) -> None:
        self.facts = facts
        self.content = content
        self._varying = varying
        self._take(split or (varying.split(facts) if varying else SplitFacts(0, content, {})))

    def _take(self, split: SplitFacts) -> None:
        self._split = split
        self._rest = (split.version, split.rest)
        self._digests: dict[Field, bytes] = {}

    @property
    def split(self) -> SplitFacts:
        """As the varying fields are known now."""
        if self._varying and self._split.version != self._varying.version:
            self._take(self._varying.split(self.facts))
        return self._split

    def key(self, reads: Reads) -> Hashable:
        """The same for all forms between which whoever reads these fields sees no difference."""
        if reads is None:
            return self.content
        columns = self.split.columns
        return (self._rest, *(self._digest(field, columns) for field in reads)) if reads else self._rest

    def _digest(self, field: Field, columns: Mapping[Field, Sequence[Any]]) -> bytes:
        if field not in self._digests:
            self._digests[field] = digest(msgspec.json.encode(columns.get(field)))
        return self._digests[field]

    def with_only(self, reads: Reads) -> Any:
        """The facts without the varying fields that aren't read."""
        if reads is None or self._varying is None or all(field in reads for field in self.split.columns):
            return self.facts
        return self._varying.without(self.facts, reads)


class HostInSeries:
    """One host's snapshot.

    Args:
        snapshot: its facts.
        forms: of its groups, by name.
    """

    def __init__(self, snapshot: Snapshot, forms: Mapping[str, GroupForm]) -> None:
        self.snapshot = snapshot
        self.forms = forms
        self._given: dict[tuple[str, Reads], Any] = {}

    def snapshot_with_only(self, reads: Mapping[str, Reads]) -> Snapshot:
        """The snapshot, in which of these groups only such varying fields are left."""
        return msgspec.structs.replace(
            self.snapshot, **{group: self._with_only(group, reads[group]) for group in reads}
        )

    def _with_only(self, group: str, reads: Reads) -> Any:
        # The same facts are the same object for all who ask for them: what was worked out of them is remembered by that.
        key = (group, reads)
        if key not in self._given:
            self._given[key] = self.forms[group].with_only(reads)
        return self._given[key]


class Answers(Generic[T]):
    """What a pure function of some groups of facts answers, asked once for all hosts between which it sees no difference.

    Args:
        groups: all that it looks at.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        self._reads: dict[str, Reads] = dict.fromkeys(sorted(groups), ())
        self._answers: Remembered[Hashable, T] = Remembered()

    def get(self, host: HostInSeries, ask: Callable[[Snapshot, tuple[type[Exception], ...]], T], *more: Hashable) -> T:
        """The answer for a host.

        Args:
            host: whose facts are looked at.
            ask: the function, of a snapshot and of the exceptions that it must let through.
            more: what else the answer depends on.
        """
        while True:
            key = (more, *(host.forms[group].key(reads) for group, reads in self._reads.items()))
            if (answer := self._answers.get(key)) is not None:
                return answer
            passed_on = () if all(reads is None for reads in self._reads.values()) else (AttributeError,)
            try:
                return self._answers.put(key, ask(host.snapshot_with_only(self._reads), passed_on))
            except passed_on as missing:
                self._learn(host, missing)

    def _learn(self, host: HostInSeries, missing: AttributeError) -> None:
        """Keep the field that was missing from now on; whatever it was that failed in another way, all of them."""
        field = (type(missing.obj), missing.name)
        lacking = {
            group: (*reads, field)
            for group, reads in self._reads.items()
            if reads is not None and field not in reads and field in host.forms[group].split.columns
        }
        self._reads |= lacking or dict.fromkeys(self._reads)  # type: ignore[arg-type]


class SnapshotSeries:
    """Reads and judges many snapshots.

    Args:
        checks: by which they are judged.
        nproc: ranks planned on each; None: as many as it has GPUs.
    """

    def __init__(self, checks: Sequence[Check], nproc: int | None = None) -> None:
        hints = get_type_hints(Snapshot)
        self._decoders = {name: msgspec.json.Decoder(hints[name]) for name in _KEYS}
        self._groups = {name: _GroupReader(name, self._decoders[name]) for name in GROUPS}
        self._answers: list[tuple[Check, Answers[Result]]] = [(check, Answers(check.groups)) for check in checks]
        self._nproc = nproc

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
            forms = {group: self._groups[group].read(written.get(_KEYS[group])) for group in GROUPS}
        except UNREADABLE as error:
            raise SnapshotError(f"{name}: not a whole snapshot: {error}") from error
        if not is_host(header["host"]):
            header["host"] = ""
        if not is_version(header["tool_version"]):
            header["tool_version"] = ""
        return HostInSeries(Snapshot(**header, **{group: form.facts for group, form in forms.items()}), forms)

    def _header(self, field: str, written: Mapping[str, msgspec.Raw]) -> Any:
        return self._decoders[field].decode(written[field]) if field in written else getattr(_DEFAULTS, field)

    def examine(self, host: HostInSeries) -> Examination:
        """Judge one of them."""
        plan = plan_for(host.snapshot, self._nproc)
        return Examination(
            host.snapshot, plan, tuple(_result(check, answers, host, plan) for check, answers in self._answers)
        )


def _result(check: Check, answers: Answers[Result], host: HostInSeries, plan: Plan) -> Result:
    # Whether a check asks for the plan isn't known before it is loaded.
    return answers.get(
        host, lambda snapshot, passed_on: diagnose(snapshot, plan, [check], passed_on=passed_on)[0], plan
    )


class _GroupReader:
    """Reads the facts of one group, host after host."""

    def __init__(self, group: str, decoder: msgspec.json.Decoder[Any]) -> None:
        self._group = group
        self._decoder = decoder
        # What nobody tried is known by comparing: nothing of it may be missing.
        self._varying = None if group in UNTRIED else VaryingFields()
        self._forms: Remembered[bytes, GroupForm] = Remembered()
        self._vetted: Remembered[tuple[int, bytes], bool] = Remembered()
        self._last: Any = None

    def read(self, written: msgspec.Raw | None) -> GroupForm:
        """The group as it is written; None where the file hasn't got it."""
        content = b"" if written is None else bytes(written)
        key = digest(content)
        return self._forms.get(key) or self._forms.put(key, self._form(key, self._decoded(content)))

    def _decoded(self, content: bytes) -> Any:
        if not content:
            return getattr(_DEFAULTS, self._group)
        try:
            return self._decoder.decode(content)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} of `{_KEYS[self._group]}`") from error

    def _form(self, key: bytes, facts: Any) -> GroupForm:
        if self._varying:
            return self._form_of_varying(key, facts, self._varying)
        facts = plausible_group(facts)
        if self._group == "checkpoints":
            facts = attributed(facts)
        # What is as it is where nobody tried anything, is that: checks ask for it by comparing.
        return GroupForm(UNTRIED[self._group] if facts == UNTRIED[self._group] else facts, key)

    def _form_of_varying(self, key: bytes, facts: Any, varying: VaryingFields) -> GroupForm:
        split = varying.split(facts)
        if self._vetted.get((split.version, split.rest)) and all(
            is_plausible(struct, name, values) for (struct, name), values in split.columns.items()
        ):
            return GroupForm(facts, key, varying, split)
        if self._last is not None:
            varying.learn(facts, self._last)
        self._last = facts
        vetted = plausible_group(facts)
        form = GroupForm(vetted, key, varying)
        if vetted is facts:
            self._vetted.put((form.split.version, form.split.rest), True)
        return form
