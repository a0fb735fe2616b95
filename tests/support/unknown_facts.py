"""Hosts of which something could not be learned: a snapshot with each of its facts unknown in turn, without parsing any anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from ddpdoctor.base.unknown import Facts, Maybe, Unknown
from ddpdoctor.facts.snapshot import Snapshot

COULD_NOT_BE_READ = Unknown("could not be read")

Place = tuple[str | int, ...]
"""Where a fact stands: ("driver",), ("driver", "nvml_status"), ("gpus", "devices", "*" or 7, "memory_used")."""


def written(place: Place) -> str:
    """Its name in a table: "driver.nvml_status"."""
    return ".".join(map(str, place))


def with_each_unknown(snapshot: Snapshot, groups: Iterable[str]) -> Iterator[tuple[Place, Snapshot]]:
    """The same host with each fact of these groups unknown."""
    for name in sorted(groups):
        for place in places_in(name, getattr(snapshot, name)):
            yield place, put(snapshot, place, COULD_NOT_BE_READ)


def places_in(name: str, group: Maybe[Facts]) -> Iterator[Place]:
    """Places of a group's facts that may be unknown: the group, its fields, and those of all and of the last of its items."""
    yield (name,)
    if isinstance(group, Unknown):
        return
    yield from ((name, field) for field in unknowable(type(group)))
    for field in group.__struct_fields__:
        items = getattr(group, field)
        if isinstance(items, tuple) and items and isinstance(items[0], msgspec.Struct):
            for which in ("*", len(items) - 1):
                yield from ((name, field, which, part) for part in unknowable(type(items[0])))


@cache
def unknowable(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields that may be unknown."""
    return tuple(name for name, hint in get_type_hints(struct).items() if Unknown in get_args(hint))


def at(snapshot: Snapshot, place: Place) -> Iterator[Any]:
    """The values that stand there in a snapshot."""
    group = getattr(snapshot, str(place[0]))
    if len(place) == 1:
        yield group
    elif not isinstance(group, Unknown):
        value = getattr(group, str(place[1]))
        yield from (getattr(item, str(place[3])) for item in value) if len(place) > 2 else (value,)


def put(snapshot: Snapshot, place: Place, value: Any) -> Snapshot:
    """The same snapshot with another value in that place."""
    name, *rest = place
    if rest:
        group = getattr(snapshot, str(name))
        field, *inner = rest
        if inner:
            which, part = inner
            value = tuple(
                msgspec.structs.replace(item, **{str(part): value}) if which in ("*", index) else item
                for index, item in enumerate(getattr(group, str(field)))
            )
        value = msgspec.structs.replace(group, **{str(field): value})
    return msgspec.structs.replace(snapshot, **{str(name): value})
