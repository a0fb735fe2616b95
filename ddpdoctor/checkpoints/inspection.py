"""The contents of a checkpoint as facts. Reads; never runs, never changes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ddpdoctor.base.shell import quoted
from ddpdoctor.checkpoints.errors import CheckpointError, Damaged, Refused, Torn, system_errors_refused
from ddpdoctor.checkpoints.formats.layouts import Layout
from ddpdoctor.checkpoints.formats.opening import FilePart, open_layout, read_parts
from ddpdoctor.checkpoints.formats.zip_archive import Archive
from ddpdoctor.checkpoints.kinds.file_head import Recognised
from ddpdoctor.checkpoints.pickles.device_locations import device_arguments, device_of, pinned
from ddpdoctor.checkpoints.pickles.gc_paused import without_collection
from ddpdoctor.checkpoints.pickles.key_prefixes import has_prefix
from ddpdoctor.checkpoints.pickles.nodes import Call, Storage, Text
from ddpdoctor.checkpoints.pickles.plain_tensors import PlainTensor
from ddpdoctor.checkpoints.pickles.tensors import VIEWS, Found, element_size, is_state_dict, pairs, view, walk
from ddpdoctor.facts.checkpoints import CheckpointFile, DeviceText, GlobalName, KeyPrefix, Pins
from ddpdoctor.facts.remedies import remedy

CPU_RNG_STATE_BYTES = 5056
"""Of torch.get_rng_state()."""

_BYTE_STORAGES = ("ByteStorage", "UntypedStorage")

_CODE_DEVICE = re.compile(r'"((?:cuda|xpu|npu|hpu|mps|xla)(?::\d+)?)"')


def inspect(path: Path) -> CheckpointFile:
    """The facts of one file or folder. Whatever is wrong with it is a fact, too: nothing is raised."""
    from ddpdoctor.checkpoints.named_paths import recognise

    recognised = recognise(path)
    failure: CheckpointError | None = None
    if recognised.rewritable:
        try:
            with system_errors_refused(path):
                refuse_torn(path)
                with without_collection(), open_layout(path, recognised.kind) as layout:
                    return describe(path, recognised, layout, read_parts(layout))
        except CheckpointError as error:
            failure = error
    if failure or recognised.damaged:
        # It may be a file that a run was killed in while it changed it, and that was renamed then.
        from ddpdoctor.checkpoints.writing.undo_advice import torn_under_other_name

        failure = torn_under_other_name(path) or failure
    return unread(path, recognised, failure)


def refuse_torn(path: Path) -> None:
    """Refuse a file that an earlier run was killed in while it changed it: what stands there is neither old nor new.

    Raises:
        Refused: it is half changed.
        Torn: it is, and may not be what that run knew.
    """
    from ddpdoctor.checkpoints.writing.journal import undo_file

    if not os.path.lexists(undo_file(path)):
        return
    from ddpdoctor.checkpoints.writing import in_place

    try:
        recovery = in_place.recover(path, dry_run=True)
    except Torn:
        raise
    except CheckpointError:
        return  # An undo file of other content says nothing about this one.
    if recovery is not None and recovery.torn:
        raise Refused(recovery.text, "Let it do so", (f"ddpdoctor fix-checkpoint {quoted(path)}",))


def unread(path: Path, recognised: Recognised, error: CheckpointError | None = None) -> CheckpointFile:
    """The facts of a file that isn't read to the ground: recognised as something else, or stopped by an error."""
    from ddpdoctor.checkpoints.rank_files import rank_files

    if error:
        recognised = msgspec.structs.replace(
            recognised,
            problem=error.text,
            damaged=isinstance(error, Damaged),
            advice=error.advice,
            # All that an error says to type where a file is only looked at.
            remedies=(remedy("fix", path),) if error.commands else (),
        )
    try:
        size = 0 if path.is_dir() else path.stat().st_size
    except OSError:
        size = 0
    return CheckpointFile(
        path=str(path),
        kind=recognised.kind,
        called=recognised.called,
        size=size,
        problem=recognised.problem,
        damaged=recognised.damaged,
        advice=recognised.advice,
        remedies=recognised.remedies,
        globals=tuple(_foreign(recognised.names)),
        rank_files=rank_files(path),
    )


def describe(path: Path, recognised: Recognised, layout: Layout, parts: list[FilePart]) -> CheckpointFile:
    """The facts of a checkpoint that was read."""
    from ddpdoctor.checkpoints.kinds.framework_folders import loader_of
    from ddpdoctor.checkpoints.rank_files import rank_files
    from ddpdoctor.checkpoints.weights_only import weights_only_blockers

    is_program = recognised.kind == "torchscript"
    top = [pair.key for part in parts for pair in pairs(part.program.root)]
    loader = loader_of(path, {key.value for key in top if isinstance(key, Text)})
    found = [place for part in parts for place in walk(part.program.root)]
    others = [place for place in found if place.node.__class__ is not PlainTensor]
    names = [name for part in parts for name in part.program.globals]
    blockers = {reason: None for part in parts for reason in weights_only_blockers(part.program)}
    return CheckpointFile(
        path=str(path),
        kind=recognised.kind,
        called=recognised.called,
        size=layout.source.size,
        advice=recognised.advice,
        pins=_pins(parts),
        # Of names in TorchScript torch.jit.load takes its own classes from the code beside it, and refuses any other.
        globals=tuple(
            global_name
            for global_name in _foreign(names)
            if not is_program or (global_name.dangerous and not global_name.name.startswith("__torch__."))
        ),
        weights_only_blockers=() if is_program else tuple(blockers),
        prefixes=tuple(_prefixes(others, loader, published=(path.parent / "config.json").is_file())),
        whole_module="" if is_program else _whole_module(others),
        rng_states=tuple(_rng_states(parts, found)),
        device_texts=tuple(
            dict.fromkeys(
                DeviceText(where=place.where, device=device)
                for place in others
                if (device := device_of(place.node)) and pinned(device) and place.path[-1:] != ("_device_type",)
            )
        ),
        code_devices=tuple(_code_devices(layout)),
        rank_files=rank_files(path),
        loader=loader,
    )


def _pins(parts: list[FilePart]) -> tuple[Pins, ...]:
    """The pins by device, the most bytes first."""
    tensors: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for part in parts:
        counted: set[str] = set()
        for storage in part.program.storages:
            device = storage.location.value
            tensors[device] += 0
            if storage.key not in counted:
                counted.add(storage.key)
                sizes[device] += storage.count * element_size(storage)
        for call in part.program.calls:
            if call.name in VIEWS and isinstance(call.first_argument, Storage):
                tensors[call.first_argument.location.value] += 1
        tensors.update(argument.device for argument in device_arguments(part.program) if pinned(argument.device))
    return tuple(
        Pins(device=device, tensors=tensors[device], bytes=sizes[device])
        for device in sorted(tensors, key=lambda device: (-sizes[device], device))
    )


def _foreign(names: Iterable[str]) -> Iterator[GlobalName]:
    from ddpdoctor.checkpoints.pickle_globals import meaning, own_globals

    for name in dict.fromkeys(names):
        if name not in own_globals():
            text, dangerous = meaning(name)
            yield GlobalName(name=name, meaning=text, dangerous=dangerous)


def _prefixes(found: list[Found], loader: str, *, published: bool) -> Iterator[KeyPrefix]:
    """The prefixes of all keys: the wrappers' names, and behind those the one under which something holds the model.

    loader: the framework that loads it. published: as models of Hugging Face are, whose own keys may all begin with "model.".
    """
    from ddpdoctor.checkpoints.kinds.framework_folders import LIGHTNING
    from ddpdoctor.checkpoints.model_wrappers import HOLDERS, WRITERS

    for place in found:
        if not is_state_dict(place.node):
            continue
        prefix = ""
        while longer := [prefix + wrapper for wrapper in WRITERS if has_prefix(place.node, prefix + wrapper)]:
            prefix = longer[0]
        may_be_models = False
        name = pairs(place.node)[0].key.value[len(prefix) :].partition(".")[0]
        if len(pairs(place.node)) > 1 and has_prefix(place.node, f"{prefix}{name}."):
            # Behind a wrapper's own it is left to the model, unless it is a usual name for place.
            sure = loader == LIGHTNING or (not loader and not published and name in HOLDERS)
            may_be_models = not sure and not prefix
            prefix += f"{name}." if sure or may_be_models else ""
        if prefix:
            keys = len(pairs(place.node))
            yield KeyPrefix(where=place.where, prefix=prefix, keys=keys, may_be_models=may_be_models)


def _whole_module(found: list[Found]) -> str:
    """The class of the first object that keeps its state as torch.nn.Module does."""
    for place in found:
        if isinstance(place.node, Call):
            keys = {pair.key.value for pair in pairs(place.node.state) if isinstance(pair.key, Text)}
            if {"_parameters", "_modules"} <= keys:
                if place.node.name in ("copyreg._reconstructor", "copy_reg._reconstructor"):
                    return getattr(place.node.first_argument, "full_name", "")
                return place.node.name or "a class"
    return ""


def _rng_states(parts: list[FilePart], found: list[Found]) -> Iterator[str]:
    if not any(storage.kind in _BYTE_STORAGES for part in parts for storage in part.program.storages):
        return
    for place in found:
        tensor = view(place.node)
        if tensor is None or tensor.dtype not in ("Byte", "uint8") or len(tensor.size) != 1:
            continue
        if tensor.size[0] == CPU_RNG_STATE_BYTES or any("rng" in part.lower() for part in place.path):
            yield place.where


def _code_devices(layout: Layout) -> Iterator[str]:
    # TorchScript's code is text; what it says of devices is part of the program and stays.
    if not isinstance(layout, Archive):
        return
    for record in layout.records.values():
        if not record.name.startswith("code/") or not record.name.endswith(".py"):
            continue
        code = layout.read(record).decode("utf-8", "replace")
        for number, line in enumerate(code.splitlines(), start=1):
            for device in _CODE_DEVICE.findall(line):
                yield f"{record.name}:{number}: {device}"
