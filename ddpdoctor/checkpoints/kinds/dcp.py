"""Distributed checkpoints (DCP): a folder with a .metadata that says what lies where in the ranks' .distcp files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddpdoctor.base.text import human, listed, plural
from ddpdoctor.checkpoints.errors import CheckpointError, Damaged
from ddpdoctor.checkpoints.kinds.recognised import FileHead, Recognised, mode_of, printable
from ddpdoctor.checkpoints.pickles.machine import scan
from ddpdoctor.checkpoints.pickles.nodes import ContainerNode, Text
from ddpdoctor.facts.remedies import Remedy, remedy

METADATA = ".metadata"
_RANKS_METADATA = re.compile(r"__\d+\.metadata\Z")
"""Each rank's own, where they saved without talking to one another."""
_SHARD = re.compile(r"__(\d+)_\d+\.distcp\Z")
_PEEK = 1 << 20
_LARGEST = 1 << 28
"""Bytes of .metadata that are read. It grows with the number of tensors, and with the ranks."""


class _Piece(NamedTuple):
    """A tensor's or object's place in a file of the folder."""

    file: str
    end: int


def is_dcp(names: set[str]) -> bool:
    """By the names in the folder. .metadata alone is no sign: others use that name, too."""
    return any(name.endswith(".distcp") for name in names) or (METADATA in names and _lone(names))


def _lone(names: set[str]) -> bool:
    """Nothing but what DCP and those who wrap it write."""
    return names <= {METADATA, METADATA + ".tmp", "meta.pt", "common.pt", "metadata.json"}


def recognise_dcp(path: Path, names: set[str]) -> Recognised:
    shards = {name for name in names if name.endswith(".distcp")}
    described = sorted(name for name in names if name == METADATA or _RANKS_METADATA.match(name))
    ranks = {found[1] for name in shards if (found := _SHARD.match(name))}
    called = (
        f"a distributed checkpoint (DCP), written by {plural(len(ranks), 'rank')}"
        if ranks
        else "a distributed checkpoint (DCP)"
    )
    if not described:
        unfinished = any(name.endswith(METADATA + ".tmp") for name in names)
        return Recognised(
            kind="dcp-folder",
            called=called,
            damaged=True,
            problem=f"Its .metadata, which is written last, is missing{' (only a .tmp is there)' if unfinished else ''}: "
            "the job ended before the checkpoint was saved, or the file was not copied, as hidden files easily are not",
            advice="Copy .metadata from where the checkpoint was saved, or use the checkpoint before it",
        )
    try:
        problem = _incomplete(path, shards, [piece for name in described for piece in _pieces(path / name)])
    except Damaged as error:
        problem = f"Its .metadata is damaged: {error.text}"
    if problem:
        return Recognised(
            kind="dcp-folder",
            called=called,
            damaged=True,
            problem=problem,
            advice="Copy the missing files from the other nodes' disks, or use the checkpoint before it",
        )
    return Recognised(
        kind="dcp-folder",
        called=called,
        advice="Its tensors are bound to no device: torch.distributed.checkpoint.load puts each tensor where yours is, with any "
        "number of ranks; this makes one file for torch.load of it",
        remedies=(_one_file(path, names),),
    )


def _one_file(path: Path, names: set[str]) -> Remedy:
    """Lightning keeps what isn't a tensor in meta.pt, and has a converter that knows of it."""
    if "meta.pt" in names:
        with FileHead(path / "meta.pt") as glance:
            module = "pytorch" if b"pytorch-lightning_version" in glance.read(0, _PEEK) else "fabric"
        return remedy(f"consolidate-{module}", path)
    return remedy("convert-dcp", path, f"{path.absolute().name}.pt")


def _incomplete(path: Path, shards: set[str], pieces: list[_Piece]) -> str:
    """What .metadata names and isn't there, or is shorter than it says."""
    ends: dict[str, int] = {}
    for piece in pieces:
        ends[piece.file] = max(ends.get(piece.file, 0), piece.end)
    missing = sorted(name for name in ends if name not in shards and not mode_of(path / name))
    if missing:
        are = "is" if len(missing) == 1 else "are"
        return f"Of {plural(len(ends), 'file')} that .metadata names, {len(missing)} {are} missing: {listed(map(printable, missing), 4)}"
    short = sorted(name for name, end in ends.items() if (path / name).stat().st_size < end)
    if short:
        size = (path / short[0]).stat().st_size
        return f"Truncated: {printable(short[0])} has {human(size)} of {human(ends[short[0]])}" + (
            f", and {plural(len(short) - 1, 'other file')} likewise" if len(short) > 1 else ""
        )
    return ""


def _pieces(metadata: Path) -> Iterator[_Piece]:
    """What the metadata says of the files beside it. Nothing, if it is of a kind that we can't read. Raises Damaged."""
    try:
        with FileHead(metadata) as glance:
            if glance.size > _LARGEST:
                return
            program = scan(glance.read(0, glance.size))
    except Damaged:
        raise
    except (OSError, CheckpointError):
        return
    for call in program.calls:
        if call.name != "torch.distributed.checkpoint.filesystem._StorageInfo" or not isinstance(
            call.state, ContainerNode
        ):
            continue
        said = {pair.key.value: pair.value for pair in call.state.pairs if isinstance(pair.key, Text)}
        name, offset, length = said.get("relative_path"), said.get("offset"), said.get("length")
        if isinstance(name, Text) and type(offset) is int and type(length) is int and "/" not in name.value:
            yield _Piece(name.value, offset + length)
