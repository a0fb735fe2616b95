"""The index of a sharded model beside its new shards: what it says of them stays true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ddpdoctor.checkpoints.folders import INDEX_ENDING, shards_of
from ddpdoctor.checkpoints.outcomes import Action, Outcome

_NAME = "model.safetensors" + INDEX_ENDING
"""What loaders of sharded safetensors look for."""


def copy_indexes(outcomes: Sequence[Outcome], prefixes: Sequence[str]) -> list[Outcome]:
    """Writes the index of every model whose shards were all written. prefixes: what was stripped from the keys."""
    written = {Path(one.path): one for one in outcomes if one.action is Action.WRITTEN}
    folders = dict.fromkeys(path.parent for path in written)
    return [_copy(index, written, prefixes) for folder in folders for index in _indexes(folder, written)]


def index_of(shard: Path) -> Path | None:
    """The index beside the file that names it as a shard."""
    indexes = sorted(shard.parent.glob(f"*{INDEX_ENDING}"))
    return next((index for index in indexes if shard in shards_of(index)), None)


def _indexes(folder: Path, written: Mapping[Path, Outcome]) -> Iterator[Path]:
    for index in sorted(folder.glob(f"*{INDEX_ENDING}")):
        shards = shards_of(index)
        if shards and all(shard in written for shard in shards):
            yield index


def _copy(index: Path, written: Mapping[Path, Outcome], prefixes: Sequence[str]) -> Outcome:
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
    except OSError as error:
        text = f"Its copy could not be written: {error.filename}: {error.strerror}"
        return Outcome(path=str(index), action=Action.REFUSED, error=text, advice="Copy it to the new shards yourself")
    return Outcome(path=str(index), action=Action.WRITTEN, written=str(out))


def _entries(
    weight_map: Mapping[str, str], folder: Path, written: Mapping[Path, Outcome], prefixes: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for key, name in weight_map.items():
        if not isinstance(name, str) or key in (shard := written[folder / name]).dropped:
            continue
        for prefix in prefixes if shard.renamed else ():
            key = key.removeprefix(prefix)
        yield key, str(Path(name).with_suffix(Path(shard.written).suffix))


def _encoded(content: dict[str, Any], weight_map: dict[str, str]) -> bytes:
    if len(weight_map) < len(content["weight_map"]) and isinstance(content.get("metadata"), dict):
        # total_size counts what is gone now, and loaders do without it.
        content = content | {
            "metadata": {key: content["metadata"][key] for key in content["metadata"] if key != "total_size"}
        }
    return msgspec.json.format(msgspec.json.encode(content | {"weight_map": weight_map}), indent=2) + b"\n"
