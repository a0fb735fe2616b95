"""The index beside new shards says what is true of them, or isn't written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.checkpoints.fixing import EditOptions, fix
from ddpdoctor.checkpoints.shard_index_copies import copy_indexes, index_of
from ddpdoctor.report.reported_checkpoints import Action, CheckpointOutcome

NAMES = ("model-1.bin", "deep/model-2.bin")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a shard")
    return write(tmp_path / "model", {"module.a": NAMES[0], "module.b": NAMES[0], "module.c": NAMES[1]})


def write(folder: Path, weight_map: Any, name: str = "pytorch_model.bin.index.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"metadata": {"total_size": 9, "by": "us"}, "weight_map": weight_map}))
    return path


def outcomes(index: Path, ending: str = ".bin", names: Iterable[str] = NAMES, **fields: Any) -> list[CheckpointOutcome]:
    """As if the shards had been written to the folder "new"."""
    made = []
    for name in names:
        out = (index.parent.parent / "new" / name).with_suffix(ending)
        out.parent.mkdir(parents=True, exist_ok=True)
        made.append(CheckpointOutcome(path=str(index.parent / name), action=Action.WRITTEN, written=str(out), **fields))
    return made


def copied(index: Path, *arguments: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    done = copy_indexes(outcomes(index, *arguments, **fields), ())
    assert [one.action for one in done] == [Action.WRITTEN]
    path = Path(done[0].written)
    assert path.parent == index.parent.parent / "new"
    return path.name, json.loads(path.read_text())


def test_unchanged_it_is_copied_to_the_bit(index: Path) -> None:
    name, _ = copied(index)
    assert (index.parent.parent / "new" / name).read_bytes() == index.read_bytes()


@pytest.mark.parametrize("to_safetensors", [False, True])
def test_keys_lose_the_prefixes_that_their_shard_lost(index: Path, to_safetensors: bool) -> None:
    """A shard all of whose keys happen to have a second prefix loses that, too, and no other does."""
    keys = {"module.a": NAMES[0], "module.module.b": NAMES[0], "module._orig_mod.c": NAMES[1]}
    write(index.parent, keys)
    prefixes = ("module.", "_orig_mod.", "x.")
    wishes = EditOptions(strip_prefixes=prefixes, to_safetensors=to_safetensors)
    made = []
    for name in NAMES:
        torch.save({key: torch.ones(2) for key, shard in keys.items() if shard == name}, index.parent / name)
        out = (index.parent.parent / "new" / name).with_suffix(".safetensors" if to_safetensors else ".bin")
        out.parent.mkdir(parents=True, exist_ok=True)
        made.append(fix(index.parent / name, wishes, out=out))
    (done,) = copy_indexes(made, prefixes)
    content = json.loads(Path(done.written).read_text())
    names = [Path(one.written).relative_to(index.parent.parent / "new") for one in made]
    assert content["weight_map"] == {"a": str(names[0]), "module.b": str(names[0]), "c": str(names[1])}
    assert content["metadata"]["total_size"] == 9


def test_keys_that_were_dropped_are_gone_and_so_is_the_size(index: Path) -> None:
    _, content = copied(index, dropped=("module.b",))
    assert content == {"metadata": {"by": "us"}, "weight_map": {"module.a": NAMES[0], "module.c": NAMES[1]}}


def test_safetensors_get_the_name_that_loaders_look_for(index: Path) -> None:
    name, content = copied(index, ".safetensors")
    assert name == "model.safetensors.index.json"
    assert set(content["weight_map"].values()) == {"model-1.safetensors", "deep/model-2.safetensors"}


def test_an_index_whose_shards_were_not_all_written_is_not_copied(index: Path) -> None:
    assert copy_indexes(outcomes(index, names=NAMES[:1]), ()) == []
    first, second = outcomes(index)
    refused = CheckpointOutcome(path=second.path, action=Action.REFUSED, error="no")
    assert copy_indexes([first, refused], ()) == []


def test_an_index_that_is_there_is_not_overwritten(index: Path) -> None:
    made = outcomes(index)
    there = index.parent.parent / "new" / index.name
    there.write_text("mine")
    done = copy_indexes(made, ())
    assert [one.action for one in done] == [Action.REFUSED]
    assert str(there) in done[0].error
    assert there.read_text() == "mine"


@pytest.mark.parametrize("weight_map", [None, [], "x", {"a": "../model-1.bin"}, {"a": "/etc/passwd"}, {"a": 3}])
def test_hostile_indexes_are_let_be(index: Path, weight_map: Any) -> None:
    write(index.parent, weight_map)
    assert copy_indexes(outcomes(index), ()) == []
    assert index_of(index.parent / NAMES[0]) is None


def test_entries_that_are_no_names_are_left_out(index: Path) -> None:
    write(index.parent, {"module.a": NAMES[0], "module.b": 7, "module.c": NAMES[1]})
    assert list(copied(index)[1]["weight_map"]) == ["module.a", "module.c"]


def test_the_index_of_a_shard(index: Path) -> None:
    assert index_of(index.parent / NAMES[0]) == index
    assert index_of(index.parent / "other.bin") is None
