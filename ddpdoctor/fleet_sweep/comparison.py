"""Compares the facts of hosts that should be alike, and names the odd ones out. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import human, one_line, spans
from ddpdoctor.fleet_sweep.comparable import ABSENT, PRESENT, UNKNOWN, with_own_words
from ddpdoctor.fleet_sweep.sweep import FleetHost, Sweep

SIZE: Final = 1024**2
"""Numbers from here on are sizes in bytes, which may differ a little between hosts that are alike."""
SHOWN_AS_SIZE: Final = 64 * SIZE
"""A limit of open files or processes may be as large as a small size."""
ALIKE_SIZES: Final = 0.01
MAX_ODD_SHARE: Final = 0.5
"""Of the hosts: where more than that have a value of their own, it names the host rather than telling how it was set up."""
MIN_FOR_IDENTITY: Final = 4
CLOCK_SECONDS: Final = 300.0
"""Clocks this far apart break what rests on tickets and certificates."""
CLOCK: Final = "taken_at"


class OddFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact in which some hosts differ from those that should be like them.

    Args:
        path: of the fact: "driver.kernel_version", "gpus.devices[3].pcie_width".
        value: theirs; JSON, or a word.
        expected: the majority's, or the profile's; None where no value has a majority.
        hosts: their names.
        agreeing: hosts that have the expected value.
        of: hosts on which the fact is known.
    """

    path: str
    value: str
    expected: str | None
    hosts: tuple[str, ...]
    agreeing: int
    of: int


class AlikeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that should be alike, and what came of comparing them.

    Args:
        label: what they have in common: the model of their GPUs, mostly.
        hosts: their names.
        odd: what the minority has, the most hosts last.
        undecided: facts without a majority: a value each, the most frequent first.
        unknown: facts that are known on some hosts only, by path: the reason and the hosts.
        different: paths of facts in which nearly every host differs.
        compared: how many facts were compared.
    """

    label: str
    hosts: tuple[str, ...]
    odd: tuple[OddFact, ...] = ()
    undecided: tuple[OddFact, ...] = ()
    unknown: tuple[OddFact, ...] = ()
    different: tuple[str, ...] = ()
    compared: int = 0


def compare(sweep: Sweep, labels: Mapping[str, str]) -> tuple[AlikeGroup, ...]:
    """Compare the hosts of each group.

    Args:
        sweep: the hosts.
        labels: a host's name to what it has in common with those that should be like it.
    """
    groups = grouped(sorted(sweep.hosts), lambda name: labels[name])
    found = [Comparison(sweep, label, names).group() for label, names in groups.items()]
    return tuple(sorted(found, key=lambda group: -len(group.hosts)))


class Comparison:
    """Hosts that should be alike.

    Args:
        sweep: all hosts.
        label: what these have in common.
        names: theirs.
    """

    def __init__(self, sweep: Sweep, label: str, names: Sequence[str]) -> None:
        self._sweep = sweep
        self._label = label
        self._hosts = [sweep.hosts[name] for name in names]
        # Hosts that are alike have the same places: they are counted, and looked up, once.
        self._alike = grouped(self._hosts, lambda host: host.groups)
        self._values: dict[str, dict[str, int]] = {}
        for groups, hosts in self._alike.items():
            for group in groups:
                for place in sweep.facts[group]:
                    path, value = sweep.pairs[place]
                    values = self._values.setdefault(path, {})
                    values[value] = values.get(value, 0) + len(hosts)

    def group(self) -> AlikeGroup:
        """Compare them with one another."""
        odd: list[OddFact] = []
        undecided: list[OddFact] = []
        unknown: list[OddFact] = []
        different: list[str] = []
        wanted: dict[str, _Split] = {}
        for path, values in self._values.items() if len(self._hosts) > 1 else ():
            split = self._split(path, values)
            if split.is_identity:
                different.append(path)
            elif split.differs:
                wanted[path] = split
        holders = self._holders(wanted)
        shuffled = self._shuffled_lists(wanted, holders)
        for path, split in wanted.items():
            if list_of(path) in shuffled:
                continue
            for value, _ in split.values:
                fact = OddFact(
                    path=path,
                    value=value,
                    expected=split.expected,
                    hosts=tuple(holders[path].get(value, ())),
                    agreeing=split.agreeing,
                    of=split.of,
                )
                if value.startswith(UNKNOWN):
                    unknown.append(fact)
                elif split.expected is None:
                    undecided.append(fact)
                elif value != split.expected and (kept := self._really_odd(fact)).hosts:
                    odd.append(kept)
        return AlikeGroup(
            label=self._label,
            hosts=tuple(host.name for host in self._hosts),
            odd=_merged(sorted([*odd, *self._clocks()], key=lambda fact: (len(fact.hosts), fact.path))),
            undecided=tuple(undecided),
            unknown=_merged(unknown),
            different=(*different, *sorted(shuffled)),
            compared=len(self._values) - len(different),
        )

    def shared(self) -> dict[str, str]:
        """What most of the hosts have, by path."""
        splits = ((path, self._split(path, values)) for path, values in self._values.items())
        return {
            path: split.expected
            for path, split in splits
            if split.expected not in (None, ABSENT) and not split.is_identity
        }

    def deviations(self, profile: Mapping[str, str]) -> tuple[OddFact, ...]:
        """Facts in which hosts differ from a profile; one that is unknown there has that as its value."""
        holders: dict[tuple[str, str], list[str]] = {}
        for groups, hosts in self._alike.items():
            facts = dict(self._sweep.pairs[place] for group in groups for place in self._sweep.facts[group])
            for path, expected in profile.items():
                if not are_alike(value := facts.get(path, ABSENT), expected):
                    holders.setdefault((path, value), []).extend(host.name for host in hosts)
        # Of what isn't there, or isn't known, nothing else is said.
        missing = {
            (path, name)
            for (path, value), names in holders.items()
            if value == ABSENT or value.startswith(UNKNOWN)
            for name in names
        }
        found = []
        for (path, value), names in holders.items():
            kept = tuple(name for name in names if (parent_of(path), name) not in missing)
            fact = OddFact(
                path=path,
                value=value,
                expected=profile[path],
                hosts=kept,
                agreeing=len(self._hosts) - len(names),
                of=len(self._hosts),
            )
            if (odd := self._really_odd(fact)).hosts:
                found.append(odd)
        return _merged(sorted(found, key=lambda fact: (-len(fact.hosts), fact.path)))

    def _split(self, path: str, values: Mapping[str, int]) -> _Split:
        """How the hosts that may have that fact divide over its values."""
        population = self._population(path)
        of = population - sum(count for value, count in values.items() if value.startswith(UNKNOWN))
        counts = _alike_sizes(values)
        if missing := population - sum(values.values()):
            counts[ABSENT] = missing
        known = {value: count for value, count in counts.items() if not value.startswith(UNKNOWN)}
        expected, agreeing = max(known.items(), key=lambda item: item[1], default=("", 0))
        return _Split(
            values=sorted(counts.items(), key=lambda item: -item[1]),
            expected=expected if agreeing * 2 > of else None,
            agreeing=agreeing,
            of=of,
            is_identity=len(known) >= MIN_FOR_IDENTITY and len(known) > of * MAX_ODD_SHARE,
            differs=len(counts) > 1,
        )

    def _population(self, path: str) -> int:
        """Hosts that have what the fact is a part of: those that have the list, of an item of it."""
        parent = parent_of(path)
        if not parent:
            return len(self._hosts)
        unknown = sum(count for value, count in self._values.get(_own_list(path), {}).items() if value[0] == UNKNOWN)
        return self._values.get(parent, {}).get(PRESENT, 0) - unknown

    def _holders(self, wanted: Mapping[str, _Split]) -> dict[str, dict[str, list[str]]]:
        """The hosts that have each of the values that isn't expected."""
        holders: dict[str, dict[str, list[str]]] = {path: {} for path in wanted}
        absent_for = {
            path: split for path, split in wanted.items() if any(value == ABSENT for value, _ in split.values)
        }
        for groups, hosts in self._alike.items():
            facts = dict(self._sweep.pairs[place] for group in groups for place in self._sweep.facts[group])
            for path in wanted.keys() & facts.keys():
                value = wanted[path].representative(facts[path])
                if value != wanted[path].expected:
                    holders[path].setdefault(value, []).extend(host.name for host in hosts)
            for path, split in absent_for.items():
                parent = parent_of(path)
                has_parent = not parent or facts.get(parent) == PRESENT
                is_known = not facts.get(_own_list(path), "").startswith(UNKNOWN)
                if split.expected != ABSENT and path not in facts and has_parent and is_known:
                    holders[path].setdefault(ABSENT, []).extend(host.name for host in hosts)
        return holders

    def _shuffled_lists(self, wanted: Mapping[str, _Split], holders: Mapping[str, Mapping[str, list[str]]]) -> set[str]:
        """Lists whose items are called otherwise on nearly every host."""
        odd_hosts: dict[str, set[str]] = {}
        for path, split in wanted.items():
            if is_item(path) and split.expected is not None:
                for names in holders[path].values():
                    odd_hosts.setdefault(list_of(path), set()).update(names)
        most = max(MIN_FOR_IDENTITY - 1, len(self._hosts) * MAX_ODD_SHARE)
        return {path for path, names in odd_hosts.items() if len(names) > most}

    def _really_odd(self, fact: OddFact) -> OddFact:
        """Without the hosts whose value is the majority's, though it names the host itself there."""
        expected = fact.expected or ""
        if "<its " not in fact.value and "<its " not in expected:
            return fact
        hosts = tuple(
            name
            for name in fact.hosts
            if with_own_words(fact.value, words := self._sweep.hosts[name].own_words) != with_own_words(expected, words)
        )
        return msgspec.structs.replace(fact, hosts=hosts)

    def _clocks(self) -> list[OddFact]:
        """Hosts whose snapshot was taken at another time by their clock than most others': it is old, or the clock is wrong."""
        moments = {host.name: moment for host in self._hosts if (moment := _moment(host.taken_at)) is not None}
        if len(moments) < MIN_FOR_IDENTITY:
            return []
        middle = median(moments.values())
        distances = sorted(abs(moment - middle) for moment in moments.values())
        most = max(CLOCK_SECONDS, 3 * distances[len(distances) * 3 // 4])
        far = {name: moment - middle for name, moment in moments.items() if abs(moment - middle) > most}
        expected = datetime.fromtimestamp(middle).astimezone().isoformat(timespec="seconds")
        return [
            OddFact(
                path=CLOCK,
                value=msgspec.json.encode(self._sweep.hosts[name].taken_at).decode(),
                expected=msgspec.json.encode(expected).decode(),
                hosts=(name,),
                agreeing=len(moments) - len(far),
                of=len(moments),
            )
            for name in far
        ]


class _Split(msgspec.Struct, frozen=True, kw_only=True):
    """How hosts divide over the values of a fact. values: with their hosts' number, the most frequent first."""

    values: list[tuple[str, int]]
    expected: str | None
    agreeing: int
    of: int
    is_identity: bool
    differs: bool

    def representative(self, value: str) -> str:
        """The value under which a value was counted: sizes that differ a little are one."""
        known = [other for other, _ in self.values]
        if value in known:
            return value
        return next((other for other in known if are_alike(other, value)), value)


def are_alike(value: str, other: str) -> bool:
    """Whether two values say the same: sizes may differ by a hundredth."""
    if value == other:
        return True
    if not (value.isdecimal() and other.isdecimal()):
        return False
    least, most = sorted((int(value), int(other)))
    return least >= SIZE and most - least <= least * ALIKE_SIZES


def _alike_sizes(values: Mapping[str, int]) -> dict[str, int]:
    """The same counts, with sizes that are alike counted as the most frequent of them."""
    counts: dict[str, int] = {}
    for value, count in sorted(values.items(), key=lambda item: -item[1]):
        same = next((other for other in counts if are_alike(other, value)), value) if value.isdecimal() else value
        counts[same] = counts.get(same, 0) + count
    return counts


def _moment(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


# --- paths ----------------------------------------------------------------------------------------------------------------------

_ITEM: Final = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]")


def is_item(path: str) -> bool:
    """Whether the path is that of one of several, and not of a fact of it."""
    return path.endswith("]")


def _own_list(path: str) -> str:
    """The list that an item stands in; "" for what is no item."""
    return path[: _begin_of_item(path)] if is_item(path) else ""


def _begin_of_item(path: str) -> int:
    """Where the brackets begin with which a path ends: there may be some within."""
    depth = 0
    for place in range(len(path) - 1, -1, -1):
        depth += {"]": 1, "[": -1}.get(path[place], 0)
        if not depth:
            return place
    return 0


def list_of(path: str) -> str:
    """The list to whose items a path leads; "" where it leads to none."""
    return path.partition("[")[0] if "[" in path else ""


def parent_of(path: str) -> str:
    """What a fact is a part of: "network.interfaces[eth0]" of "network.interfaces[eth0].mtu", "network" of that; "" of "network"."""
    if is_item(path):
        return parent_of(path[: _begin_of_item(path)])
    depth = 0
    for place in range(len(path) - 1, -1, -1):
        depth += {"]": 1, "[": -1}.get(path[place], 0)
        if path[place] == "." and not depth:
            return path[:place]
    return ""


def _merged(facts: Iterable[OddFact]) -> tuple[OddFact, ...]:
    """One of several that differ in one item's name alone: "gpus.devices[0-7].ecc_enabled"."""
    groups = grouped(facts, lambda fact: (_ITEM.sub("[*]", fact.path, count=1), fact.value, fact.expected, fact.hosts))
    return tuple(
        msgspec.structs.replace(same[0], path=path.replace("[*]", f"[{_items(same)}]", 1)) if len(same) > 1 else same[0]
        for (path, *_), same in groups.items()
    )


def _items(facts: Sequence[OddFact]) -> str:
    names = [found[1] for fact in facts if (found := _ITEM.search(fact.path))]
    return ",".join(spans(map(int, names)) if all(map(str.isdecimal, names)) else names)


# --- which hosts should be alike --------------------------------------------------------------------------------------------------

NO_GPU: Final = "no GPU"
NO_PARTITION: Final = "no partition"


def by_gpu(hosts: Mapping[str, FleetHost]) -> dict[str, str]:
    """Hosts with the same GPUs: by the PCI bus, where a GPU stands that no driver speaks for, and else by what the driver calls them."""
    models: dict[tuple[str, ...], Counter[str]] = {}
    for host in hosts.values():
        if host.pci_models and host.models:
            models.setdefault(host.pci_models, Counter())[" + ".join(host.models)] += 1
    labels = {}
    for name, host in hosts.items():
        on_bus = models.get(host.pci_models)
        own = " + ".join(host.models) or (f"PCI {' + '.join(host.pci_models)}" if host.pci_models else NO_GPU)
        labels[name] = on_bus.most_common(1)[0][0] if on_bus else own
    return labels


def by_partition(hosts: Mapping[str, FleetHost]) -> dict[str, str]:
    """Hosts of the same partition of Slurm's."""
    return {name: host.partition or NO_PARTITION for name, host in hosts.items()}


def by_fact(sweep: Sweep, path: str) -> dict[str, str] | None:
    """Hosts that have the same value of that fact; None where no host has such a fact."""
    labels = {name: dict(sweep.facts_of(host)).get(path) for name, host in sweep.hosts.items()}
    if not any(labels.values()):
        return None
    return {name: f"{path} {shown_value(value or ABSENT)}" for name, value in labels.items()}


def shown_value(value: str) -> str:
    """A value as a person reads it."""
    if value.startswith(UNKNOWN):
        return f"unknown: {one_line(value[1:])}"
    if value.isdecimal():
        return human(int(value)) if int(value) >= SHOWN_AS_SIZE else f"{int(value):,}"
    if value[:1] == '"':
        return one_line(msgspec.json.decode(value)) or "empty"
    if value[:1] == "[":
        return ", ".join(str(item) for item in msgspec.json.decode(value)) or "none"
    return {"null": "none", "true": "yes", "false": "no"}.get(value, value)
