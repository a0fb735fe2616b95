"""Copying the index of a sharded model to its new shards, so that what it says of them stays true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.checkpoints.errors import CheckpointError
from ddpdoctor.checkpoints.shard_index import INDEX_ENDING, shards_of
from ddpdoctor.report.reported_checkpoints import Action, CheckpointOutcome

_NAME = "model.safetensors" + INDEX_ENDING
"""What loaders of sharded safetensors look for."""


def copy_indexes(outcomes: Sequence[CheckpointOutcome], prefixes: Sequence[str]) -> list[CheckpointOutcome]:
    """Write the index of every model whose shards were all written. prefixes: what was stripped from the keys."""
    written = {Path(outcome.path): outcome for outcome in outcomes if outcome.action is Action.WRITTEN}
    folders = dict.fromkeys(path.parent for path in written)
    indexes = [index for folder in folders for index in sorted(folder.glob(f"*{INDEX_ENDING}"))]
    shards = {index: shards_of(index) for index in indexes}
    return [
        _copy(index, written, prefixes)
        for index in indexes
        if shards[index] and all(shard in written for shard in shards[index])
    ]


def index_of(shard: Path) -> Path | None:
    """The index beside the file that names it as a shard."""
    indexes = sorted(shard.parent.glob(f"*{INDEX_ENDING}"))
    return next((index for index in indexes if shard in shards_of(index)), None)


def _copy(index: Path, written: Mapping[Path, CheckpointOutcome], prefixes: Sequence[str]) -> CheckpointOutcome:
    try:
        old = index.read_bytes()
        content = msgspec.json.decode(old)
        weight_map = dict(_entries(content["weight_map"], index.parent, written, prefixes))
        shard = shards_of(index)[0]
        new = Path(written[shard].written)
        folder = new.parents[len(shard.relative_to(index.parent).parts) - 1]
        out = folder / (_NAME if new.suffix == ".safetensors" else index.name)
        with out.open("xb") as file:
            file.write(old if weight_map == content["weight_map"] else _encoded(content, weight_map))
    except CheckpointError as error:
        text, advice = f"since a new shard can't be read any more: {error.text}", "Write the shards once more"
    except OSError as error:
        text, advice = f"{error.filename}: {error.strerror}", "Copy it to the new shards yourself"
    else:
        return CheckpointOutcome(path=str(index), action=Action.WRITTEN, written=str(out))
    text = f"Its copy could not be written: {text}"
    return CheckpointOutcome(path=str(index), action=Action.REFUSED, error=text, advice=advice)


def _entries(
    weight_map: Mapping[str, str], folder: Path, written: Mapping[Path, CheckpointOutcome], prefixes: Sequence[str]
) -> Iterator[tuple[str, str]]:
    kept = {
        key: name
        for key, name in weight_map.items()
        if isinstance(name, str) and key not in written[folder / name].dropped
    }
    shards: dict[str, list[str]] = {}
    for key, name in kept.items():
        shards.setdefault(name, []).append(key)
    stripped = {
        name: _stripped(keys, Path(written[folder / name].written), prefixes) if written[folder / name].renamed else ""
        for name, keys in shards.items()
    }
    for key, name in kept.items():
        ending = Path(written[folder / name].written).suffix
        yield key.removeprefix(stripped[name]), str(Path(name).with_suffix(ending))


def _stripped(keys: Sequence[str], shard: Path, prefixes: Sequence[str]) -> str:
    """The part of the prefixes that the shard's keys lost, by those that it has now: a state dict may have had only some."""
    there = _keys(shard)
    possible = [""]
    for prefix in prefixes:
        possible += [longer for start in possible if keys[0].startswith(longer := start + prefix)]
    fitting = (start for start in possible if all(key.startswith(start) and key[len(start) :] in there for key in keys))
    return max(fitting, key=len, default="")


def _keys(shard: Path) -> frozenset[str]:
    """The names of the tensors in a file that was just written and verified."""
    if shard.suffix == ".safetensors":
        with shard.open("rb") as file:
            header = msgspec.json.decode(file.read(int.from_bytes(file.read(8), "little")))
        return frozenset(header)
    from ddpdoctor.checkpoints.formats.opening import open_layout, read_parts
    from ddpdoctor.checkpoints.named_paths import recognise
    from ddpdoctor.checkpoints.pickles.nodes import Text
    from ddpdoctor.checkpoints.pickles.tensors import pairs

    with open_layout(shard, recognise(shard).kind) as layout:
        entries = pairs(read_parts(layout)[0].program.root)
    return frozenset(pair.key.value for pair in entries if isinstance(pair.key, Text))


def _encoded(content: dict[str, Any], weight_map: dict[str, str]) -> bytes:
    metadata = content.get("metadata")
    if len(weight_map) < len(content["weight_map"]) and isinstance(metadata, dict):
        # total_size counts what is gone now, and loaders do without it.
        content |= {"metadata": {key: value for key, value in metadata.items() if key != "total_size"}}
    return msgspec.json.format(msgspec.json.encode(content | {"weight_map": weight_map}), indent=2) + b"\n"
