"""Leaves out of a snapshot that somebody else took what can't be a name, an address, a version or a path. Pure.

Commands are made of such words, and somebody copies them into a shell. So where a word can't be what it is said to be, its group
of facts isn't taken. A text that isn't listed here must be plain words; free text (a log's words, the value of a setting) may be
anything. All of it is quoted besides where a command is made of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, TypeVar

import msgspec

from ddpdoctor.base.shell import is_typeable
from ddpdoctor.base.tables import read_table
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.fleet import Fleet
from ddpdoctor.facts.packages import Packages
from ddpdoctor.facts.snapshot import Snapshot

T = TypeVar("T")

_WORDS: Final = "plain words"
_ADDRESS: Final = "an address"
_PLACE: Final = "a host's name or address"
_PATH: Final = "a path"
_FREE: Final = "free text"

_KINDS: Final = {
    "a host's name": re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})"),
    "an interface's name": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:+-]{0,31}"),
    "a version": re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}"),
    "a setting's name": re.compile(r"(--)?[A-Za-z_][A-Za-z0-9_-]{0,127}"),
    "a word": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}"),
    "ports": re.compile(r"[0-9, -]{1,4096}"),
    _WORDS: re.compile(r"(?!-)[A-Za-z0-9_./:+@%=, ()\[\]-]{1,4096}"),
}


@cache
def text_kinds() -> dict[str, dict[str, str]]:
    """Read the table of what the texts of a snapshot are: struct's name to its fields, to the kind of each.

    Texts of fields that aren't listed are plain words.
    """
    kinds = read_table(__name__, "sanitize_facts.json", dict[str, dict[str, list[str]]])
    return {
        struct: {field: kind for kind, fields in of_struct.items() for field in fields}
        for struct, of_struct in kinds.items()
    }


def is_host(text: str) -> bool:
    """Whether a host may be called that."""
    return _is(text, "a host's name")


def is_version(text: str) -> bool:
    """Whether a release may be called that."""
    return _is(text, "a version")


def is_address(text: str) -> bool:
    """Whether it is an IP address, perhaps with a zone ("fe80::1%eth0") or the length of its prefix."""
    address, slash, length = text.partition("/")
    address, percent, zone = address.partition("%")
    if (slash and not (length.isascii() and length.isdecimal())) or (percent and not _is(zone, "an interface's name")):
        return False
    try:
        return int(length or 0) <= ipaddress.ip_address(address).max_prefixlen
    except ValueError:
        return False


def plausible(snapshot: Snapshot) -> Snapshot:
    """Leave out the groups in which something can't be what it is said to be: they are Unknown, with the reason."""
    refused: dict[str, object] = {}
    for name in snapshot.__struct_fields__:
        group = getattr(snapshot, name)
        if (taken := plausible_group(group)) is not group:
            refused[name] = taken
    if snapshot.host and not is_host(snapshot.host):
        refused["host"] = ""
    if snapshot.tool_version and not is_version(snapshot.tool_version):
        refused["tool_version"] = ""
    return msgspec.structs.replace(snapshot, **refused) if refused else snapshot


def plausible_group(group: T) -> T | Unknown:
    """The group of facts as it may be taken, or Unknown with the reason why not."""
    wrong = next(_wrong(group), "") if isinstance(group, msgspec.Struct) else ""
    if wrong and isinstance(group, Packages):
        # Any package may have brought odd metadata; the others are no worse for it.
        installed = tuple(package for package in group.installed if not any(_wrong(package)))
        return msgspec.structs.replace(group, installed=installed)
    if not wrong and isinstance(group, Fleet) and not _is_consistent(group):
        wrong = "they aren't of one fleet of nodes"
    return Unknown(f"the snapshot's facts were not taken: {wrong}") if wrong else group


_NUMBERS: Final = frozenset((int, float, bool))


def _wrong(struct: msgspec.Struct) -> Iterator[str]:
    for name in struct.__struct_fields__:
        held = getattr(struct, name)
        # Most are numbers.
        if held is not None and type(held) not in _NUMBERS:
            yield from _wrong_texts(type(struct), name, held)


def _wrong_texts(struct: type[msgspec.Struct], name: str, held: object) -> Iterator[str]:
    kind = text_kinds().get(struct.__name__, {}).get(name, _WORDS)
    for value in _flat(held):
        if isinstance(value, msgspec.Struct):
            yield from _wrong(value)
        # An empty one says that there is none. An enum's values are our own.
        elif type(value) is str and value and not _is(value, kind):
            yield f"{value[:40]!a} is not {kind}"


def is_plausible(struct: type[msgspec.Struct], name: str, values: Sequence[object]) -> bool:
    """Whether a field of such structs may hold these values."""
    return not any(_wrong_texts(struct, name, tuple(values)))


def _is_consistent(fleet: Fleet) -> bool:
    """Whether all that was tried was tried between its nodes, as whoever reads it relies on: also in every row of a matrix."""
    ranks = {node.rank for node in fleet.nodes}
    tried = {rank for link in fleet.links for rank in (link.a, link.b)}
    lengths = {len(part) for reach in fleet.reach for part in (reach.addresses, reach.ports, reach.rows, *reach.rows)}
    return len(ranks) == len(fleet.nodes) and tried <= ranks and lengths <= {len(ranks)}


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        for item in value.items():
            yield from _flat(item)
    else:
        yield value


def _is(text: str, kind: str) -> bool:
    if kind == _FREE:
        return True
    if kind == _PATH:
        return len(text) <= 4096 and not text.startswith("-") and is_typeable(text)
    if kind == _ADDRESS:
        return is_address(text)
    if kind == _PLACE:
        return is_address(text) or is_host(text)
    return _KINDS[kind].fullmatch(text) is not None
