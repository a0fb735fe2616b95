"""State dicts of wrapped models, whose keys say "module."."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
            kinds = {load.number: _kind_of(script, _loaded_into(script, load)) for load in loads}
            others = [load for load in loads if kinds[load.number]]
            if others and kind not in kinds.values():
                yield _other_keys(save, state, others[0], kind)
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
        states = [
            state
            for state in script.made_by(value, Role.STATE)
            if not lets_through(state.conditions, Ranks.NOT_DISTRIBUTED)
        ]
        if kind := _kind_of(script, _together(states)):
            yield states[0], kind


def _loaded_into(script: Script, restoring: LibraryCall) -> Value | None:
    """What takes a state there: a call of a method is told of once for each thing that it may be of."""
    return _together(
        other
        for other in script.with_role(Role.LOAD_STATE)
        if (other.place, other.callers) == (restoring.place, restoring.callers)
    )


def _together(calls: Iterable[LibraryCall]) -> Value | None:
    """The receiver of calls that are one in the source."""
    receivers = [call.receiver for call in calls if call.receiver]
    origins = tuple(origin for receiver in receivers for origin in receiver.origins)
    return Value(origins, receivers[0].text) if receivers else None


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
    is_made = origin.kind is OriginKind.MADE_OF and not any(
        part.kind is OriginKind.UNKNOWN for value in origin.parts for part in value.flattened()
    )
    if not is_made and origin.kind is not OriginKind.PROJECT:
        return None
    models = (wrap.argument("module", 0) for wrap in script.with_role(Role.WRAP))
    return _Kind.BARE if any(model and origin in model.origins for model in models) else None


def _is_for_distributed(wrap: LibraryCall) -> bool:
    return lets_through(wrap.conditions, Ranks.DISTRIBUTED)


def _may_load(script: Script, save: LibraryCall, restoring: LibraryCall) -> bool:
    """Whether a state is taken from a file to which the script saves: the same path, one to resume from, or one that holds as much."""
    written = save.argument("f", 1)
    for load in script.made_by(restoring.argument("state_dict", 0), Role.LOAD):
        read = load.argument("f", 0)
        if read and written:
            names = [read.text, *(origin.text for origin in read.origins)]
            if read.text == written.text or any("resume" in name.lower() for name in names):
                return True
            if _holds_more_than_one(script, save) and _is_of_more_than_one(script, load):
                return True
    return False


def _holds_more_than_one(script: Script, save: LibraryCall) -> bool:
    """Whether several states are saved together: the model's, the optimizer's."""
    saved = save.argument("obj", 0)
    parts = [part for origin in saved.origins for part in origin.parts] if saved else []
    return sum(any(script.made_by(part, Role.STATE)) for part in parts) > 1


def _is_of_more_than_one(script: Script, load: LibraryCall) -> bool:
    """Whether several objects take their states from what is loaded."""
    restored = {
        restoring.receiver.text
        for restoring in script.with_role(Role.LOAD_STATE)
        if restoring.receiver and load in script.made_by(restoring.argument("state_dict", 0), Role.LOAD)
    }
    return len(restored) > 1


def _is_loaded_wrapped(script: Script) -> bool:
    """Whether something is loaded into a wrapped model, or into one that isn't known."""
    return any(
        _kind_of(script, _loaded_into(script, load)) is not _Kind.BARE for load in script.with_role(Role.LOAD_STATE)
    )


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
