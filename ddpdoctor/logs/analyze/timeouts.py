"""What timeouts of several ranks tell when they are held against each other: who waited in what. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.grouping import grouped
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.base.text import listed, plural, ranks_named
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.log import Log, LoggedException, SignMatch
from ddpdoctor.knowledge.hang_causes import HangCause
from ddpdoctor.knowledge.log_topics import LogTopic

BARRIER: Final = "ALLREDUCE"
"""Over NCCL a barrier is one, too, of a single element."""
STEP: Final = "torch/autograd/"
"""Through it the backward pass goes, in which DDP averages the gradients."""
OWN_SIZES: Final = ("ALLTOALL", "SEND", "RECV", "GATHER", "SCATTER")
"""Calls in which ranks may well bring different numbers of elements."""
SHARES: Final = ("_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Calls of that kind in which they may not: the whole has a share of one size for each rank of the group."""
OF_TWO: Final = ("SEND", "RECV", "COALESCED", "UNKNOWN")
"""Calls between two ranks, or several in one that may be such: the group's others have no part in them."""
_SIZES: Final = compile_lazily(r"NumelIn=(\d+), NumelOut=(\d+)")
GLOO: Final = "Timed out waiting"
MOST_CALLS: Final = 3
"""Calls that are named."""


class Waited(msgspec.Struct, frozen=True):
    """A rank that NCCL's watchdog ended: the number of the call in its group, the call's name, its size where all ranks must bring the
    same, else "", and where the log says so. members: how many ranks its group has, where the sizes tell, else 0."""

    rank: int
    number: int
    name: str
    size: str
    seen: SignMatch
    members: int = 0

    @property
    def what(self) -> str:
        """ "ALLREDUCE of 64 elements"."""
        return f"{self.name}{self._elements}"

    @property
    def call(self) -> str:
        """ "ALLREDUCE number 7 of 64 elements"."""
        return f"{self.name} number {self.number}{self._elements}"

    @property
    def _elements(self) -> str:
        return f" of {plural(int(self.size), 'element')}" if self.size else ""


class Hypothesis(msgspec.Struct, frozen=True):
    """A cause that the comparison speaks for, what it found in a sentence, and the lines that were compared. proven: nothing else explains them."""

    cause: HangCause | LogTopic
    why: str
    seen: tuple[SignMatch, ...]
    proven: bool = False


def hypotheses(log: Log, effects: Sequence[SignMatch], catalogue: Catalogue) -> tuple[Hypothesis, ...]:
    """List what timeouts may come from, the likeliest first; none where they tell nothing."""
    watchdog = catalogue.slug_for(HangCause.TIMED_OUT)
    said = [effect for effect in effects if effect.slug == watchdog and effect.line.rank is not None]
    if len({match.words["group"] for match in said if match.words.get("group")}) > 1:
        return ()  # The numbers of different groups have nothing to do with each other.
    waited = _waited(said)
    one_group = _are_of_one_group(waited, said, log)
    return (
        _different_calls(waited, one_group=one_group)
        or _behind(waited, said)
        or _ahead(waited, one_group=one_group)
        or _in_earlier_calls(waited)
        or _all_the_same(waited, log)
        or _different_lines(log, effects)
        or _did_not_come(effects, catalogue.slug_for(LogTopic.MISSING_NODE))
        or (_waiting(waited) if all(effect.slug == watchdog for effect in effects) else ())
    )


def _waited(said: Sequence[SignMatch]) -> tuple[Waited, ...]:
    found: dict[int, Waited] = {}
    for match in said:
        number, call, rank = match.words.get("number"), match.words.get("call"), match.line.rank
        if number and call and rank is not None:
            own = call not in SHARES and any(word in call for word in OWN_SIZES)
            members = _members(match.line.text) if call in SHARES else 0
            size = "" if own else match.words.get("size", "")
            found.setdefault(rank, Waited(rank, int(number), call, size, match, members))
    return (*found.values(), *_waited_alike(found, said))


def _members(text: str) -> int:
    """Tell for how many ranks the whole has a share; 0 where the line doesn't say."""
    found = _SIZES.search(text)
    few, many = sorted(map(int, found.groups())) if found else (0, 0)
    return many // few if few else 0


def _waited_alike(named: Mapping[int, Waited], said: Iterable[SignMatch]) -> Iterator[Waited]:
    """Give ranks of which only the number of their call is told the name that all others have for it."""
    calls = grouped(named.values(), lambda timeout: timeout.number)
    numbered = {match.line.rank: match for match in reversed(list(said)) if match.words.get("number", "").isdigit()}
    for rank, match in numbered.items():
        alike = _alike(calls.get(int(match.words["number"]), ()))
        if rank is not None and rank not in named and len(alike) == 1:
            yield msgspec.structs.replace(alike[0][0], rank=rank, seen=match)


def _are_of_one_group(waited: Sequence[Waited], said: Iterable[SignMatch], log: Log) -> bool:
    """Whether it is certain that they waited in one group: each line names it, and it is no other's, or it has room for all ranks."""
    named = {match.line.rank for match in said if match.words.get("group")}
    everybody = _count_ranks(waited, log)
    return all(timeout.rank in named or timeout.members >= everybody for timeout in waited)


def _count_ranks(waited: Sequence[Waited], log: Log) -> int:
    """Count the ranks; where no line tells how many there are, there are all up to the highest that was heard."""
    heard = {*log.ranks, *(timeout.rank for timeout in waited)}
    return max(log.world_size or 0, 2, *(rank + 1 for rank in heard))


def _different_calls(waited: Sequence[Waited], *, one_group: bool) -> tuple[Hypothesis, ...]:
    """Find ranks that have another call, or another size, at the same number: one of them is wrong."""
    for number in sorted({timeout.number for timeout in waited}):
        calls = _alike(timeout for timeout in waited if timeout.number == number and timeout.name not in OF_TWO)
        if len(calls) > 1:
            (first, *_), *others = calls
            away = [f"{_ranks(some)} in {some[0].what}" for some in others]
            why = _joined([f"{_ranks(calls[0])} waited in {first.call}", *away])
            seen = tuple(some[0].seen for some in calls)
            sizes = {some[0].size for some in calls if some[0].name == BARRIER}
            left = "1" in sizes and len(sizes) > 1
            uneven = Hypothesis(
                HangCause.UNEVEN, f"{why}: one element is what a barrier sends, as after the loop", seen
            )
            return (Hypothesis(HangCause.DESYNC, why, seen, proven=one_group), *((uneven,) if left else ()))
    return ()


def _alike(waited: Iterable[Waited]) -> list[list[Waited]]:
    """Those that waited in the same call together; the fewest, who may have gone astray, first."""
    return sorted(grouped(waited, lambda timeout: timeout.call).values(), key=len)


def _waiting(waited: Sequence[Waited]) -> tuple[Hypothesis, ...]:
    """Who waited in what, where that alone doesn't tell who was wrong."""
    calls = _alike(waited)
    why = _joined([f"{_ranks(some)} waited in {some[0].call}" for some in calls])
    return (Hypothesis(HangCause.TIMED_OUT, why, tuple(some[0].seen for some in calls)),) if calls else ()


def _joined(clauses: Sequence[str]) -> str:
    """As `listed` does, with a comma, since a clause may have an "and" of its own."""
    left_out = len(clauses) - MOST_CALLS
    return ", and ".join(
        [*clauses[:MOST_CALLS], *([f"others in {plural(left_out, 'more call')}"] if left_out > 0 else ())]
    )


def _ranks(waited: Iterable[Waited]) -> str:
    return ranks_named(sorted(timeout.rank for timeout in waited))


def _behind(waited: Sequence[Waited], said: Iterable[SignMatch]) -> tuple[Hypothesis, ...]:
    """Find ranks that had not even begun the call in which the others waited."""
    first = min(waited, key=lambda timeout: timeout.number, default=None)
    there = {timeout.rank for timeout in waited}
    behind = {
        match.line.rank: match
        for match in said
        if match.line.rank is not None and match.line.rank not in there and match.words.get("enqueued")
    }
    behind = {
        rank: timeout for rank, timeout in behind.items() if first and int(timeout.words["enqueued"]) < first.number
    }
    if first is None or not behind:
        return ()
    last = max(int(match.words["enqueued"]) for match in behind.values())
    called = f"{'it' if len(behind) == 1 else 'they'} had called no more than number {last}"
    why = f"{ranks_named(behind)} never called {first.call}, in which {_ranks(waited)} waited: {called}"
    return (Hypothesis(HangCause.BEHIND, why, (*behind.values(), first.seen)),)


def _ahead(waited: Sequence[Waited], *, one_group: bool) -> tuple[Hypothesis, ...]:
    """Find the few ranks that were through with a call in which all the others still waited: to them it was another one, or they left one out."""
    numbers = sorted({timeout.number for timeout in waited})
    ahead = [timeout for timeout in waited if timeout.number == numbers[-1]]
    if not one_group or len(numbers) != 2 or len(ahead) > len(waited) // 4:
        return ()
    behind = [timeout for timeout in waited if timeout not in ahead]
    why = f"{_ranks(ahead)} waited in {ahead[0].call}, and {_ranks(behind)} still in {behind[0].call}"
    seen = (ahead[0].seen, behind[0].seen)
    desync = Hypothesis(HangCause.DESYNC, f"{why}: what ends for one doesn't come to an end for the others", seen)
    uneven = Hypothesis(HangCause.UNEVEN, f"{why}: one has left out a step, or the loop, that the others were in", seen)
    return (desync, uneven)


def _in_earlier_calls(waited: Sequence[Waited]) -> tuple[Hypothesis, ...]:
    """Ranks that still waited in a call that the others had behind them. Where no line names its group it must be a few against many:
    the numbers of two groups would differ, too."""
    latest = max((timeout.number for timeout in waited), default=0)
    ahead = [timeout for timeout in waited if timeout.number == latest]
    behind = sorted((timeout for timeout in waited if timeout.number < latest), key=lambda timeout: timeout.number)
    few = len(ahead) > 1 and len(behind) <= max(1, len(waited) // 4)
    if not behind or not (few or all(timeout.seen.words.get("group") for timeout in waited)):
        return ()
    lowest = [timeout for timeout in behind if timeout.number == behind[0].number]
    why = f"{_ranks(lowest)} still waited in {lowest[0].call}, and {_ranks(ahead)} in {ahead[0].call}"
    return (Hypothesis(HangCause.BEHIND, why, (*(timeout.seen for timeout in behind), ahead[0].seen)),)


def _all_the_same(waited: Sequence[Waited], log: Log) -> tuple[Hypothesis, ...]:
    """Everybody was there: it is the way between them, or a GPU that doesn't come to an end."""
    if len(waited) < _count_ranks(waited, log) or len({timeout.call for timeout in waited}) > 1:
        return ()
    who, missing = "all {} ranks", "so nobody was missing"
    if not log.world_size:
        who, missing = "all {} ranks of this log", "and if the run has no others, nobody was missing"
    why = f"{who.format(len(waited))} waited in {waited[0].call}, {missing}: network, GPUs or peer-to-peer copies"
    seen = tuple(timeout.seen for timeout in waited)
    return Hypothesis(HangCause.TIMED_OUT, why, seen), Hypothesis(HangCause.STALLED, why, seen)


def _different_lines(log: Log, effects: Iterable[SignMatch]) -> tuple[Hypothesis, ...]:
    """Over gloo there are no numbers; but the ranks may have waited in different lines of the script."""
    places: dict[str, list[LoggedException]] = {}
    for raised in log.raised:
        if GLOO in raised.message and raised.own and raised.line.rank is not None:
            places.setdefault(f"{raised.own.path.rpartition('/')[2]}:{raised.own.line}", []).append(raised)
    ranks = {
        place: [raised.line.rank for raised in some if raised.line.rank is not None] for place, some in places.items()
    }
    waiting = {rank for group in ranks.values() for rank in group}
    if len(places) < 2 or not waiting >= {*log.ranks, *range(log.world_size or 0)}:
        return ()
    why = listed((f"{ranks_named(sorted(some))} waited at {place}" for place, some in ranks.items()), most=3)
    odd = {group[0] for group in ranks.values()}
    seen = tuple(effect for effect in effects if effect.sign == GLOO and effect.line.rank in odd)
    different = Hypothesis(HangCause.DESYNC, why, seen)
    if not _is_behind_the_steps([raised for group in places.values() for raised in group]):
        return (different,)
    return Hypothesis(
        HangCause.UNEVEN, f"{why}: some were through with their steps, and others were not", seen
    ), different


def _is_behind_the_steps(waiting: Sequence[LoggedException]) -> bool:
    """Whether some ranks were in the backward pass, and all the others in a call of the script's own behind that line."""
    steps = [raised for raised in waiting if any(STEP in frame.path for frame in raised.frames)]
    calls = [raised for raised in waiting if raised not in steps]
    last = max((step.own.line for step in steps if step.own), default=0)
    files = {raised.own.path for raised in waiting if raised.own}
    return bool(steps and calls) and len(files) == 1 and all(call.own and call.own.line > last for call in calls)


def _did_not_come(effects: Sequence[SignMatch], missing: str) -> tuple[Hypothesis, ...]:
    """Nobody lost anybody: those that came waited for the others, and counted them."""
    counted = [
        effect
        for effect in effects
        if effect.words.get("came", "").isdigit() and effect.words.get("wanted", "").isdigit()
    ]
    if not counted or any(effect.slug != missing for effect in effects):
        return ()
    came, wanted = max((int(match.words["came"]), int(match.words["wanted"])) for match in counted)
    others = wanted - came
    if others < 1:
        return ()
    who, whose = ("the other one", "its own log") if others == 1 else (f"the other {others}", "their own logs")
    why = f"{came} of {wanted} came: why {who} didn't, only {whose} can say"
    return (Hypothesis(LogTopic.MISSING_NODE, why, tuple(effects)),)
