"""How a script adds up gradients over several micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.script.fix_code import FixCode, fix_with, is_whole, statement_of
from ddpdoctor.checks.script.script_facts import at, may_be_on_some_ranks, reached, require_distributed
from ddpdoctor.checks.script.turns import modulus_of, turn_of
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import Condition, LibraryCall, OriginKind, Role, Script, SetAttribute, Value

_FLAG: Final = ".require_backward_grad_sync"
_COUNTED: Final = compile_lazily(
    r"for (?P<turn>\w+)(?:,.*)? in (?:range\((?P<count>[\w.]+)\)|enumerate\((?P<items>[\w.]+)\)):"
)
"""Loops that say which turn is their last."""
_NOT_THE_OPTIMIZER: Final = compile_lazily(r"sched|lr_|warm|prof|swa|env")
"""What else has a method step."""


@check("accumulation-without-no-sync", severity=WARN, owner=Owner.USER)
def accumulation_without_no_sync(script: Script) -> Iterator[Finding]:
    """Gradients are added up over several micro-batches, and not averaged over the ranks in the last of them alone.

    ## What breaks
    Averaged after each micro-batch, nothing is wrong, only slower: of the traffic for the gradients all is for nothing but that of the last.
    Over Ethernet, or between many hosts, the training takes up to several times as long. Averaged in another micro-batch than the one before
    the optimizer's step, each rank steps by gradients of its own: the ranks train different models, and no word is said.

    ## Why
    DistributedDataParallel averages the gradients in each `backward()`, unless it is told that another one follows before the optimizer's
    step. What it was told at the forward pass counts.

    ## Fix
    All micro-batches but the last within `model.no_sync()`, forward and backward both.
    """
    require_distributed(script)
    wraps = list(reached(script, Role.WRAP))
    requires(wraps, "no model is wrapped in DistributedDataParallel")
    requires(not any(script.with_role(Role.ENGINE, Role.SHARD)), "something else decides when to average")
    flags = [flag for wrap in script.with_role(Role.WRAP) for flag in wrap.set_attributes if flag.name == _FLAG]
    if flags or any(script.with_role(Role.NO_SYNC)):
        yield from _averaged_in_another(script)
        yield from _told_too_late(script, flags)
        return
    for backward in reached(script, Role.BACKWARD):
        step = _step_behind_micro_steps(script, backward) or _step_of_some_turns(script, backward)
        if step is not None and not may_be_on_some_ranks(backward) and not _may_be_told(script, backward):
            yield _averaged_each_time(script, wraps[0], backward, step)
            return


def _step_behind_micro_steps(script: Script, backward: LibraryCall) -> LibraryCall | None:
    """The optimizer's step behind the loop of micro-batches in which the gradients are computed; None where it is in that loop."""
    if len(backward.loops) < 2 or backward.within:
        return None
    micro = backward.loops[-1].number
    steps = list(script.with_role(Role.STEP))
    if any(micro in (loop.number for loop in step.loops) for step in steps):
        return None
    around = backward.loops[:-1]
    step = next((step for step in steps if step.number > backward.number and step.loops == around), None)
    return None if step is None or _has_its_own(script, step, backward) else step


def _has_its_own(script: Script, step: LibraryCall, backward: LibraryCall) -> bool:
    """Whether the step is by gradients that are computed behind the loop: what the loop computes is for something else, as an attack on the
    inputs by a copy of the model."""
    behind = [
        other
        for other in script.with_role(Role.BACKWARD)
        if backward.number < other.number < step.number and other.loops == step.loops
    ]
    is_always = any(set(other.conditions) <= set(step.conditions) for other in behind)
    return is_always or any(_is_otherwise(one, other) for one in behind for other in behind)


def _step_of_some_turns(script: Script, backward: LibraryCall) -> LibraryCall | None:
    """The optimizer's step in each so-manieth turn of the loop in which the gradients are computed; None where one is made in each."""
    if not backward.loops:
        return None
    steps = [
        step for step in _optimizers_steps(script) if step.loops == backward.loops and not _is_otherwise(step, backward)
    ]
    if not all(_chosen_turns(step, backward) for step in steps):
        return None
    return next((step for step in steps if step.number > backward.number), None)


def _optimizers_steps(script: Script) -> Iterator[LibraryCall]:
    for step in script.with_role(Role.STEP):
        if step.receiver is not None and not _NOT_THE_OPTIMIZER.search(step.receiver.text.lower()):
            yield step


def _is_otherwise(one: LibraryCall, another: LibraryCall) -> bool:
    """Whether one call is made where the other is not: in the other branch."""
    return any(
        (own.place, own.is_negated) == (other.place, not other.is_negated)
        for own in one.conditions
        for other in another.conditions
    )


def _chosen_turns(step: LibraryCall, backward: LibraryCall) -> Condition | None:
    """The condition that lets some turns of the loop come to a step, and all to the computation of its gradients."""
    asked = [condition for condition in step.conditions if condition not in backward.conditions]
    return next((condition for condition in asked if modulus_of(condition) is not None), None)


def _may_be_told(script: Script, backward: LibraryCall) -> bool:
    """Whether something in the loop that could not be followed gets hold of the model."""
    first, last = backward.loops[-1].place, backward.place
    return any(
        escape.place.file == first.file == last.file and first.line <= escape.place.line <= last.line
        for wrap in script.with_role(Role.WRAP)
        for escape in wrap.escapes
    )


def _averaged_each_time(script: Script, wrap: LibraryCall, backward: LibraryCall, step: LibraryCall) -> Finding:
    chosen = _chosen_turns(step, backward)
    is_certain = chosen is None or _is_more_than_one(script, modulus_of(chosen))
    return Finding.of(
        "The gradients of each micro-batch go over the network, where those of the last would do"
        if is_certain
        else "If several micro-batches make a step, the gradients of each go over the network, not those of the last alone",
        at(wrap.place, "wrapped"),
        at(backward.loops[-1].place, "the loop over micro-batches"),
        at(backward.place, "each averages over all ranks"),
        at(step.place, "one step for all of them"),
        _average_in_last(script, backward, _is_last(backward, step)),
        severity=WARN if is_certain else INFO,
        place=backward.place,
    )


def _is_more_than_one(script: Script, count: Value | None) -> bool:
    """Whether a number of micro-batches is more than one for all that is known: a constant, or an option's default."""
    if count is None or not count.origins:
        return False
    for origin in count.origins:
        number = origin.text if origin.kind is OriginKind.CONSTANT else _default(script, origin.text)
        if not number.isdecimal() or int(number) < 2:
            return False
    return True


def _default(script: Script, name: str) -> str:
    """The constant that is an option's default; "" where there is none."""
    for option in script.with_role(Role.OPTION):
        spelled, default = option.argument("", 0), option.argument("default")
        if spelled and spelled.is_constant(f"'--{name}'", f"'--{name.replace('_', '-')}'"):
            return default.origins[0].text if default and default.origins else ""
    return ""


def _is_last(backward: LibraryCall, step: LibraryCall) -> str:
    """The expression for "the step follows", as the script can write it where the gradients are computed; "" where it is not known."""
    chosen = _chosen_turns(step, backward)
    if chosen is not None:
        return _test_of(chosen) if step.callers == backward.callers else ""
    (loop,) = backward.loops[-1:]
    counted = _COUNTED.fullmatch(loop.place.text)
    if counted is None:
        return ""
    return f"{counted['turn']} == {counted['count'] or 'len(' + counted['items'] + ')'} - 1"


def _test_of(condition: Condition) -> str:
    text = condition.test.text
    if not is_whole(text):
        return ""
    return f"not ({text})" if condition.is_negated else text


def _average_in_last(script: Script, backward: LibraryCall, is_last: str) -> Fix:
    forward = _forward_of(script, backward)
    text = "Average in the last micro-batch alone: all others, forward and backward, within no_sync()"
    if forward is None or forward.receiver is None or forward.callers != backward.callers or not is_last:
        return Fix(f"{text} of the wrapped model, at {backward.place}")
    code = FixCode(script, backward.place)
    quiet = f"with {code.name('contextlib.nullcontext')}() if {is_last} else {forward.receiver.text}.no_sync():"
    if forward.statement == backward.statement:
        return fix_with(text, code.block(quiet, statement_of(backward)), backward.place)
    passes = statement_of(forward), statement_of(backward)
    if not all(passes) or not _follow_each_other(forward, backward):
        return Fix(
            f"{text}. Indent all from {forward.place} to {backward.place} under this line, which takes the place of the dots",
            code.lines(quiet, "    ..."),
        )
    return Fix(text, code.block(quiet, [line for statement in passes for line in statement]))


def _follow_each_other(forward: LibraryCall, backward: LibraryCall) -> bool:
    """Whether nothing stands between two statements."""
    first, second = forward.statement, backward.statement
    if first is None or second is None or first.place.file != second.place.file:
        return False
    return first.place.line + len(first.lines) == second.place.line and first.place.column == second.place.column


def _at_same_turn(script: Script, quiet: LibraryCall, averaged: Condition, made: Condition) -> Fix:
    test = _test_of(made)
    text = f"Average where the step is made: ask at {averaged.place} for what is asked at {made.place}"
    if not test or quiet.receiver is None or not is_whole(quiet.receiver.text):
        return Fix(text)
    code = FixCode(script, quiet.place)
    context = f"{code.name('contextlib.nullcontext')}() if {test} else {quiet.receiver.text}.no_sync()"
    return Fix(
        f"{text}; forward and backward, as before, take the place of the dots",
        code.lines(f"with {context}:", "    ..."),
    )


def _averaged_in_another(script: Script) -> Iterator[Finding]:
    """Find turns without averaging that don't end where the step is made."""
    for quiet in reached(script, Role.NO_SYNC):
        for step in _optimizers_steps(script):
            pair = _contradicting(quiet, step) if step.loops == quiet.loops else None
            if pair is not None:
                averaged, made = pair
                yield Finding.of(
                    "The gradients are averaged in another iteration than that of the step: each rank trains a model of its own",
                    at(averaged.place, "averaged, or not"),
                    at(made.place, "the step is made, or not"),
                    at(step.place, "the step"),
                    _at_same_turn(script, quiet, averaged, made),
                    place=quiet.place,
                )
                return


def _contradicting(quiet: LibraryCall, step: LibraryCall) -> tuple[Condition, Condition] | None:
    """The conditions by which gradients are averaged in one turn, and the step is made in another."""
    steps = [(made, turn_of(made)) for made in step.conditions]
    for averaged in quiet.conditions:
        left_out = turn_of(averaged)
        for made, chosen in steps:
            if (
                left_out
                and chosen
                and (left_out.counter, left_out.modulus) == (chosen.counter, chosen.modulus)
                and (left_out.is_met, chosen.is_met) == (False, True)
                and left_out.remainder != chosen.remainder
            ):
                return averaged, made
    return None


def _told_too_late(script: Script, flags: list[SetAttribute]) -> Iterator[Finding]:
    """Find backward passes whose forward pass was made before it was said whether they average."""
    for backward in reached(script, Role.BACKWARD):
        forward = _forward_of(script, backward)
        if forward is None or forward.loops != backward.loops or not forward.loops:
            continue
        if any(_is_no_sync(name) for name in backward.within) and not forward.within:
            yield Finding.of(
                "no_sync() around the backward pass alone does nothing: the gradients are averaged all the same",
                at(forward.place, "the forward pass, outside of the block"),
                at(backward.place, "the backward pass"),
                Fix(f"Take the forward pass at {forward.place} into the block, too"),
                place=backward.place,
            )
            return
        set_in_turn = [flag for flag in flags if flag.loops == forward.loops]
        late = [flag for flag in set_in_turn if forward.number < flag.before <= backward.number]
        if late and len(late) == len(set_in_turn) and not all(flag.value.is_constant("True") for flag in late):
            yield Finding.of(
                "Whether to average is set behind the forward pass: too late for it, and each rank trains a model of its own",
                at(forward.place, "the forward pass"),
                at(late[0].place, "set too late"),
                at(backward.place, "the backward pass"),
                Fix(f"Set it before the forward pass at {forward.place}", (late[0].place.text,)),
                place=late[0].place,
            )
            return


def _forward_of(script: Script, backward: LibraryCall) -> LibraryCall | None:
    """The last forward pass of a wrapped model of which the loss is made."""
    made_of = backward.receiver.flattened() if backward.receiver else ()
    calls = [script.call(origin.call) for origin in made_of if origin.kind is OriginKind.CALL]
    return max(
        (call for call in calls if call and Role.FORWARD in call.roles), key=lambda call: call.number, default=None
    )


def _is_no_sync(name: str) -> bool:
    return name.rpartition(".")[2] == "no_sync"
