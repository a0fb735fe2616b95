"""Calls in which all ranks must take part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import FAIL, INFO, WARN, Finding, Fix, Owner, SourcePlace
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.script.fix_code import FixCode, fix_with, statement_of
from ddpdoctor.checks.script.script_facts import at, each_place_once, lets_through, require_distributed, ways_to
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.script import Condition, LibraryCall, Ranks, Role, Script

_OPPOSITES: Final = {
    Ranks.ZERO: (Ranks.NOT_ZERO, Ranks.SOME),
    Ranks.NOT_ZERO: (Ranks.ZERO, Ranks.SOME),
    Ranks.LOCAL_ZERO: (Ranks.NOT_LOCAL_ZERO, Ranks.SOME),
    Ranks.NOT_LOCAL_ZERO: (Ranks.LOCAL_ZERO, Ranks.SOME),
}
_LEAVES: Final = {
    Ranks.ZERO: "Rank 0 alone leaves",
    Ranks.NOT_ZERO: "All ranks but 0 leave",
    Ranks.LOCAL_ZERO: "Local rank 0 alone leaves",
    Ranks.NOT_LOCAL_ZERO: "All but local rank 0 leave",
}
_WHO: Final = {
    Ranks.ZERO: "rank 0 alone comes",
    Ranks.NOT_ZERO: "all ranks but 0 come",
    Ranks.LOCAL_ZERO: "local rank 0 alone comes",
    Ranks.NOT_LOCAL_ZERO: "all but local rank 0 come",
}
_GROUP_AT: Final = {
    f"torch.distributed.{name}": position
    for position, names in enumerate(
        (
            ("barrier", "monitored_barrier"),
            (),
            (
                "all_reduce",
                "all_gather",
                "all_gather_into_tensor",
                "all_gather_object",
                "all_to_all",
                "broadcast",
                "broadcast_object_list",
            ),
            (
                "reduce",
                "gather",
                "gather_object",
                "scatter",
                "scatter_object_list",
                "reduce_scatter",
                "reduce_scatter_tensor",
            ),
            ("all_to_all_single",),
        )
    )
    for name in names
}
"""Where the group stands among the arguments of a collective."""
_ONE_FIRST: Final = compile_lazily(r"first", re.IGNORECASE)
"""Context managers that let one rank go first, with barriers of their own."""
_OF_ANY_OBJECT: Final = "?."


@check(
    "collective-on-some-ranks",
    severity=FAIL,
    owner=Owner.USER,
    explains=(
        "collective-desync",
        "uneven-inputs",
        "rank-fell-behind",
        "collective-stalled",
        "nccl-watchdog-timeout",
        "peer-rank-crashed",
        "rank-busy-outside-collectives",
        "exit-hang",
        "checkpoint-save-timeout",
    ),
)
def collective_on_some_ranks(script: Script) -> Iterator[Finding]:
    """A collective is called by some ranks only.

    ## What breaks
    The ranks that call it wait for the others, which never come: the job hangs until the watchdog ends it after 10 to 30 minutes, or for
    ever. Where the others come to another collective, both are taken for the same: wrong results, or a crash.

    ## Why
    A collective (barrier, all_reduce, gather, broadcast, a checkpoint of shards) ends once every rank of the group has called it. A condition
    on the rank, or a return before it on such a condition, keeps some of them away.

    ## Fix
    Take it out of the condition, so that every rank comes to it; do only the printing, writing or downloading on rank 0. A checkpoint in which
    every rank has a part (`accelerator.save_state`, DeepSpeed's `save_checkpoint`, torch.distributed.checkpoint) needs no condition.
    """
    require_distributed(script, Role.ENGINE)
    collectives = list(script.with_role(Role.COLLECTIVE, Role.COLLECTIVE_SAVE))
    alone = (
        call
        for call in ways_to(script, Role.COLLECTIVE, Role.COLLECTIVE_SAVE)
        if _separating(call, collectives) is not None and _is_of_all(call)
    )
    for call in each_place_once(alone):
        condition = _separating(call, collectives)
        if condition is not None:
            yield _left_alone(call, condition)
    yield from _leaving_alone(script)
    for forward in each_place_once(ways_to(script, Role.FORWARD)):
        condition = _separating(forward, list(script.with_role(Role.FORWARD)))
        if condition is not None:
            yield _forward_alone(forward, condition)


def _leaving_alone(script: Script) -> Iterator[Finding]:
    """Find where some ranks leave a loop in which the others go on to average gradients."""
    if not any(script.with_role(Role.WRAP)):
        return
    leaves = list(script.with_role(Role.LEAVE))
    for leave in each_place_once(ways_to(script, Role.LEAVE)):
        loop = leave.loops[-1].number if leave.loops else -1
        others = [other for other in leaves if other.loops[-1:] == leave.loops[-1:]]
        condition = _separating(leave, others)
        averaging = (
            backward
            for backward in ways_to(script, Role.BACKWARD)
            if any(around.number == loop for around in backward.loops)
            and not lets_through(backward.conditions, *_OPPOSITES)
        )
        if condition is not None and (backward := next(averaging, None)):
            yield Finding.of(
                f"{_LEAVES[condition.ranks]} the loop: the others wait for them in the next backward pass",
                at(condition.place, "the condition"),
                at(leave.place, "the loop is left"),
                at(backward.place, "all ranks average their gradients here"),
                _leave_together(script, leave, condition),
                place=leave.place,
            )


def _leave_together(script: Script, leave: LibraryCall, condition: Condition) -> Fix:
    text = "Let all ranks know of it, and leave together"
    is_alone = condition.ranks is Ranks.ZERO and not condition.by_leaving
    if not is_alone or _caller_under(leave, condition) or statement_of(leave) != (leave.method,):
        return Fix(f"{text}: decide it in front of {condition.place}, by what is the same on all of them")
    code = FixCode(script, leave.place)
    broadcast = code.name("torch.distributed.broadcast_object_list")
    return Fix(
        f"{text}: three changes, each at its place",
        code.lines(
            f"# before the condition at {condition.place}",
            "stop = [False]",
            f"# at {leave.place}, instead of {leave.method}",
            "stop[0] = True",
            f"# behind the whole block of the condition at {condition.place}, as deep as that",
            f"{broadcast}(stop, src=0)",
            "if stop[0]:",
            f"    {leave.method}",
        ),
    )


def _forward_alone(forward: LibraryCall, condition: Condition) -> Finding:
    model = forward.receiver.text if forward.receiver else "model"
    return Finding.of(
        f"{_WHO[condition.ranks].capitalize()} to the wrapped model's forward: it waits for the others, perhaps",
        at(condition.place, "the condition"),
        at(forward.place, "the forward pass"),
        Fix(f"Call the bare model there, {model}.module, which waits for nobody"),
        severity=INFO,
        place=forward.place,
    )


def _is_of_all(call: LibraryCall) -> bool:
    """Whether all ranks are meant, and it is a collective for sure."""
    group = call.argument("group", _GROUP_AT.get(call.name))
    if call.unpacks or (group is not None and not group.is_constant("None")):
        return False
    if Role.COLLECTIVE_SAVE in call.roles and call.name.startswith(_OF_ANY_OBJECT):
        return False
    return not any(_ONE_FIRST.search(name) for name in call.within)


def _separating(call: LibraryCall, collectives: list[LibraryCall]) -> Condition | None:
    """Find the condition that keeps some ranks away, where nothing answers the call on their side."""
    come_to = {(one.place, other.place, other.is_negated) for one in collectives for other in one.conditions}
    for condition in call.conditions:
        opposites = _OPPOSITES.get(condition.ranks)
        if opposites and not any(
            # One to which both sides of a test come is their own answer, and none to the call.
            (other.ranks in opposites and (collective.place, other.place, not other.is_negated) not in come_to)
            or (collective.name == call.name and _is_otherwise(other, condition))
            for collective in collectives
            for other in collective.conditions
        ):
            return condition
    return None


def _is_otherwise(other: Condition, condition: Condition) -> bool:
    """Whether it is the other branch of the same test: whoever the condition keeps away comes there."""
    return (other.place, other.is_negated) == (condition.place, not condition.is_negated)


def _left_alone(call: LibraryCall, condition: Condition) -> Finding:
    how = "the others have left before" if condition.by_leaving else "the condition"
    is_save = Role.COLLECTIVE_SAVE in call.roles
    summary = f"{_function(call)} waits for all ranks, and {_WHO[condition.ranks]} to it: a hang"
    if is_save:
        # With plain DDP some of them don't wait, and only the parts of the other ranks are missing.
        summary = (
            f"{_function(call)} is for all ranks, and {_WHO[condition.ranks]} to it: parts are missing, or it hangs"
        )
    return Finding.of(
        summary,
        at(condition.place, how),
        at(call.place, "the collective"),
        tuple(at(caller, "called from") for caller in call.callers[-2:] if caller.line != condition.place.line),
        _fix(call, condition, _caller_under(call, condition)),
        severity=WARN if is_save else FAIL,
        place=call.place,
    )


def _fix(call: LibraryCall, condition: Condition, caller: SourcePlace | None) -> Fix:
    where = f"the condition at {condition.place}"
    if condition.place.text.startswith("@"):
        return Fix(
            f"Call it on every rank: take it out of the function whose decorator at {condition.place} lets some in"
        )
    if condition.by_leaving:
        moved = f"{caller.text} ({caller})" if caller else "the collective"
        return Fix(f"Let no rank leave at {condition.place} before the collective: move {moved} in front of it")
    if caller:
        return Fix(
            f"The collective is in a function: call that on every rank. Take {caller.text} ({caller}) out of {where}, and leave there only "
            "what one rank is to do with the result"
        )
    if Role.COLLECTIVE_SAVE in call.roles:
        return Fix(f"Call it on every rank: take it out of {where}; it writes its parts itself")
    return fix_with(
        f"Move it, with what it needs, behind the whole block of {where}, where every rank comes",
        statement_of(call),
        call.place,
    )


def _caller_under(call: LibraryCall, condition: Condition) -> SourcePlace | None:
    """The place at which some ranks only call the function that comes to the collective; None where the condition is in the same function."""
    before = call.conditions.index(condition)
    callers = zip(call.callers, call.conditions_at_callers, strict=True)
    return next((caller for caller, conditions in callers if conditions > before), None)


def _function(call: LibraryCall) -> str:
    return f"{call.method}()"
