"""Random numbers of the processes that load data."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner
from ddpdoctor.checks.script.data import samplers_of
from ddpdoctor.checks.script.fix_code import FixCode, is_whole, statement_of
from ddpdoctor.checks.script.script_facts import at, reached, require_distributed, set_argument, trains_in
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.script import LibraryCall, OriginKind, Role, Script


@check("same-seed-for-workers", severity=WARN, owner=Owner.USER)
def same_seed_for_workers(script: Script) -> Iterator[Finding]:
    """The generator of a training loader has the same constant seed on every rank.

    ## What breaks
    The ranks read different samples, but crop, flip and colour them by the same random numbers: worker 0 of rank 0 and worker 0 of rank 1 do
    the same to each. There is less variety than there are GPUs, and the accuracy is a bit lower. No word is said.

    ## Why
    A DataLoader draws the seeds of its workers from its generator. From the same seed each rank draws the same.

    ## Fix
    Add the rank to the seed: `generator.manual_seed(seed + rank)`. The order of the data is the DistributedSampler's, and stays the same.
    """
    require_distributed(script)
    for loader in reached(script, Role.LOADER):
        workers = loader.argument("num_workers", 5)
        if workers is None or workers.is_constant("0") or not any(samplers_of(script, loader)):
            continue
        seeding = _constant_seed(script, loader)
        if seeding is not None and any(trains_in(script, iteration) for iteration in loader.iterations):
            yield _same_on_all(script, loader, seeding)


def _constant_seed(script: Script, loader: LibraryCall) -> LibraryCall | None:
    """The call that seeds the loader's generator, where it does so with a constant alone."""
    generator = loader.argument("generator", 12)
    if generator is None or not generator.is_followed:
        return None
    numbers = {origin.call for origin in generator.origins}
    seedings = [
        call
        for call in script.with_role(Role.SEED)
        if call.number in numbers
        or (call.receiver and any(origin.call in numbers for origin in call.receiver.origins if origin.call >= 0))
    ]
    seeds = [call.argument("seed", 0) for call in seedings]
    if seedings and all(
        seed and all(origin.kind is OriginKind.CONSTANT for origin in seed.flattened()) for seed in seeds
    ):
        return seedings[0]
    return None


def _same_on_all(script: Script, loader: LibraryCall, seeding: LibraryCall) -> Finding:
    return Finding.of(
        "The workers of all ranks draw the same random numbers: the loader's generator has a constant seed",
        at(seeding.place, "seeded"),
        at(loader.place, "the loader"),
        _with_rank(script, seeding),
        severity=INFO if loader.argument("worker_init_fn", 8) else WARN,
        place=seeding.place,
    )


def _with_rank(script: Script, seeding: LibraryCall) -> Fix:
    seed, code = seeding.argument("seed", 0), FixCode(script, seeding.place)
    is_counted = seed is not None and seed.text != "0" and is_whole(seed.text)
    sum_of_both = f"{seed.text} + {code.rank}" if seed and is_counted else code.rank
    lines = statement_of(seeding, set_argument(seeding, "seed", sum_of_both, 0))
    if lines:
        return Fix("Add the rank to the seed", code.lines(*lines))
    return Fix(f"Add the rank to the seed at {seeding.place}: {sum_of_both}")
