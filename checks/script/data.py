"""How a script gives each rank its share of the data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ddpdoctor.base.findings import FAIL, WARN, EditKind, Finding, Fix, Owner, SourceEdit
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.script.fix_code import FixCode, fix_with, is_whole, statement_of
from ddpdoctor.checks.script.script_facts import (
    at,
    deepspeed_engines,
    knows_rank,
    may_be_on_some_ranks,
    outer_loops,
    reached,
    remove_argument,
    require_distributed,
    require_seen,
    require_several_processes,
    set_argument,
    trains_in,
)
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import Iteration, LibraryCall, Loop, Origin, OriginKind, Role, Script, Value

_LOADER = "torch.utils.data.DataLoader"
_SAMPLER = "torch.utils.data.DistributedSampler"
_SAMPLER_MODULE = "torch.utils.data.distributed"
_EVALUATED: Final = compile_lazily(
    r"(?<![a-z])(?:test|val|valid|validation|eval|dev)(?:_?(?:set|data|ds)\w*)?(?![a-z])", re.IGNORECASE
)
"""Names of data by which nothing is trained: their order doesn't matter."""
_RANDOM = "torch.utils.data.RandomSampler"


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
    require_seen(script, "gives each rank its share of the data", Role.SAMPLER)
    for loader in reached(script, Role.LOADER):
        for sampler in samplers_of(script, loader):
            dataset = sampler.argument("dataset", 0)
            if dataset and _EVALUATED.search(dataset.text):
                continue
            iteration = _epochs_without_order(script, loader, sampler)
            if iteration:
                yield _same_order(script, loader, sampler, iteration)


@check(
    "shuffle-with-sampler",
    severity=FAIL,
    owner=Owner.USER,
    explains=("user-code-error",),
)
def shuffle_with_sampler(script: Script) -> Iterator[Finding]:
    """A DataLoader is given both a sampler and shuffle=True.

    ## What breaks
    `DataLoader` ends with "ValueError: sampler option is mutually exclusive with shuffle", mostly in distributed runs alone: elsewhere
    the sampler is None.

    ## Why
    The order is the sampler's. A DistributedSampler shuffles by itself.

    ## Fix
    `shuffle=(sampler is None)`.
    """
    requires(script.path, "no training script was named")
    require_seen(script, "loads data", Role.LOADER)
    for loader in reached(script, Role.LOADER):
        shuffle, sampler = loader.argument("shuffle", 2), loader.argument("sampler", 3)
        made = next(script.made_by(sampler, Role.SAMPLER, Role.OTHER_SAMPLER), None)
        is_given = sampler is not None and (made is not None or any(map(_is_own_sampler, sampler.origins)))
        if loader.name == _LOADER and shuffle is not None and shuffle.is_constant("True") and sampler and is_given:
            yield Finding.of(
                "The loader gets a sampler and shuffle=True: it ends with a ValueError when it is built",
                at(made.place, "the sampler") if made else None,
                at(loader.place, "the loader"),
                _left_to_sampler(loader, sampler),
                place=loader.place,
                edits=_order_left_to_sampler(loader, sampler, made),
            )


def _is_own_sampler(origin: Origin) -> bool:
    """Whether it is an object of a class of the script's own or of a library that is called so, and not None."""
    is_own = origin.kind is OriginKind.PROJECT and origin.text.endswith("Sampler")
    return is_own or origin.text.endswith("Sampler()")


def _left_to_sampler(loader: LibraryCall, sampler: Value) -> Fix:
    edit = _without_shuffle(loader, sampler)
    always = "Leave the order to the sampler, without shuffle"
    if edit is None:
        return Fix(f"Shuffle only where there is no sampler, in the loader at {loader.place}")
    words = always if _is_always_there(sampler) else "Shuffle only where there is no sampler"
    return fix_with(words, statement_of(loader, edit), loader.place)


def _is_always_there(sampler: Value) -> bool:
    return all(origin.kind is OriginKind.CALL for origin in sampler.origins)


def _without_shuffle(loader: LibraryCall, sampler: Value) -> SourceEdit | None:
    """The edit that leaves the order to a sampler; where there is none, the loader shuffles as before."""
    if _is_always_there(sampler):
        is_named = loader.argument("shuffle") is not None
        return remove_argument(loader, "shuffle") if is_named else set_argument(loader, "shuffle", "False", 2)
    if sampler.text.isidentifier():
        return set_argument(loader, "shuffle", f"({sampler.text} is None)", 2)
    return None


def _order_left_to_sampler(loader: LibraryCall, sampler: Value, made: LibraryCall | None) -> tuple[SourceEdit, ...]:
    """The same edit, where the sampler certainly shuffles by itself."""
    shuffles = made and Role.SAMPLER in made.roles and made.argument("shuffle", 3) is None and not made.unpacks
    edit = _without_shuffle(loader, sampler) if shuffles and sampler.is_followed else None
    return (edit,) if edit else ()


@check("loader-without-sampler", severity=WARN, owner=Owner.USER)
def loader_without_sampler(script: Script) -> Iterator[Finding]:
    """The training data are not shared out among the ranks.

    ## What breaks
    Nothing stops. Every rank goes through all of the data: an epoch takes as long as on one GPU, and eight GPUs do eight times the work
    for what is hardly more than one GPU's result. With the same seed on all ranks it is exactly that.

    ## Why
    DistributedDataParallel averages gradients, and leaves the data alone: that each rank gets its own share is the loader's part.

    ## Fix
    `sampler = DistributedSampler(dataset)`, `DataLoader(dataset, sampler=sampler)` without shuffle, and
    `sampler.set_epoch(epoch)` in the loop over epochs.
    """
    require_several_processes(script)
    engines = list(deepspeed_engines(script))
    wraps = [*reached(script, Role.WRAP), *engines]
    requires(wraps, "no model is wrapped by DistributedDataParallel")
    requires(not script.does("sampler"), "a framework that the script uses shares the data out")
    require_seen(script, "loads data", Role.LOADER)
    if any(engine.unpacks or engine.argument("training_data", 4) for engine in engines):
        return
    if any(knows_rank(argument.value) for seed in script.with_role(Role.SEED) for argument in seed.arguments):
        return
    for loader in reached(script, Role.LOADER):
        iteration = _training_on_all(script, loader)
        if iteration:
            yield Finding.of(
                "Each rank trains on all of the data: the loader has no DistributedSampler",
                at(loader.place, "the loader"),
                at(iteration.place, "trained on it"),
                at(wraps[0].place, "the model"),
                _shared_out(script, loader, iteration),
                place=loader.place,
            )


def _shared_out(script: Script, loader: LibraryCall, iteration: Iteration) -> Fix:
    code = FixCode(script, loader.place)
    dataset = loader.argument("dataset", 0)
    edits = [set_argument(loader, "sampler", "sampler", 3)]
    if loader.argument("shuffle"):
        edits.insert(0, remove_argument(loader, "shuffle"))
    elif loader.argument("shuffle", 2):
        edits.insert(0, set_argument(loader, "shuffle", "False", 2))
    statement = statement_of(loader, *edits)
    epochs = next(iter(outer_loops(iteration, loader)), None)
    told = ("sampler.set_epoch({})  # the first line in the loop at {}",) if epochs and epochs.variable else ()
    text = "Give each rank its share"
    if epochs:
        text += f", and tell the sampler the epoch as the first line in the loop at {epochs.place}"
    if not statement or dataset is None or not is_whole(dataset.text):
        return Fix(
            f"{text}: a DistributedSampler as sampler of the loader at {loader.place}, which shuffles instead of it"
        )
    sampler = code.name(_SAMPLER, f"{_SAMPLER_MODULE}.DistributedSampler")
    return Fix(
        text,
        code.lines(
            f"sampler = {sampler}({dataset.text}, shuffle=True)",
            *statement,
            *(line.format(epochs.variable, epochs.place) for line in told if epochs),
        ),
    )


def _training_on_all(script: Script, loader: LibraryCall) -> Iteration | None:
    """Find the loop that trains on a loader which gives every rank all of the data."""
    dataset, shuffle = loader.argument("dataset", 0), loader.argument("shuffle", 2)
    if loader.name != _LOADER or loader.unpacks or loader.escapes or may_be_on_some_ranks(loader):
        return None
    if dataset is None or knows_rank(dataset) or not dataset.is_followed or loader.argument("batch_sampler", 4):
        return None
    sampler = loader.argument("sampler", 3)
    shuffles = sampler is None and shuffle is not None and shuffle.is_constant("True")
    if not shuffles and not (sampler and _is_random(script, sampler)):
        return None
    for iteration in loader.iterations:
        if iteration.is_reached and trains_in(script, iteration):
            return iteration
    return None


def _is_random(script: Script, sampler: Value) -> bool:
    made = [script.call(origin.call) for origin in sampler.origins]
    return bool(made) and all(call is not None and call.name == _RANDOM and not call.unpacks for call in made)


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
    if script.is_cut_short or loader.escapes or sampler.escapes or _is_told(script, loader, sampler):
        return None
    for iteration in loader.iterations:
        if iteration.is_reached and outer_loops(iteration, sampler) and trains_in(script, iteration):
            return iteration
    return None


def _is_told(script: Script, loader: LibraryCall, sampler: LibraryCall) -> bool:
    """Whether set_epoch is called on them, or on something that may be them."""
    if script.unfollowed:
        return True
    for call in script.with_role(Role.SET_EPOCH):
        made = [script.call(origin.call) for origin in call.receiver.origins] if call.receiver else []
        if not made or None in made or any(other and other.place in (loader.place, sampler.place) for other in made):
            return True
    return False


def _same_order(script: Script, loader: LibraryCall, sampler: LibraryCall, iteration: Iteration) -> Finding:
    loop = outer_loops(iteration, sampler)[0]
    epochs = loop.place
    edits = _told_in_loop(script, loader, loop)
    return Finding.of(
        "The sampler is never told the epoch: every epoch has the same order on each rank",
        at(sampler.place, "the sampler"),
        at(loader.place, "its loader is built"),
        at(epochs, "the loop over epochs"),
        at(iteration.place, "in it the loader is iterated"),
        _told(_name_of_sampler(script, loader, sampler, loop), loop, edits),
        place=sampler.place,
        edits=edits,
    )


def _told(name: str, loop: Loop, edits: Iterable[SourceEdit]) -> Fix:
    """The fix: the lines that `lint --fix` writes, where it does; in words where the script has no name for what the line needs."""
    where = f"as the first line in the loop at {loop.place}"
    if not name:
        return Fix(f"Give the sampler a name, and call its set_epoch, with the number of the epoch, {where}")
    if not loop.variable:
        return Fix(f"Call {name}.set_epoch(...), with the number of the epoch, {where}")
    text = next((edit.text for edit in edits), f"{name}.set_epoch({{turn}})")
    return Fix(f"A{where[1:]}", tuple(text.replace("{turn}", loop.variable).replace("{indent}", "    ").split("\n")))


def _name_of_sampler(script: Script, loader: LibraryCall, sampler: LibraryCall, loop: Loop) -> str:
    """By what the sampler is found in a loop; "" if by nothing."""
    if name := loop.name_of(sampler):
        return name
    name = _name_of_loader(loader, loop)
    return f"{name}.{_attribute_of_sampler(script, loader)}" if name else ""


def _name_of_loader(loader: LibraryCall, loop: Loop) -> str:
    """By what the loader is found where a turn of a loop begins; "" if by nothing, or if it is built anew in each turn."""
    is_built_in_it = any(around.number == loop.number for around in loader.loops)
    return "" if is_built_in_it else loop.name_of(loader)


def _attribute_of_sampler(script: Script, loader: LibraryCall) -> str:
    """What of the loader its sampler is."""
    batches = loader.argument("batch_sampler", 4)
    if batches is None or batches.is_constant("None"):
        return "sampler"
    return "batch_sampler.sampler" if any(script.made_by(batches, Role.BATCH_SAMPLER)) else "batch_sampler"


def _told_in_loop(script: Script, loader: LibraryCall, loop: Loop) -> tuple[SourceEdit, ...]:
    """The edit that tells the sampler, if it or its loader has a name, and is one wherever it is there at all."""
    given = loader.argument("sampler", 3)
    if given is None:
        return ()
    samplers = list(script.made_by(given, Role.SAMPLER))
    nothing = sum(origin.kind is OriginKind.CONSTANT and origin.text == "None" for origin in given.origins)
    if not samplers or len(samplers) + nothing < len(given.origins):
        return ()
    name = sampler = loop.name_of(samplers[0])
    if not name:
        name = _name_of_loader(loader, loop)
        sampler = f"{name}.sampler"
    elif name != given.text:
        return ()
    if not name.isidentifier() or (nothing and name != sampler):
        return ()
    call = f"{sampler}.set_epoch({{turn}})"
    text = f"if {sampler} is not None:\n{{indent}}{call}" if nothing else call
    return (SourceEdit(kind=EditKind.FIRST_IN_LOOP, place=loop.place, name=name, text=text, used_at=loader.place),)
