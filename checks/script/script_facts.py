"""Questions that several rules ask of a script. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ddpdoctor.base.findings import Evidence, SourcePlace
from ddpdoctor.engine.registry import requires
from ddpdoctor.facts.script import Condition, Iteration, LibraryCall, Loop, Ranks, Role, Script, Value

FORMS_GROUP: Final = (Role.PROCESS_GROUP, Role.WRAP, Role.SHARD, Role.SAMPLER)
"""Calls by which a script shows that several ranks run it."""
_ONE_RANK: Final = (Ranks.ZERO, Ranks.NOT_DISTRIBUTED)


def require_distributed(script: Script) -> None:
    """End the check as not applicable where nothing says that several ranks run the script.

    Raises:
        NotApplicable: there is no script, or a single process runs it.
    """
    requires(script.path, "no training script was named")
    requires(next(script.with_role(*FORMS_GROUP), None), "nothing in the script is distributed")


def reached(script: Script, *roles: Role) -> Iterator[LibraryCall]:
    """Yield the calls of these roles to which the script itself comes, in a run of several ranks, each place once."""
    seen: set[tuple[str, int, int]] = set()
    for call in script.with_role(*roles):
        key = (call.place.file, call.place.line, call.place.column)
        if call.is_reached and not lets_through(call.conditions, Ranks.NOT_DISTRIBUTED) and key not in seen:
            seen.add(key)
            yield call


def lets_through(conditions: Iterable[Condition], *ranks: Ranks) -> bool:
    """Whether one of the conditions is one for these ranks."""
    return any(condition.ranks in ranks for condition in conditions)


def is_on_one_rank(call: LibraryCall) -> bool:
    """Whether one rank alone comes there: rank 0, or the only one."""
    return lets_through(call.conditions, *_ONE_RANK)


def may_be_on_some_ranks(call: LibraryCall) -> bool:
    """Whether something lets only some ranks come there, or may do so."""
    return any(condition.ranks not in (Ranks.ALL, Ranks.DISTRIBUTED) for condition in call.conditions)


def is_same_place(call: LibraryCall, other: LibraryCall) -> bool:
    """Whether both are the same call of the source, be it on two ways."""
    return call.place == other.place


def outer_loops(iteration: Iteration, made: LibraryCall) -> tuple[Loop, ...]:
    """The loops that go over the same object again and again: those around the iteration, and not around the call that made it."""
    around = {loop.number for loop in made.loops}
    return tuple(loop for loop in iteration.loops if loop.number not in around)


def trains_in(script: Script, iteration: Iteration) -> bool:
    """Whether gradients are computed in that loop."""
    return any(loop.place == iteration.place for call in script.with_role(Role.BACKWARD) for loop in call.loops)


def is_handed_to(call: LibraryCall, names: re.Pattern[str]) -> bool:
    """Whether the result is handed to something that can't be followed, and is called so."""
    return any(names.search(escape.name) for escape in call.escapes)


def uses(value: Value | None, numbers: Iterable[int]) -> bool:
    """Whether a value is the result of one of these calls, a part of it, or made of it."""
    wanted = set(numbers)
    return value is not None and any(origin.call in wanted for origin in value.flattened())


def at(place: SourcePlace, words: str) -> Evidence:
    """Evidence: what stands at a place.

    Args:
        place: in the source.
        words: what it is, "the loader is built".
    """
    return Evidence(f"{words}: {place.text}", str(place))
