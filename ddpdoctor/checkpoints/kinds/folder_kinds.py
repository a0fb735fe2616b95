"""Recognising a folder by the names in it, which for these layouts are fixed.

A distributed checkpoint (DCP) is a folder with a .metadata that says what lies where in the ranks' .distcp files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.checkpoints.errors import CheckpointError, Damaged
from ddpdoctor.checkpoints.kinds.file_head import FileHead, Recognised, mode_of, printable, recognised
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.checkpoints.pickles.nodes import ContainerNode, Text
from ddpdoctor.facts.remedies import remedy

KINDS_NAMED_AS_A_WHOLE = frozenset({"dcp-folder", "deepspeed-states", "tensorflow", "jax", "unpacked-zip"})
"""Kinds of folders that are named as a whole, and whose files are not looked for."""

_DEEPSPEED_STATES = re.compile(r"(?:.*_)?mp_rank_\d+(?:_model_states|_optim_states)\.pt\Z|zero_pp_rank_.*_states\.pt\Z")


def special_folder(path: Path, entries: dict[str, bool]) -> Recognised | None:
    """Recognise a folder by the names in it, each with whether it is a folder; None for a plain one."""
    files = {name for name, is_folder in entries.items() if not is_folder}
    absolute = path.absolute()
    # .metadata alone is no sign of it: others use that name, too.
    if any(name.endswith(".distcp") for name in files) or (_METADATA in files and files <= _DCP_ALONE):
        return _dcp(path, files)
    if any(_DEEPSPEED_STATES.match(name) for name in files):
        top = absolute.parent
        fix = (remedy("zero-to-fp32-tag", top, absolute.name),) if mode_of(top / "zero_to_fp32.py") else ()
        states = plural(sum(bool(_DEEPSPEED_STATES.match(name)) for name in files), "file")
        return recognised("deepspeed-states", *fix, states=states)
    if "latest" in files and "zero_to_fp32.py" in files:
        return recognised("deepspeed-folder", remedy("zero-to-fp32", path))
    if {"data.pkl", "version"} <= files:
        return recognised("unpacked-zip", remedy("zip", absolute.parent, f"{absolute.name}.pt", absolute.name))
    if "saved_model.pb" in files:
        return recognised("tensorflow/saved-model")
    return recognised("jax") if {"manifest.ocdbt", "_CHECKPOINT_METADATA"} & files else None


def entries_of(path: Path) -> dict[str, tuple[bool, bool]]:
    """The names in a folder: whether each is one itself, and whether it is a link."""
    with os.scandir(path) as entries:
        return {entry.name: (_is_folder(entry), entry.is_symlink()) for entry in entries}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link that leads round in a circle, or where this user may not go.
        return False


_METADATA = ".metadata"
_RANKS_METADATA = re.compile(r"__\d+\.metadata\Z")
"""Each rank's own, where they saved without talking to one another."""
_SHARD = re.compile(r"__(\d+)_\d+\.distcp\Z")
_PEEK_BYTES = 1 << 20
_MAX_METADATA_BYTES = 1 << 28
"""It grows with the number of tensors, and with the ranks."""
_DCP_ALONE = {_METADATA, _METADATA + ".tmp", "meta.pt", "common.pt", "metadata.json"}
"""What DCP and those who wrap it write beside shards."""


def _dcp(path: Path, names: set[str]) -> Recognised:
    shards = {name for name in names if name.endswith(".distcp")}
    described = sorted(name for name in names if name == _METADATA or _RANKS_METADATA.match(name))
    count = len({found[1] for name in shards if (found := _SHARD.match(name))})
    ranks = f", written by {plural(count, 'rank')}" if count else ""
    if not described:
        unfinished = " (only a .tmp is there)" if any(name.endswith(_METADATA + ".tmp") for name in names) else ""
        return recognised("dcp-folder/without-metadata", ranks=ranks, unfinished=unfinished)
    try:
        problem = _incomplete(path, shards, described)
    except Damaged as error:
        problem = f"Its .metadata is damaged: {error.text}"
    if problem:
        return recognised("dcp-folder/incomplete", ranks=ranks, problem=problem)
    one_file = remedy("convert-dcp", path, f"{path.absolute().name}.pt")
    if "meta.pt" in names:
        # There Lightning keeps what isn't a tensor, and it has a converter that knows of it.
        with FileHead(path / "meta.pt") as glance:
            module = "pytorch" if b"pytorch-lightning_version" in glance.read(0, _PEEK_BYTES) else "fabric"
        one_file = remedy(f"consolidate-{module}", path)
    return recognised("dcp-folder", one_file, ranks=ranks)


def _incomplete(path: Path, shards: set[str], described: list[str]) -> str:
    """Say which files .metadata names that aren't there, or are shorter than it says."""
    ends: dict[str, int] = {}
    for metadata in described:
        for name, end in _described_files(path / metadata):
            ends[name] = max(ends.get(name, 0), end)
    missing = sorted(name for name in ends if name not in shards and not mode_of(path / name))
    if missing:
        are = f"{len(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        return f"Of {plural(len(ends), 'file')} that .metadata names, {are}: {listed(map(printable, missing), 4)}"
    sizes = {name: (path / name).stat().st_size for name in ends}
    short = sorted(name for name, size in sizes.items() if size < ends[name])
    if not short:
        return ""
    others = f", and {plural(len(short) - 1, 'other file')} likewise" if len(short) > 1 else ""
    return f"Truncated: {printable(short[0])} has {human(sizes[short[0]])} of {human(ends[short[0]])}{others}"


def _described_files(metadata: Path) -> Iterator[tuple[str, int]]:
    # For each tensor or object in which file it lies, and where it ends there, as the metadata says; nothing, if it is of a kind
    # that we can't read.
    try:
        with FileHead(metadata) as glance:
            if glance.size > _MAX_METADATA_BYTES:
                return
            program = scan(glance.read(0, glance.size))
    except Damaged:
        raise
    except (OSError, CheckpointError):
        return
    for call in program.calls:
        if call.name != "torch.distributed.checkpoint.filesystem._StorageInfo":
            continue
        entries = call.state.pairs if isinstance(call.state, ContainerNode) else ()
        values = {pair.key.value: pair.value for pair in entries if isinstance(pair.key, Text)}
        name, offset, length = values.get("relative_path"), values.get("offset"), values.get("length")
        if isinstance(name, Text) and type(offset) is int and type(length) is int and "/" not in name.value:
            yield name.value, offset + length
