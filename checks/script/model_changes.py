"""What a script does to a model once DistributedDataParallel knows its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import WARN, Finding, Fix, Owner
from ddpdoctor.checks.script.fix_code import assigned_name, fix_with, statement_of
from ddpdoctor.checks.script.script_facts import at, may_be_on_some_ranks, reached, require_distributed, set_argument
from ddpdoctor.engine.registry import check
from ddpdoctor.facts.script import LibraryCall, OriginKind, Role, Script, Value

_CONVERTED: Final = "converted to other numbers"
_MOVED: Final = "moved to one device on all ranks"
_SET_FREE: Final = "set free in part"
_CHANGES: Final = (Role.HALF, Role.REQUIRES_GRAD, Role.NEW_PARAMETERS, Role.MOVE)
_FIRST_GPU: Final = ("'cuda:0'", "0", "'cpu'")
_NUMBERS: Final = ("torch.float16", "torch.half", "torch.bfloat16", "torch.float64", "torch.double")


@check(
    "changed-after-ddp",
    severity=WARN,
    owner=Owner.USER,
    explains=("unused-parameters", "duplicate-gpu"),
)
def changed_after_ddp(script: Script) -> Iterator[Finding]:
    """A model is changed after it was wrapped in DistributedDataParallel.

    ## What breaks
    Of parameters that are added or set free, and of those whose kind of number is changed, the gradients are no longer averaged: each
    rank trains weights of its own, and no word is said. Where parameters are frozen, the second iteration ends with "Expected to have
    finished reduction in the prior iteration". Moved to `cuda:0`, all ranks meet on one GPU.

    ## Why
    DistributedDataParallel takes the parameters that need gradients when it is made, and hooks itself into them. What comes later it
    doesn't know.

    ## Fix
    First move, freeze and convert the model, then wrap it. If layers are set free during the training, wrap the bare model anew.
    """
    require_distributed(script)
    for call in reached(script, *_CHANGES):
        wraps = [] if call.receiver is None else list(_only_wrapped(script, call.receiver))
        change = _change(script, call, wraps[0]) if wraps else ""
        if change and not may_be_on_some_ranks(call):
            yield Finding.of(
                f"DistributedDataParallel already holds the model that is {change}",
                at(wraps[0].place, "wrapped"),
                at(call.place, "changed afterwards"),
                _fix(change, call, wraps[0]),
                place=call.place,
            )


def _fix(change: str, call: LibraryCall, wrap: LibraryCall) -> Fix:
    if change == _MOVED:
        return Fix(
            f"Move the bare model to the rank's own GPU before it is wrapped at {wrap.place}, and not behind that"
        )
    if change == _SET_FREE:
        name = assigned_name(wrap) if (wrap.place.file, wrap.callers) == (call.place.file, call.callers) else ""
        anew = statement_of(wrap, set_argument(wrap, "module", f"{name}.module", 0)) if name else ()
        return fix_with("Wrap the bare model anew behind it", anew, call.place)
    return Fix(f"Call {call.method} on the bare model, and wrap it then")


def _only_wrapped(script: Script, value: Value) -> Iterator[LibraryCall]:
    """Yield the wraps of which it is the result or a part, where it can be nothing else."""
    if value.origins and all(origin.kind is OriginKind.CALL for origin in value.origins):
        wraps = list(script.made_by(value, Role.WRAP))
        if len(wraps) == len(value.origins):
            yield from wraps


def _change(script: Script, call: LibraryCall, wrap: LibraryCall) -> str:
    """What the call changes; "" if nothing that matters."""
    is_part = call.receiver is not None and any(
        origin.part.removeprefix(".module").strip(".") for origin in call.receiver.origins
    )
    wished = call.argument("requires_grad", 0)
    if Role.HALF in call.roles:
        return _CONVERTED
    if Role.NEW_PARAMETERS in call.roles:
        return "given new parameters"
    if Role.REQUIRES_GRAD in call.roles:
        # A model that is frozen as a whole is a teacher: no gradient goes through it.
        if not is_part or wrap.argument("find_unused_parameters", 6):
            return ""
        return "frozen in part" if wished and wished.is_constant("False") else _SET_FREE
    return _move(script, call)


def _move(script: Script, call: LibraryCall) -> str:
    target = call.argument("device", 0) if call.method == "to" else None
    for value in filter(None, (target, call.argument("dtype", 1))):
        if value.origins and all(
            origin.kind is OriginKind.LIBRARY and origin.text in _NUMBERS for origin in value.origins
        ):
            return _CONVERTED
    if target is None:
        return ""
    devices = [device.argument("device", 0) for device in script.made_by(target, Role.DEVICE)]
    is_fixed = target.is_constant(*_FIRST_GPU) or (
        len(devices) == len(target.origins) and all(device and device.is_constant(*_FIRST_GPU) for device in devices)
    )
    return _MOVED if is_fixed and _uses_gpus(script) else ""


def _uses_gpus(script: Script) -> bool:
    return any(wrap.argument("device_ids", 1) for wrap in script.with_role(Role.WRAP))
