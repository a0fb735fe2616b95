"""Of exceptions that belong together, the line of the script: one that a library raised within another's handling has none of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ddpdoctor.facts.log import LogFrame, LoggedException
from ddpdoctor.logs.analyze.exceptions import is_passed_on
from ddpdoctor.logs.analyze.failures import stream


def with_own_lines(raised: Iterable[LoggedException]) -> tuple[LoggedException, ...]:
    """In the order in which they were read. Those in whose traceback no line of the script is get that of the exception that they led to, or
    of the process that passed a worker's on."""
    streams: dict[tuple[object, ...], list[LoggedException]] = {}
    found = sorted(raised, key=lambda one: one.line.order)
    for one in found:
        streams.setdefault(stream(one.line), []).append(one)
    own = {id(one): _own(one, place, some) for some in streams.values() for place, one in enumerate(some)}
    return tuple(one if one.own else msgspec.structs.replace(one, own=own[id(one)]) for one in found)


def _own(one: LoggedException, place: int, some: Sequence[LoggedException]) -> LogFrame | None:
    if place and is_passed_on(some[place - 1], one):
        return one.own or some[place - 1].own
    for raised in some[place:]:
        if raised.own or not raised.chained:
            return raised.own
    return None
