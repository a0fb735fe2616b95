"""How a script saves and loads what it has learned."""

from __future__ import annotations

import re
from collections.abc import Iterator
from sys import stdlib_module_names
from typing import Final

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner
from ddpdoctor.base.lazy_patterns import compile_lazily
from ddpdoctor.checks.script.fix_code import FixCode, assigned_name, fix_with, statement_of
from ddpdoctor.checks.script.script_facts import (
    at,
    each_place_once,
    is_one_rank_first,
    knows_rank,
    lets_through,
    may_be_on_some_ranks,
    reached,
    require_ranks,
    require_seen,
    set_argument,
    ways_to,
)
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import ITEM, LibraryCall, Origin, OriginKind, Ranks, Role, Script, Value

_LOAD = "torch.load"
_ACCELERATOR = "accelerate.Accelerator"
_STATE = "accelerate.PartialState"


@check(
    "load-without-map-location",
    severity=WARN,
    owner=Owner.USER,
    explains=("ckpt-device-pin",),
)
def load_without_map_location(script: Script) -> Iterator[Finding]:
    """A checkpoint is loaded without map_location by every rank.

    ## What breaks
    Every rank puts the tensors where the rank that saved them had them, mostly on GPU 0: there each of them takes a CUDA context of some
    hundred MiB and memory for the whole checkpoint, and a job that has trained for days runs out of memory as it resumes.

    ## Why
    A checkpoint knows the device of each tensor, and `torch.load` restores it there unless it is told otherwise.

    ## Fix
    `torch.load(path, map_location="cpu")`: `load_state_dict` copies the values to where the model is.
    """
    require_ranks(script)
    requires(not script.does("load"), "a framework that the script uses loads its checkpoints")
    require_seen(script, "loads a checkpoint", Role.LOAD)
    for load in reached(script, Role.LOAD):
        if load.name != _LOAD or load.argument("map_location", 1) or load.unpacks or may_be_on_some_ranks(load):
            continue
        if _is_own_file(load.argument("f", 0)):
            continue
        restored = _restored_from(script, load)
        if restored is not None:
            yield _loaded_where_it_was(script, load, restored)


def _is_own_file(path: Value | None) -> bool:
    """Whether the rank is written into a path: each reads back what it saved itself."""
    return any(
        knows_rank(Value((origin,))) if not origin.parts else any(map(_is_own_file, origin.parts))
        for origin in (path.origins if path else ())
        if origin.kind is not OriginKind.PROJECT and not origin.text.startswith(".")
    )


def _restored_from(script: Script, load: LibraryCall) -> LibraryCall | None:
    """The call that takes a state out of what was loaded."""
    for restoring in script.with_role(Role.LOAD_STATE):
        if restoring.receiver and _NO_TENSORS.search(restoring.receiver.text):
            continue
        state = restoring.argument("state_dict", 0)
        loaded = [script.call(origin.call) for origin in state.flattened()] if state else []
        if any(call is not None and call.place == load.place for call in loaded):
            return restoring
    return None


def _loaded_where_it_was(script: Script, load: LibraryCall, restored: LibraryCall) -> Finding:
    states = {state.number for state in script.with_role(Role.STATE)}
    saves_states = any(
        origin.call in states
        for save in script.with_role(Role.SAVE)
        for argument in save.arguments
        for origin in argument.value.flattened()
    )
    to_host = set_argument(load, "map_location", '"cpu"')
    return Finding.of(
        "Every rank loads the checkpoint to the GPU from which it was saved, mostly GPU 0",
        at(load.place, "loaded without map_location"),
        at(restored.place, "restored from it"),
        fix_with(
            "Load it into the host's memory, by map_location=\"cpu\": load_state_dict copies it to the rank's device",
            statement_of(load, to_host),
            load.place,
        ),
        severity=WARN if saves_states else INFO,
        place=load.place,
        edits=() if load.escapes else (to_host,),
    )


@check(
    "save-by-every-rank",
    severity=WARN,
    owner=Owner.USER,
    explains=("ckpt-truncated",),
)
def save_by_every_rank(script: Script) -> Iterator[Finding]:
    """Every rank writes the same file.

    ## What breaks
    The ranks write over each other. Mostly the file is whole by luck; when it isn't, it is torn, and the resume ends with "failed finding
    central directory" or "storage has wrong size". A network file system makes it more likely.

    ## Why
    The line is run by all ranks, and the path is the same for each of them.

    ## Fix
    Write on rank 0 alone: `if dist.get_rank() == 0:` before it, and a `dist.barrier()` behind that for those who read the file next. Not
    so for a checkpoint of which every rank has a part: all ranks must call `accelerator.save_state`, DeepSpeed's `save_checkpoint` and
    torch.distributed.checkpoint.
    """
    require_ranks(script)
    requires(not script.does("save"), "a framework that the script uses writes its checkpoints")
    require_seen(script, "saves a file", Role.SAVE)
    unguarded = (
        save
        for save in ways_to(script, Role.SAVE)
        if not may_be_on_some_ranks(save)
        and not is_one_rank_first(save)
        and _is_same_file(save)
        and not _is_in_own_folder(script, save)
    )
    for save in each_place_once(unguarded):
        yield _written_by_all(script, save)


_PATHS = {
    "torch.save": ("f", 1),
    "torch.jit.save": ("f", 1),
    "pickle.dump": ("file", 1),
    "safetensors.torch.save_file": ("filename", 1),
    "safetensors.torch.save_model": ("filename", 1),
}
"""Where the path stands among the arguments; of a save that isn't here somewhere else."""
_OTHERWISE = ("save_directory", 0)
_TOLD_WHO_WRITES = ("is_main_process", "save_function")
"""Arguments of save_pretrained by which one rank alone writes."""
_NOT_ON_DISK = ("BytesIO", "tempfile", "getpid", "uuid")
_SHARE: Final = compile_lazily(r"rank|shard|worker|proc(?!ess(?:ed|or))|host|node_|_node|device|gpu", re.IGNORECASE)
"""Words of options and names that may tell one process from another."""
_NO_TENSORS: Final = compile_lazily(r"sched|sampler|loader|scaler|timer|meter|tracker", re.IGNORECASE)
"""Names of what has a state without tensors on a GPU."""
_NO_MODEL: Final = compile_lazily(r"token|process|extract|config|sched", re.IGNORECASE)
"""Names of what else has a save_pretrained: the same small files, whoever writes them."""
_RESUMED_FROM: Final = compile_lazily(r"model|net|state|c(?:hec)?kpt|checkpoint|optim|weights|snapshot", re.IGNORECASE)
"""Names of what a training is resumed from."""


def _is_same_file(save: LibraryCall) -> bool:
    """Whether the path is the same for all ranks, as far as can be followed."""
    path = save.argument(*_PATHS.get(save.name, _OTHERWISE))
    if path is None or save.unpacks or knows_rank(path) or any(map(save.argument, _TOLD_WHO_WRITES)):
        return False
    if path.may_be(OriginKind.UNKNOWN) or not path.origins or _SHARE.search(path.text):
        return False
    return not any(map(_may_be_own, path.flattened())) and not any(map(_is_told, path.origins))


def _is_in_own_folder(script: Script, save: LibraryCall) -> bool:
    """Whether each rank has gone to a folder of its own before."""
    changes = (call for call in script.with_role(Role.CHANGE_FOLDER) if call.number < save.number)
    return any(knows_rank(change.argument("path", 0)) for change in changes)


def _may_be_own(origin: Origin) -> bool:
    """Whether a part of a path may tell one process from another."""
    if origin.text == ITEM or any(word in origin.text for word in _NOT_ON_DISK):
        return True
    return origin.kind in (OriginKind.OPTION, OriginKind.SETTING) and _SHARE.search(origin.text) is not None


def _is_told(origin: Origin) -> bool:
    """Whether it is, or has in it, what a function tells that can't be followed: it may know the process. Items are those of settings."""
    if origin.text == "()" or origin.text.startswith("?."):
        return any(part.kind is OriginKind.UNKNOWN or _is_told(part) for part in origin.parts[0].origins)
    if origin.text.endswith("()") and origin.text.partition(".")[0] not in stdlib_module_names:
        return True
    return origin.text != "[]" and any(_is_told(inner) for part in origin.parts for inner in part.origins)


def _is_resumed_from(script: Script, save: LibraryCall) -> bool:
    """Whether it is the state of a training that is saved, and not something else, which at worst is made again."""
    saved = save.argument("obj", 0)
    if saved is None or save.name not in _PATHS:
        return save.receiver is None or _NO_MODEL.search(save.receiver.text) is None
    states = {state.number for state in script.with_role(Role.STATE)}
    return any(origin.call in states for origin in saved.flattened()) or _RESUMED_FROM.search(saved.text) is not None


def _written_by_all(script: Script, save: LibraryCall) -> Finding:
    guarded = next((other for other in script.with_role(Role.SAVE) if lets_through(other.conditions, Ranks.ZERO)), None)
    return Finding.of(
        "Every rank writes this file, over that of the others",
        at(save.place, "no condition on the rank"),
        (at(caller, "called from") for caller in save.callers[-2:]),
        at(guarded.place, "another save of the script is for rank 0 alone") if guarded else None,
        _on_rank_0(script, save),
        severity=WARN if _is_resumed_from(script, save) else INFO,
        place=save.place,
    )


def _on_rank_0(script: Script, save: LibraryCall) -> Fix:
    code = FixCode(script, save.place)
    condition = f"if {_asks_for_rank_0(script, save, code)}:"
    return fix_with("Write on rank 0 alone", code.block(condition, statement_of(save)), save.place)


def _asks_for_rank_0(script: Script, save: LibraryCall, code: FixCode) -> str:
    """The condition for rank 0 as the script can write it, whether one process runs it or several."""
    engine = next((engine for engine in script.with_role(Role.ENGINE) if engine.name == _ACCELERATOR), None)
    if engine is None:
        return f"{code.rank} == 0"
    is_seen = (engine.place.file, engine.callers) == (save.place.file, save.callers)
    name = assigned_name(engine) if is_seen else ""
    return f"{name or code.name(_STATE) + '()'}.is_main_process"
