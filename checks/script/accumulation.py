"""How a script adds up gradients over several micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import WARN, Finding, Fix, Owner
from ddpdoctor.checks.script.script_facts import at, may_be_on_some_ranks, reached, require_distributed
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import LibraryCall, Role, Script

_FLAG: Final = ".require_backward_grad_sync"


@check("accumulation-without-no-sync", severity=WARN, owner=Owner.USER)
def accumulation_without_no_sync(script: Script) -> Iterator[Finding]:
    """Gradients are added up over several micro-batches, and averaged over the ranks after each of them.

    ## What breaks
    Nothing is wrong, only slower: of the traffic for the gradients all is for nothing but that of the last micro-batch. Over Ethernet, or
    between many hosts, the training takes up to several times as long.

    ## Why
    DistributedDataParallel averages the gradients in each `backward()`, unless it is told that another one follows before the optimizer's
    step.

    ## Fix
    All micro-batches but the last within `model.no_sync()`, forward and backward both.
    """
    require_distributed(script)
    wraps = list(reached(script, Role.WRAP))
    requires(wraps, "no model is wrapped in DistributedDataParallel")
    requires(not any(script.with_role(Role.ENGINE, Role.SHARD, Role.NO_SYNC)), "something else decides when to average")
    if any(_FLAG in wrap.set_attributes or wrap.escapes for wrap in script.with_role(Role.WRAP)):
        return
    for backward in reached(script, Role.BACKWARD):
        step = _step_behind_micro_steps(script, backward)
        if step is not None and not may_be_on_some_ranks(backward):
            yield _averaged_each_time(wraps[0], backward, step)
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
    return next((step for step in steps if step.number > backward.number and step.loops == around), None)


def _averaged_each_time(wrap: LibraryCall, backward: LibraryCall, step: LibraryCall) -> Finding:
    return Finding.of(
        "The gradients of each micro-batch go over the network, where those of the last would do",
        at(wrap.place, "wrapped"),
        at(backward.loops[-1].place, "the loop over micro-batches"),
        at(backward.place, "each averages over all ranks"),
        at(step.place, "one step for all of them"),
        Fix(
            "Average in the last micro-batch alone; the forward pass belongs into the block, too",
            (
                "with contextlib.nullcontext() if is_last else model.no_sync():",
                "    loss = model(batch)",
                f"    {backward.place.text}",
            ),
        ),
        place=backward.place,
    )
