"""How the results of an evaluation are brought together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import INFO, Finding, Owner
from ddpdoctor.checks.script.fix_code import fix_with, statement_of
from ddpdoctor.checks.script.script_facts import at, reached
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import LibraryCall, Role, Script

_GATHER: Final = "accelerate.Accelerator().gather"


@check("gather-with-duplicates", severity=INFO, owner=Owner.USER)
def gather_with_duplicates(script: Script) -> Iterator[Finding]:
    """An evaluation gathers its predictions by accelerator.gather, which keeps the samples that were added as padding.

    ## What breaks
    If the number of samples can't be divided by ranks times batch size, the first ones are counted twice: the metric is a bit wrong, and
    differs with the number of GPUs.

    ## Why
    accelerate fills the last batch so that all ranks have as many. `gather` returns all of it; `gather_for_metrics` cuts off what was
    added.

    ## Fix
    `accelerator.gather_for_metrics((predictions, references))`, unless the script cuts the surplus off by itself.
    """
    requires(script.path, "no training script was named")
    gathers = [call for call in reached(script, Role.COLLECTIVE) if call.name == _GATHER]
    requires(gathers, "nothing is gathered by accelerate")
    trained = {loop.number for call in script.with_role(Role.BACKWARD) for loop in call.loops[-1:]}
    for gather in gathers:
        gathered = gather.argument("tensor", 0)
        is_loss = gathered is not None and "loss" in gathered.text.lower()
        inner = gather.loops[-1:]
        if is_loss or not inner or inner[0].number in trained or not _goes_over_data(script, gather):
            continue
        yield Finding.of(
            "The evaluation gathers samples that were only added as padding, perhaps",
            at(gather.place, "gathered"),
            at(inner[0].place, "in the loop over the data"),
            fix_with(
                "Let accelerate cut off what it added, by gather_for_metrics",
                tuple(line.replace(".gather(", ".gather_for_metrics(") for line in statement_of(gather)),
                gather.place,
            ),
            place=gather.place,
        )


def _goes_over_data(script: Script, gather: LibraryCall) -> bool:
    """Whether the innermost loop is one over a loader."""
    return any(
        iteration.place == gather.loops[-1].place
        for call in script.with_role(Role.LOADER, Role.PREPARE)
        for iteration in call.iterations
    )
