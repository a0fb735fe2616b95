"""State dicts of wrapped models, whose keys say "module."."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from ddpdoctor.base.findings import INFO, WARN, Finding, Fix, Owner
from ddpdoctor.checks.script.script_facts import at, lets_through, reached, require_distributed
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import LibraryCall, Origin, OriginKind, Ranks, Role, Script, Value

_STRIPPER: Final = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present"


@check(
    "wrapper-in-checkpoint",
    severity=WARN,
    owner=Owner.USER,
    explains=("ckpt-module-prefix",),
)
def wrapper_in_checkpoint(script: Script) -> Iterator[Finding]:
    """The state of the wrapped model is saved, and loaded into the bare one, or the reverse.

    ## What breaks
    The script can't resume from its own checkpoint: "Missing key(s) in state_dict", and next to each key one that has "module." before it.
    With `strict=False` not a word is said, and the model starts anew.

    ## Why
    DistributedDataParallel holds the model as its attribute `module`, and so each key of its state_dict begins with "module.".

    ## Fix
    Save `model.module.state_dict()`, and load into the bare model before it is wrapped.
    """
    require_distributed(script)
    requires(not any(call.name == _STRIPPER for call in script.calls), "the script takes the prefix away")
    for save in reached(script, Role.SAVE):
        for state, kind in _saved_states(script, save):
            loads = [load for load in script.with_role(Role.LOAD_STATE) if _may_load(script, save, load)]
            kinds = {_kind_of(script, load.receiver) for load in loads}
            if kind not in kinds and kinds - {None}:
                yield _other_keys(save, state, next(load for load in loads if _kind_of(script, load.receiver)), kind)
                return
            if kind is _Kind.WRAPPED and not _is_loaded_wrapped(script):
                yield _hint(save, state)
                return


class _Kind(Enum):
    WRAPPED = "wrapped"
    BARE = "bare"


def _saved_states(script: Script, save: LibraryCall) -> Iterator[tuple[LibraryCall, _Kind]]:
    """Yield the states of models that are saved, be it in a dict, and of which kind they are in any case."""
    saved = save.argument("obj", 0)
    for value in (saved, *(part for origin in saved.origins for part in origin.parts)) if saved else ():
        states = list(script.made_by(value, Role.STATE))
        kinds = {_kind_of(script, state.receiver) for state in states}
        if len(kinds) == 1 and (kind := kinds.pop()):
            yield states[0], kind


def _kind_of(script: Script, value: Value | None) -> _Kind | None:
    """Which a model is in a distributed run; None for what isn't a model that is wrapped anywhere, or may be either."""
    if value is None:
        return None
    wraps = list(script.made_by(value, Role.WRAP))
    kinds = {
        _kind_of_origin(script, origin)
        for origin in value.origins
        # What the name held before it was wrapped it holds only in a run of one process.
        if origin.call >= 0 or not wraps or not all(map(_is_for_distributed, wraps))
    }
    return kinds.pop() if len(kinds) == 1 else None


def _kind_of_origin(script: Script, origin: Origin) -> _Kind | None:
    made = script.call(origin.call)
    if made is not None and Role.WRAP in made.roles:
        return {"": _Kind.WRAPPED, ".module": _Kind.BARE}.get(origin.part)
    is_known = origin.kind in (OriginKind.PROJECT, OriginKind.MADE_OF)
    if not is_known or any(part.kind is OriginKind.UNKNOWN for value in origin.parts for part in value.flattened()):
        return None
    models = (wrap.argument("module", 0) for wrap in script.with_role(Role.WRAP))
    return _Kind.BARE if any(model and origin in model.origins for model in models) else None


def _is_for_distributed(wrap: LibraryCall) -> bool:
    return lets_through(wrap.conditions, Ranks.DISTRIBUTED)


def _may_load(script: Script, save: LibraryCall, restoring: LibraryCall) -> bool:
    """Whether a state is taken from a file to which the script saves: the same path, or one to resume from."""
    written = save.argument("f", 1)
    for load in script.made_by(restoring.argument("state_dict", 0), Role.LOAD):
        read = load.argument("f", 0)
        if read and written:
            names = [read.text, *(origin.text for origin in read.origins)]
            if read.text == written.text or any("resume" in name.lower() for name in names):
                return True
    return False


def _is_loaded_wrapped(script: Script) -> bool:
    """Whether something is loaded into a wrapped model, or into one that isn't known."""
    return any(_kind_of(script, load.receiver) is not _Kind.BARE for load in script.with_role(Role.LOAD_STATE))


def _other_keys(save: LibraryCall, state: LibraryCall, restoring: LibraryCall, kind: _Kind) -> Finding:
    model = (state.receiver.text if state.receiver else "").removesuffix(".module")
    other = "bare" if kind is _Kind.WRAPPED else "wrapped"
    return Finding.of(
        f"The state of the {kind.value} model is saved, and loaded into the {other} one: the keys differ by 'module.'",
        at(state.place, "taken"),
        at(save.place, "saved"),
        at(restoring.place, "loaded"),
        Fix("Save and load the bare model", (f"{model}.module.state_dict()",)),
        place=state.place,
    )


def _hint(save: LibraryCall, state: LibraryCall) -> Finding:
    model = state.receiver.text if state.receiver else "model"
    return Finding.of(
        "The state of the wrapped model is saved: whoever loads it into the bare one has to take 'module.' off each key",
        at(state.place, "taken"),
        at(save.place, "saved"),
        Fix("Save the bare model", (f"{model}.module.state_dict()",)),
        severity=INFO,
        place=state.place,
    )
