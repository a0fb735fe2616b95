"""Which GPU each rank uses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import WARN, Finding, Fix, Owner, SourceEdit, SourcePlace
from ddpdoctor.base.text import listed
from ddpdoctor.checks.script.fix_code import FixCode, statement_of
from ddpdoctor.checks.script.script_facts import (
    at,
    knows_rank,
    may_be_on_some_ranks,
    may_start_ranks,
    reached,
    require_distributed,
    set_argument,
    ways_to,
)
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.script import LibraryCall, Origin, OriginKind, Role, Script, Value

_CHOOSES: Final = (Role.SET_DEVICE, Role.DEVICE, Role.MOVE)
_BARE: Final = ("'cuda'", "'cuda:0'", "0")
_WRITTEN: Final = ("0", "cuda", "cuda:0")
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


@check(
    "rank-as-device",
    severity=WARN,
    owner=Owner.USER,
    explains=("nproc-exceeds-gpus", "duplicate-gpu", "cuda-visible-devices-wrong"),
)
def rank_as_device(script: Script) -> Iterator[Finding]:
    """The global rank is used as the number of a GPU.

    ## What breaks
    On one node nothing. On the second node rank 8 asks for GPU 8 of a node that has 0 to 7: "CUDA error: invalid device ordinal".

    ## Why
    A GPU's number counts within the node, and so does LOCAL_RANK. RANK counts over all nodes.

    ## Fix
    `local_rank = int(os.environ["LOCAL_RANK"])`, which every launcher of torch sets.
    """
    require_distributed(script)
    requires(not may_start_ranks(script), "the script starts its processes itself, and may know of one node")
    choosing = [
        call
        for role in (*_CHOOSES, Role.WRAP)
        for call in reached(script, role)
        if any(_is_global_rank(argument.value) for argument in call.arguments)
    ]
    if choosing:
        first, *more = choosing
        yield Finding.of(
            "The global rank chooses the GPU: right on one node, and no such GPU on the second",
            at(first.place, "the device"),
            (at(call.place, "so it does here") for call in more[:2]),
            _within_node(script, choosing),
            place=first.place,
        )


def _within_node(script: Script, choosing: list[LibraryCall]) -> Fix:
    """The fix of the statements that choose a GPU by the global rank."""
    first = choosing[0]
    code = FixCode(script, first.place)
    edits: dict[SourcePlace, dict[SourceEdit, None]] = {}
    for call in choosing:
        if call.statement is not None and (call.place.file, call.callers) == (first.place.file, first.callers):
            for argument in call.arguments:
                if _is_global_rank(argument.value):
                    edit = set_argument(call, argument.name, _with_local_rank(argument.value))
                    edits.setdefault(call.statement.place, {})[edit] = None
    lines: list[str] = []
    for place, own in edits.items():
        call = next(call for call in choosing if call.statement and call.statement.place == place)
        lines += statement_of(call, *own)
    others = [call for call in choosing if call.statement is None or call.statement.place not in edits]
    text = "Use the rank within the node" + (
        f", also at {listed(str(call.place) for call in others)}" if others else ""
    )
    return Fix(text, code.lines(f"local_rank = {code.local_rank}", *lines)) if lines else Fix(f"{text}: LOCAL_RANK")


def _with_local_rank(value: Value) -> str:
    """The value of an argument, with the local rank in place of the global one."""
    how = next((origin.text for origin in value.origins if origin.kind is OriginKind.MADE_OF), "")
    return {"f": 'f"cuda:{local_rank}"', "[]": "[local_rank]"}.get(how, "local_rank")


def _is_global_rank(value: Value) -> bool:
    """Whether it is the global rank in a distributed run, or a text or list with it: not only something that is called so."""
    origins = [origin for origin in value.origins if origin.kind is not OriginKind.CONSTANT]
    return bool(origins) and all(_is_rank(origin) for origin in origins)


def _is_rank(origin: Origin) -> bool:
    if origin.kind is OriginKind.MADE_OF and (origin.text == "f" or (origin.text == "[]" and len(origin.parts) == 1)):
        return any(_is_global_rank(part) for part in origin.parts)
    return origin.kind is OriginKind.RANK and bool(origin.text)


@check(
    "device-not-set",
    severity=WARN,
    owner=Owner.USER,
    explains=("duplicate-gpu", "missing-set-device", "barrier-device-unknown"),
)
def device_not_set(script: Script) -> Iterator[Finding]:
    """All ranks of a node use the same GPU.

    ## What breaks
    NCCL ends with "Duplicate GPU detected", or GPU 0 runs out of memory while the others are idle. Where ranks only come by, each of them keeps a
    context of some 500 MiB on GPU 0.

    ## Why
    `.cuda()` and "cuda" mean the current device, which is GPU 0 in every process until it chooses another one.

    ## Fix
    Right after the start, before anything touches a GPU: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`.
    """
    require_distributed(script)
    requires(not script.does("set-device"), "a framework that the script uses chooses the device")
    requires(next(reached(script, Role.PROCESS_GROUP), None), "where the process group is formed could not be followed")
    if any(setting.name == _VISIBLE for setting in script.settings):
        return
    chosen = list(ways_to(script, Role.SET_DEVICE))
    if chosen and all(_is_same_for_all(call) for call in chosen):
        yield _same_gpu(script, chosen[0], "Every rank chooses the same GPU")
        return
    wraps = list(reached(script, Role.WRAP))
    if not wraps or _chooses_by_rank(script):
        return
    for call in reached(script, Role.MOVE):
        if _is_bare(call) and not may_be_on_some_ranks(call):
            yield _same_gpu(script, call, "All ranks of a node use GPU 0: nothing in the script chooses another")
            return


def _is_same_for_all(choosing: LibraryCall) -> bool:
    device = choosing.argument("device", 0)
    is_written_there = device is not None and device.text.strip("\"'") in _WRITTEN
    return is_written_there and not may_be_on_some_ranks(choosing)


def _chooses_by_rank(script: Script) -> bool:
    """Whether something chooses a device by what may be the rank."""
    for call in script.with_role(*_CHOOSES, Role.WRAP):
        if Role.SET_DEVICE in call.roles or any(_may_tell_rank(argument.value) for argument in call.arguments):
            return True
    return False


def _may_tell_rank(value: Value) -> bool:
    kinds = (OriginKind.UNKNOWN, OriginKind.OPTION, OriginKind.SETTING)
    return knows_rank(value) or any(origin.kind in kinds for origin in value.flattened())


def _is_bare(call: LibraryCall) -> bool:
    if call.method == "cuda":
        return not call.arguments
    device = call.argument("device", 0)
    return device is not None and device.is_constant(*_BARE[:2])


def _same_gpu(script: Script, call: LibraryCall, summary: str) -> Finding:
    code = FixCode(script, call.place)
    line = f"{code.name('torch.cuda.set_device')}({code.local_rank})"
    return Finding.of(
        summary,
        at(call.place, "GPU 0, on every rank"),
        Fix("Choose the GPU before anything touches one", code.lines(line)),
        place=call.place,
    )
