"""Shares of the data that leave out a part of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import WARN, Finding, Owner
from ddpdoctor.checks.script.data import samplers_of
from ddpdoctor.checks.script.fix_code import fix_with, statement_of
from ddpdoctor.checks.script.script_facts import (
    at,
    knows_rank,
    may_be_on_some_ranks,
    reached,
    remove_argument,
    require_distributed,
    set_argument,
)
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import Role, Script

_PREPARE: Final = "accelerate.Accelerator().prepare"


@check("data-sharded-twice", severity=WARN, owner=Owner.USER)
def data_sharded_twice(script: Script) -> Iterator[Finding]:
    """A loader has a DistributedSampler, and accelerate shares its data out once more.

    ## What breaks
    Nothing stops. Each rank trains on its share of its share: of the data eight GPUs see an eighth, and of the rest no word is said.

    ## Why
    `accelerator.prepare` gives each rank its part of the batches, whatever the sampler has given it before.

    ## Fix
    Build the loader as for one process, `DataLoader(dataset, shuffle=True)`, and leave the sharing out to accelerate.
    """
    require_distributed(script)
    for loader in reached(script, Role.LOADER):
        sampler = next(samplers_of(script, loader), None)
        preparing = next((escape for escape in loader.escapes if escape.name == _PREPARE), None)
        if sampler and preparing and not may_be_on_some_ranks(sampler):
            yield Finding.of(
                "The data are shared out twice: each rank trains on its share of its share, and most are never seen",
                at(sampler.place, "shared out by the sampler"),
                at(loader.place, "the loader"),
                at(preparing.place, "and by accelerate"),
                fix_with(
                    "Leave it to accelerate: build the loader without the sampler",
                    statement_of(
                        loader, remove_argument(loader, "sampler"), set_argument(loader, "shuffle", "True", 2)
                    ),
                    loader.place,
                ),
                place=sampler.place,
            )


@check("sampler-seed-per-rank", severity=WARN, owner=Owner.USER)
def sampler_seed_per_rank(script: Script) -> Iterator[Finding]:
    """A DistributedSampler gets a seed that has the rank in it.

    ## What breaks
    Nothing stops. The shares of the ranks overlap: some of the data are trained on twice in an epoch, others not at all.

    ## Why
    Each rank shuffles all of the data by the seed, and takes every n-th of that order. Only of one order are these parts that belong together.

    ## Fix
    Give all ranks the same seed. It is the seed of the augmentation that has to differ from rank to rank.
    """
    require_distributed(script)
    samplers = list(reached(script, Role.SAMPLER))
    requires(samplers, "nothing in the script shares data out")
    for sampler in samplers:
        shuffle = sampler.argument("shuffle", 3)
        if knows_rank(sampler.argument("seed", 4)) and (shuffle is None or shuffle.is_constant("True")):
            yield Finding.of(
                "Each rank shuffles by a seed of its own: the shares overlap, and some of the data nobody sees",
                at(sampler.place, "the seed has the rank in it"),
                fix_with(
                    "Give all ranks the same seed: the sampler takes every n-th of one order",
                    statement_of(sampler, set_argument(sampler, "seed", "0", 4)),
                    sampler.place,
                ),
                place=sampler.place,
            )
