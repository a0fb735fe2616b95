"""The facts of a host as pairs of a path and a value that can be compared with other hosts'. Pure.

Every field of every group is compared unless the tables here say that it differs from host to host or from minute to minute, so that
a new fact needs no code. What stands for the host itself in a value (its name, its addresses) is replaced by a sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Final, get_args, get_type_hints

import msgspec

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.snapshot import EXPERIMENTS, GROUPS, Snapshot

PRESENT: Final = "present"
"""The value of an item or a part that a host has; its own facts stand below it."""
ABSENT: Final = "absent"
UNKNOWN: Final = "?"
"""What the value of an unknown fact begins with; then comes the reason."""

OWN_NAME: Final = "<its name>"
_UNIQUE: Final = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![0-9a-fA-F:])"
)
"""A UUID or the address of a network card, wherever it stands."""
SHORTEST_UNIQUE: Final = 17

COMPARED_GROUPS: Final = tuple(
    name for name in GROUPS if name not in {*EXPERIMENTS, "processes", "kernel_log", "checkpoints"}
)

DIFFERENT_BY_NATURE: Final = {
    "Gpu": {
        "uuid", "memory_used", "throttle_reasons", "temperature", "power", "sm_clock", "utilisation", "pcie_generation",
        "nvlink_errors", "processes", "processes_memory", "holders", "mps_server", "ecc_uncorrected_volatile",
        "ecc_uncorrected_aggregate",
    },
    "MigInstance": {"uuid"},
    "PciDevice": {"link_speed", "aer_fatal", "aer_nonfatal", "aer_correctable"},
    "Machine": {"memory_available", "boot_id"},
    "SharedMemory": {"free", "stale", "stale_size", "segments", "left_out", "closed"},
    "Disk": {"free", "inodes_free"},
    "Cgroup": {"memory_used", "memory_reclaimable", "oom_kills", "pids_used"},
    "Network": {"hostname", "fqdn", "listeners", "taken_ports", "hosts_lines", "met_at"},
    "Resolution": {"seconds"},
    "Interface": {"addresses"},
    "RdmaPort": {"counters"},
    "Gid": {"gid"},
    "Nccl": {"answer_log"},
    "Torch": {"import_seconds", "import_traceback"},
    "Environment": {"file_init"},
}  # fmt: skip
"""A struct to those of its fields that alike hosts don't share: addresses, serials, counters, what is used or free, what idles. Checks
judge them."""

NAMED_BY: Final = {
    "Gpu": ("index",),
    "Interface": ("name",),
    "RdmaPort": ("device", "port"),
    "Gid": ("index",),
    "PciDevice": ("address",),
    "Disk": ("purpose",),
    "Package": ("name",),
    "Library": ("soname",),
    "Setting": ("name",),
    "Extension": ("package",),
    "Apex": ("location",),
    "SharedObject": ("module",),
    "Nvcc": ("path",),
    "Consumer": ("name",),
    "ConfigEntry": ("name",),
}
"""A struct to the fields by which one of several is found again on another host; others go by their place."""

_OF_A_RANK: Final = re.compile(
    r"(?:SLURM|SLURMD|PMI|PMIX|OMPI|MV2|MPI)_.*|MPI_LOCAL\w+|(?:\w+_)?RANK|JOB_COMPLETION_INDEX"
)
"""Settings by which a launcher tells each rank who it is."""

TOOL_VERSION: Final = "tool_version"
"""The path of ddpdoctor's own version: an older one knows fewer facts."""

Pair = tuple[str, str]


def comparable_facts(group: str, facts: object) -> list[Pair]:
    """A group's facts as (path, value): the value is JSON, or one of the words above."""
    if isinstance(facts, Unknown):
        return [(group, f"{UNKNOWN}{facts.reason}")]
    found: list[Pair] = [(group, PRESENT)]
    if isinstance(facts, msgspec.Struct):
        _walk_struct(group, facts, found)
    return found


def _walk_struct(path: str, struct: msgspec.Struct, found: list[Pair]) -> None:
    for name, holds_structs in _compared_fields(type(struct)):
        value = getattr(struct, name)
        # Of a list without items there is nothing to say: they are absent there, where other hosts have some.
        if value != () or not holds_structs:
            _walk(f"{path}.{name}", value, found)


def _walk(path: str, value: object, found: list[Pair]) -> None:
    if isinstance(value, Unknown):
        found.append((path, f"{UNKNOWN}{value.reason}"))
    elif isinstance(value, msgspec.Struct):
        found.append((path, PRESENT))
        _walk_struct(path, value, found)
    elif type(value) is tuple and value and isinstance(value[0], msgspec.Struct):
        for key, item in _named(value):
            below = f"{path}[{key}]"
            found.append((below, PRESENT))
            _walk_struct(below, item, found)
    else:
        found.append((path, json_text(value)))


def json_text(value: object) -> str:
    """A value as it is compared, without what is unique to one host."""
    text = msgspec.json.encode(value).decode()
    return _UNIQUE.sub("<unique>", text) if len(text) > SHORTEST_UNIQUE and text[0] in '"[' else text


@cache
def _compared_fields(struct: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """The fields, and whether each may hold structs."""
    left_out = {*DIFFERENT_BY_NATURE.get(struct.__name__, ()), *NAMED_BY.get(struct.__name__, ())}
    hints = get_type_hints(struct)
    return tuple((name, _holds_structs(hints[name])) for name in struct.__struct_fields__ if name not in left_out)


def _holds_structs(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint is not Unknown:
        return True
    return any(map(_holds_structs, get_args(hint)))


def _named(items: Sequence[msgspec.Struct]) -> Iterator[tuple[str, msgspec.Struct]]:
    keys: dict[str, int] = {}
    for place, item in enumerate(items):
        fields = NAMED_BY.get(type(item).__name__, ())
        key = "/".join(str(getattr(item, field)) for field in fields) or str(place)
        if isinstance(item, Setting) and _OF_A_RANK.fullmatch(key):
            continue
        key = key.replace("[", "(").replace("]", ")")
        keys[key] = keys.get(key, 0) + 1
        yield (key if keys[key] == 1 else f"{key} ({keys[key]})"), item


class OwnWords:
    """Signs for what stands for one host alone.

    Args:
        snapshot: of the host.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.words = own_words(snapshot)
        self._signs = {word: sign(place) for place, word in enumerate(self.words)}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        alternatives = "|".join(re.escape(word) for word in sorted(self.words, key=len, reverse=True))
        return re.compile(rf"(?<![\w.:-])(?:{alternatives})(?![\w:-])" if alternatives else r"(?!)")

    def stand_in(self, values: str) -> bool:
        """Whether some of them may stand in those values."""
        return any(word in values for word in self.words)

    def replaced(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The pairs with signs in their values."""
        return [(path, self._in_value(value)) for path, value in pairs]

    def _in_value(self, value: str) -> str:
        if value[:1] not in '"[?':
            return value
        return self._pattern.sub(lambda found: self._signs[found[0]], value)


MAX_OWN_WORDS: Final = 16


def own_words(snapshot: Snapshot) -> tuple[str, ...]:
    """The host's name, and its addresses in the order of its interfaces."""
    words = [snapshot.host]
    if not isinstance(snapshot.network, Unknown):
        words += [
            address.partition("/")[0]
            for interface in snapshot.network.interfaces
            if not interface.loopback
            for address in interface.addresses
        ]
    return tuple(word for word in dict.fromkeys(words) if word)[:MAX_OWN_WORDS]


def sign(place: int) -> str:
    """The sign for the own word at that place."""
    return f"<its address {place}>" if place else OWN_NAME


def with_own_words(value: str, words: Sequence[str]) -> str:
    """The value as it stood in the facts of the host with these own words."""
    if "<its " not in value:
        return value
    for place, word in enumerate(words):
        value = value.replace(sign(place), word)
    return value
