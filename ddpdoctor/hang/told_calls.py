"""The words for what ranks have told of themselves: which call each is in by its flight recorder, and what its counters say. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.text import listed
from ddpdoctor.facts.hang import Hang, Recorded
from ddpdoctor.hang.evidence import named
from ddpdoctor.hang.flight_recorder.group_members import MadeCall, call_name, made_calls
from ddpdoctor.hang.rank_states import RankState
from ddpdoctor.hang.recorded_hang import shape_of

MAX_SHOWN: Final = 4


def describe_calls(members: Sequence[RankState], hang: Hang) -> Iterator[str]:
    """Say of ranks in one place what each has called last, a line for those that are alike."""
    by_rank = {recorded.rank: recorded for recorded in hang.recorded}
    alike = grouped(members, lambda member: _words(member, by_rank.get(member.number), hang))
    for words, ranks in list(alike.items())[:MAX_SHOWN]:
        if words:
            yield f"{f'{named(ranks, hang)}: ' if len(alike) > 1 else ''}{words}"


def _words(member: RankState, recorded: Recorded | None, hang: Hang) -> str:
    parts = [_last_call(recorded)] if recorded else ["its recorder told nothing"] if hang.recorded else []
    if member.rank.counters:
        parts.append(f"within {listed(member.rank.counters)} by torch's counters")
    return ", ".join(parts)


def _last_call(recorded: Recorded) -> str:
    calls = [(made, group.group) for group in recorded.groups for made in made_calls(group)]
    waiting = [call for call in calls if call[0].open]
    if waiting:
        first, group = min(waiting, key=_order)
        waited = recorded.written - first.call.created if recorded.written and first.call.created else 0.0
        return f"{_named(first, group)}, called {waited:.0f} s ago" if waited >= 1 else _named(first, group)
    if not calls:
        return "it has called nothing"
    last, group = max(calls, key=_order)
    return f"its last call, {_named(last, group)}, is done"


def _order(call: tuple[MadeCall, str]) -> tuple[int, float]:
    return call[0].order


def _named(made: MadeCall, group: str) -> str:
    shape = shape_of(made.call)
    return f"{call_name(made.call.name)}{f' {shape}' if shape else ''} number {made.call.number} of group {group}"
