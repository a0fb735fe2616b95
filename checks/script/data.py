"""How a script gives each rank its share of the data."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import WARN, Finding, Fix, Owner
from ddpdoctor.checks.script.script_facts import (
    at,
    outer_loops,
    reached,
    require_distributed,
    trains_in,
)
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import Iteration, LibraryCall, Role, Script


@check("sampler-without-set-epoch", severity=WARN, owner=Owner.USER)
def sampler_without_set_epoch(script: Script) -> Iterator[Finding]:
    """A DistributedSampler is used for several epochs without set_epoch.

    ## What breaks
    Nothing stops, and no word is said. Every epoch has the same order, and each rank sees the same share of the data with the same
    neighbours again and again, as if there were no shuffling.

    ## Why
    The sampler shuffles by a generator whose seed is `seed + epoch`, and it can't know the epoch: only `set_epoch` tells it. Without,
    the seed is the same in every epoch.

    ## Fix
    As the first line in the loop over epochs: `sampler.set_epoch(epoch)`. Lightning, accelerate and Fabric do it for their own
    loaders.
    """
    require_distributed(script)
    requires(not script.does("set-epoch"), "a framework that the script uses tells its samplers the epoch")
    for loader in reached(script, Role.LOADER):
        for sampler in samplers_of(script, loader):
            iteration = _epochs_without_order(script, loader, sampler)
            if iteration:
                yield _same_order(loader, sampler, iteration)


def samplers_of(script: Script, loader: LibraryCall) -> Iterator[LibraryCall]:
    """Yield the distributed samplers that a loader may have, be it within a batch sampler."""
    yield from script.made_by(loader.argument("sampler", 3), Role.SAMPLER)
    for batches in script.made_by(loader.argument("batch_sampler", 4), Role.BATCH_SAMPLER, Role.SAMPLER):
        if Role.SAMPLER in batches.roles:
            yield batches
        else:
            yield from script.made_by(batches.argument("sampler", 0), Role.SAMPLER)


def _epochs_without_order(script: Script, loader: LibraryCall, sampler: LibraryCall) -> Iteration | None:
    """Find the loop that goes over the loader in each epoch, where nobody tells the sampler which epoch it is."""
    shuffle = sampler.argument("shuffle", 3)
    if sampler.unpacks or (shuffle is not None and not shuffle.is_constant("True")):
        return None
    if loader.escapes or sampler.escapes or _is_told(script, loader, sampler):
        return None
    for iteration in loader.iterations:
        if iteration.is_reached and outer_loops(iteration, loader) and trains_in(script, iteration):
            return iteration
    return None


def _is_told(script: Script, loader: LibraryCall, sampler: LibraryCall) -> bool:
    """Whether set_epoch is called on them, or on something that may be them."""
    for call in script.with_role(Role.SET_EPOCH):
        made = [script.call(origin.call) for origin in call.receiver.origins] if call.receiver else []
        if not made or None in made or any(other and other.place in (loader.place, sampler.place) for other in made):
            return True
    return False


def _same_order(loader: LibraryCall, sampler: LibraryCall, iteration: Iteration) -> Finding:
    epochs = outer_loops(iteration, loader)[0].place
    given = loader.argument("sampler", 3)
    name = given.text if given and given.text.replace(".", "").replace("_", "").isalnum() else "loader.sampler"
    return Finding.of(
        "The sampler is never told the epoch: every epoch has the same order on each rank",
        at(sampler.place, "the sampler"),
        at(loader.place, "its loader is built"),
        at(epochs, "the loop over epochs"),
        at(iteration.place, "in it the loader is iterated"),
        Fix(f"As the first line in the loop at {epochs}", (f"{name}.set_epoch(epoch)",)),
        place=sampler.place,
    )
