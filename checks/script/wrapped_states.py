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


@check("wrapper-in-checkpoint", severity=WARN, owner=Owner.USER)
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
        for state in _saved_states(script, save):
            kind = _kind_of(script, state.receiver)
            if kind is None:
                continue
            restoring = _restored_from(script, save, state, kind)
            if restoring is not None:
                yield _other_keys(save, state, restoring, kind)
                return
            if kind is _Kind.WRAPPED and not _is_loaded_wrapped(script):
                yield _hint(save, state)
                return


class _Kind(Enum):
    WRAPPED = "wrapped"
    BARE = "bare"


def _saved_states(script: Script, save: LibraryCall) -> Iterator[LibraryCall]:
    """Yield the states that are saved, be it in a dict."""
    saved = save.argument("obj", 0)
    if saved is not None:
        yield from script.made_by(saved, Role.STATE)
        for origin in saved.origins:
            for part in origin.parts:
                yield from script.made_by(part, Role.STATE)


def _kind_of(script: Script, value: Value | None) -> _Kind | None:
    """Which a model is in a distributed run; None for what isn't a model that is wrapped anywhere, or may be either."""
    kinds = {_kind_of_origin(script, origin) for origin in value.origins} if value else set()
    if _Kind.WRAPPED in kinds and value and all(_is_for_distributed(wrap) for wrap in script.made_by(value, Role.WRAP)):
        kinds.discard(_Kind.BARE)
    return kinds.pop() if len(kinds) == 1 else None


def _kind_of_origin(script: Script, origin: Origin) -> _Kind | None:
    made = script.call(origin.call)
    if made is not None and Role.WRAP in made.roles:
        return {"": _Kind.WRAPPED, ".module": _Kind.BARE}.get(origin.part)
    for wrap in script.with_role(Role.WRAP):
        model = wrap.argument("module", 0)
        if model and origin.kind is not OriginKind.UNKNOWN and origin in model.origins:
            return _Kind.BARE
    return None


def _is_for_distributed(wrap: LibraryCall) -> bool:
    return lets_through(wrap.conditions, Ranks.DISTRIBUTED)


def _restored_from(script: Script, save: LibraryCall, state: LibraryCall, kind: _Kind) -> LibraryCall | None:
    """The call that loads what was saved into a model of the other kind."""
    for restoring in script.with_role(Role.LOAD_STATE):
        for load in script.made_by(restoring.argument("state_dict", 0), Role.LOAD):
            if _may_be_saved_by(save, load) and _kind_of(script, restoring.receiver) not in (kind, None):
                return restoring
    return None


def _may_be_saved_by(save: LibraryCall, load: LibraryCall) -> bool:
    """Whether a file is loaded to which the script saves: the same path, or one to resume from."""
    written, read = save.argument("f", 1), load.argument("f", 0)
    if written is None or read is None:
        return False
    names = [read.text, *(origin.text for origin in read.origins)]
    return read.text == written.text or any("resume" in name.lower() for name in names)


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
