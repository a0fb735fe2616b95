"""Questions that several rules ask of a script. Pure."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ddpdoctor.base.findings import EditKind, Evidence, SourceEdit, SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.engine.registry import requires
from ddpdoctor.facts.script import (
    Condition,
    Iteration,
    LibraryCall,
    Loop,
    Origin,
    OriginKind,
    Ranks,
    Role,
    Script,
    Value,
)

FORMS_GROUP: Final = (Role.PROCESS_GROUP, Role.WRAP, Role.SHARD, Role.SAMPLER)
"""Calls by which a script shows that several ranks run it."""
_ONE_RANK_FIRST: Final = compile_lazily(r"first|lock|zero|main|master|sequential|barrier", re.IGNORECASE)
"""Names of context managers that let one rank go before the others."""
_DEEPSPEED: Final = "deepspeed.initialize"
_SETTINGS_OF_RANKS: Final = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
_STAYS: Final = frozenset({OriginKind.OPTION, OriginKind.SETTING, OriginKind.CONSTANT})
_HANDED_OVER: Final = frozenset({Role.LOADER, Role.SAMPLER, Role.OTHER_SAMPLER, Role.BATCH_SAMPLER, Role.OPTION})
"""What a process makes for the ranks that it starts."""
_RANKS: Final = (OriginKind.RANK, OriginKind.LOCAL_RANK, OriginKind.SPAWN_INDEX)


def require_distributed(script: Script, *more: Role) -> None:
    """End the check as not applicable where nothing says that several ranks run the script.

    Args:
        script: that is judged.
        more: roles of calls that say so for this check, too.

    Raises:
        NotApplicable: there is no script, or a single process runs it.
    """
    requires(script.path, "no training script was named")
    shown = [*script.with_role(*FORMS_GROUP, *more), *filter(_needs_group, script.with_role(Role.COLLECTIVE))]
    requires(shown, "nothing in the script is distributed")
    # A library wraps the model where the run is distributed; a script of one process uses it, too.
    is_formed = any(script.with_role(Role.PROCESS_GROUP, Role.ENGINE, Role.SPAWN)) or script.frameworks
    requires(
        is_formed
        or any(not call.conditions or not call.is_reached for call in shown)
        or _tells_ranks_apart(script)
        or not _SETTINGS_OF_RANKS.isdisjoint(script.read_settings),
        "the script forms no process group, and wraps its model only under a condition",
    )


def _needs_group(collective: LibraryCall) -> bool:
    """Whether the script comes to one of torch's own without asking whether there is a group: somewhere it is formed."""
    is_asked = lets_through(collective.conditions, Ranks.DISTRIBUTED, Ranks.NOT_DISTRIBUTED, Ranks.MAY_BE_SOME)
    return collective.is_reached and collective.name.startswith("torch.distributed.") and not is_asked


def require_seen(script: Script, what: str, *roles: Role) -> None:
    """End the check as not applicable where no call of these roles is seen: one may be where nobody could follow the script.

    Args:
        script: that is judged.
        what: such a call does: "saves".
        roles: of the calls that the check is about.

    Raises:
        NotApplicable: none is seen.
    """
    requires(any(script.with_role(*roles)), f"nothing in the script {what}, as far as it could be followed")


def require_several_processes(script: Script) -> None:
    """End the check as not applicable where nothing says that several ranks run the script, DeepSpeed's launcher among others.

    Args:
        script: that is judged.

    Raises:
        NotApplicable: there is no script, or a single process runs it.
    """
    require_distributed(script, *(role for engine in deepspeed_engines(script) for role in engine.roles))


def deepspeed_engines(script: Script) -> Iterator[LibraryCall]:
    """Yield the engines of DeepSpeed that the script makes."""
    return (call for call in script.with_role(Role.ENGINE) if call.name == _DEEPSPEED)


def require_ranks(script: Script) -> None:
    """End the check as not applicable where nothing says that several ranks run the script, be they a framework's that leaves files to it.

    Args:
        script: that is judged.

    Raises:
        NotApplicable: there is no script, or a single process runs it.
    """
    if _tells_ranks_apart(script):
        require_distributed(script, Role.ENGINE)
    else:
        require_several_processes(script)


def _tells_ranks_apart(script: Script) -> bool:
    """Whether the script lets one rank do something, or all wait for each other: it is written for several, whoever starts them."""
    return script.asks_for_first_rank or any(script.with_role(Role.COLLECTIVE))


def reached(script: Script, *roles: Role) -> Iterator[LibraryCall]:
    """Yield the calls of these roles to which the script itself comes, in a run of several ranks, each place once."""
    yield from each_place_once(ways_to(script, *roles))


def ways_to(script: Script, *roles: Role) -> Iterator[LibraryCall]:
    """Yield the same calls, once for each way on which the script comes to them."""
    starters = _starters_of_ranks(script)
    alone = _branches_of_one_process(script)
    for call in script.with_role(*roles):
        is_of_rank = not starters or not starters.isdisjoint(call.callers) or not _HANDED_OVER.isdisjoint(call.roles)
        is_alone = lets_through(call.conditions, Ranks.NOT_DISTRIBUTED) or (
            alone and not alone.isdisjoint(_branches_to(call))
        )
        if is_of_rank and call.is_reached and not is_alone:
            yield call


class _Branch(NamedTuple):
    """A branch of a flag.

    Args:
        test: that is asked, without a `not` before it.
        holds: whether it is the branch where that holds.
        values: options, settings and constants that it is made of.
    """

    test: str
    holds: bool
    values: frozenset[Origin]


def _branches_of_one_process(script: Script) -> set[_Branch]:
    """The branches to which no distributed run comes: all by which it is one stands in the other branch of the same flag."""
    forming = [set(_branches_to(call)) for call in script.with_role(*FORMS_GROUP, Role.ENGINE) if call.is_reached]
    if not forming or script.frameworks:
        return set()
    return {branch._replace(holds=not branch.holds) for branch in set.intersection(*forming)}


def _branches_to(call: LibraryCall) -> Iterator[_Branch]:
    """Yield the branches that lead to a call, of flags that stay as they are: all that they ask for are options and settings."""
    for condition in call.conditions:
        values = frozenset(origin for origin in condition.test.flattened() if origin.kind is not OriginKind.MADE_OF)
        test, holds = parse_expression(condition.test.text), not condition.is_negated
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        kinds = {origin.kind for origin in values}
        if test is not None and kinds <= _STAYS and kinds != {OriginKind.CONSTANT}:
            yield _Branch(ast.unparse(test), holds, values)


def _starters_of_ranks(script: Script) -> set[SourcePlace]:
    """Where processes are started, if the ranks are these and no others: whoever starts them is none of them."""
    started = {spawn.place for spawn in script.with_role(Role.SPAWN) if spawn.is_reached}
    forming = [call for call in script.with_role(Role.PROCESS_GROUP) if call.is_reached]
    of_ranks = [started.intersection(call.callers) for call in forming] if started else []
    return set().union(*of_ranks) if all(of_ranks) else set()


def each_place_once(calls: Iterable[LibraryCall]) -> Iterator[LibraryCall]:
    """Yield the first of the calls at each place of the source."""
    seen: set[SourcePlace] = set()
    for call in calls:
        if call.place not in seen:
            seen.add(call.place)
            yield call


def lets_through(conditions: Iterable[Condition], *ranks: Ranks) -> bool:
    """Whether one of the conditions is one for these ranks."""
    return any(condition.ranks in ranks for condition in conditions)


def may_be_on_some_ranks(call: LibraryCall) -> bool:
    """Whether something lets only some ranks come there, or may do so."""
    return any(condition.ranks not in (Ranks.ALL, Ranks.DISTRIBUTED) for condition in call.conditions)


def is_one_rank_first(call: LibraryCall) -> bool:
    """Whether a context manager around it lets one rank go before the others, by its name."""
    return any(_ONE_RANK_FIRST.search(name) for name in call.within)


def starts_ranks(script: Script) -> bool:
    """Whether it is seen that the script itself starts the processes that form its group; not those that log or read data beside it."""
    started = {spawn.place for spawn in script.with_role(Role.SPAWN)}
    return any(not started.isdisjoint(call.callers) for call in script.with_role(*FORMS_GROUP))


def may_start_ranks(script: Script) -> bool:
    """Whether the script starts its ranks itself, or may do so: in a process whose function could not be followed to the group."""
    processes = list(script.with_role(Role.SPAWN))
    is_followed = all(any(_is_of_project(argument.value) for argument in process.arguments) for process in processes)
    forms_group = next(reached(script, *FORMS_GROUP), None) is not None
    return bool(processes) and (starts_ranks(script) or not is_followed or not forms_group)


def _is_of_project(value: Value) -> bool:
    return bool(value.origins) and all(origin.kind is OriginKind.PROJECT for origin in value.origins)


def outer_loops(iteration: Iteration, made: LibraryCall) -> tuple[Loop, ...]:
    """The loops that go over the same object again and again: those around the iteration, and not around the call that made it."""
    around = {loop.number for loop in made.loops}
    return tuple(loop for loop in iteration.loops if loop.number not in around)


def trains_in(script: Script, iteration: Iteration) -> bool:
    """Whether gradients are computed in that loop, or of what a generator gives out in it again and again."""
    roles = [Role.BACKWARD]
    if iteration.loops and iteration.loops[-1].place.text.startswith("while ") and any(script.with_role(Role.BACKWARD)):
        roles.append(Role.YIELD)
    return any(loop.place == iteration.place for call in script.with_role(*roles) for loop in call.loops)


def is_handed_to(call: LibraryCall, names: re.Pattern[str]) -> bool:
    """Whether the result is handed to something that can't be followed, and is called so."""
    return any(names.search(escape.name) for escape in call.escapes)


def knows_rank(value: Value | None) -> bool:
    """Whether a rank is in what a value is made of, so that each rank has another one."""
    return value is not None and any(origin.kind in _RANKS for origin in value.flattened())


def parse_expression(text: str) -> ast.expr | None:
    """Parse an expression of the script; None where it is none, or its end was left out."""
    try:
        with warnings.catch_warnings():
            # Python's own of a script's literals: they are nothing that a user of ours asked for.
            warnings.simplefilter("ignore")
            expression = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    is_cut = any(isinstance(part, ast.Constant) and part.value is ... for part in ast.walk(expression))
    return None if is_cut else expression


def at(place: SourcePlace, words: str) -> Evidence:
    """Evidence: what stands at a place.

    Args:
        place: in the source.
        words: what it is, "the loader is built".
    """
    return Evidence(f"{words}: {place.text}", str(place))


def set_argument(call: LibraryCall, name: str, text: str, position: int | None = None) -> SourceEdit:
    """The edit that gives a call this value for an argument.

    Args:
        call: that is edited.
        name: of the argument.
        text: its value.
        position: at which it may stand without its name.
    """
    given = {argument.name for argument in call.arguments}
    spelled = str(position) if name not in given and str(position) in given else name
    return SourceEdit(kind=EditKind.SET_ARGUMENT, place=call.place, name=spelled, text=text, called=call.method)


def remove_argument(call: LibraryCall, name: str) -> SourceEdit:
    """The edit that takes an argument out of a call."""
    return SourceEdit(kind=EditKind.REMOVE_ARGUMENT, place=call.place, name=name, called=call.method)
