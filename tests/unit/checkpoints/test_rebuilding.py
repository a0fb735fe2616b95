"""Checkpoints written anew without some of their storages, against torch's own reader."""

from __future__ import annotations

import itertools
import pickletools
import subprocess
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.serialization import config

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.formats.opening import open_layout
from ddpdoctor.checkpoints.pickles.cutting import cut
from ddpdoctor.checkpoints.writing.rebuilding import rebuild
from tests.support.checkpoint_files import changed, repacked, unchecked

SHARED = torch.arange(30.0)
OBJECT = {
    "model": {f"layer.{number}": torch.full((number * 11,), float(number)) for number in range(40)},
    "optimizer": {"shared": SHARED, **{f"state.{number}": torch.full((number * 7,), 3.25) for number in range(40)}},
    "tail": [SHARED, torch.ones(5, dtype=torch.float8_e4m3fn)],
    "epoch": 3,
}
DROPPED = bytes(torch.full((3,), 3.25).untyped_storage())


def ignore(done: int, total: int) -> None:
    """For who doesn't wait to see."""


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(itertools.starmap(equal, zip(one, other, strict=True)))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.to(torch.float64), other.to(torch.float64))
    return bool(one == other)


def without(path: Path, out: Path, names: Collection[str], kind: str = "zip") -> frozenset[str]:
    """Writes the checkpoint without these top-level keys. The keys of the storages that stayed."""
    with open_layout(path, kind) as layout:
        done = cut(layout.pickles()["data.pkl"], (), tuple(names))
        rebuild(layout, {"data.pkl": done.pickle}, done.storages, out, ignore)
    return done.storages


def loads(path: Path, expected: dict[str, Any], *, stored: bool = True) -> None:
    assert equal(torch.load(path), expected)
    assert equal(torch.load(path, weights_only=False), expected)
    if stored:
        assert equal(torch.load(path, mmap=True), expected)
        # torch then computes where each storage lies, unless the file says that it can't.
        with config.patch({"load.calculate_storage_offsets": True}):
            assert equal(torch.load(path, mmap=True), expected)


def save_aligned(path: Path) -> None:
    with config.patch({"save.storage_alignment": 4096}):
        torch.save(OBJECT, path)


def save_unchecked(path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(OBJECT, path)
    finally:
        torch.serialization.set_crc32_options(True)


def save_repacked(path: Path, **options: Any) -> None:
    torch.save(OBJECT, path)
    repacked(path, **options)


def save_appended_to(path: Path) -> None:
    """Changed by us before: with its pickle behind an old directory."""
    torch.save(OBJECT, path)
    with open_layout(path, "zip") as layout:
        data = layout.pickles()["data.pkl"]
        change = layout.change({"data.pkl": data[:-1] + b"q\xff."})
    path.write_bytes(changed(path.read_bytes(), change))


SAVERS = {
    "plain": lambda path: torch.save(OBJECT, path),
    "aligned to 4096": save_aligned,
    "without checksums": save_unchecked,
    "appended to": save_appended_to,
    "stored anew": save_repacked,
    "compressed": lambda path: save_repacked(path, method=zipfile.ZIP_DEFLATED),
    "streamed": lambda path: save_repacked(path, streamed=True),
    "with 64-bit sizes": lambda path: save_repacked(path, large=True, streamed=True),
}


@pytest.mark.tool("unzip")
@pytest.mark.parametrize("how", SAVERS)
def test_dropped_storages_are_gone_and_the_rest_is_as_it_was(how: str, tmp_path: Path) -> None:
    old, new = tmp_path / "model.pt", tmp_path / "small.pt"
    SAVERS[how](old)
    original = old.read_bytes()
    kept = without(old, new, ["optimizer"])
    loads(new, {key: value for key, value in OBJECT.items() if key != "optimizer"}, stored=how != "compressed")
    assert old.read_bytes() == original
    assert len(new.read_bytes()) < len(original)
    if how != "compressed":
        assert DROPPED in original
        assert DROPPED not in new.read_bytes()
    with zipfile.ZipFile(old) as before, zipfile.ZipFile(new) as after, open_layout(new, "zip") as layout:
        names = [name for name in before.namelist() if "/data/" not in name or name.rpartition("/")[2] in kept]
        assert after.namelist() == names
        for name in set(names) - {"model/data.pkl", "model/.format_version"}:
            assert unchecked(after, name) == unchecked(before, name)
            assert after.getinfo(name).CRC == before.getinfo(name).CRC
        alignment = 4096 if how == "aligned to 4096" else 64
        for name, record in layout.records.items():  # type: ignore[attr-defined]
            assert record.offset % alignment == 0, name
        if how == "without checksums":
            assert all(not info.CRC for info in after.infolist())
        else:
            assert after.testzip() is None
            subprocess.run(["unzip", "-tq", str(new)], check=True, stdout=subprocess.DEVNULL)
            assert after.read("model/.format_version") == b"0"


@pytest.mark.parametrize("how", ["plain", "aligned to 4096", "appended to", "streamed"])
def test_a_longer_pickle_and_every_storage(how: str, tmp_path: Path) -> None:
    """torch goes on computing where the storages lie, and finds them there."""
    old, new = tmp_path / "model.pt", tmp_path / "new.pt"
    SAVERS[how](old)
    with open_layout(old, "zip") as layout:
        pickle = layout.pickles()["data.pkl"][:-1] + b"q\xfe" * 3000 + b"."
        rebuild(layout, {"data.pkl": pickle}, None, new, ignore)
    loads(new, OBJECT)
    with zipfile.ZipFile(new) as after:
        assert after.read("model/data.pkl") == pickle
        assert after.read("model/.format_version") == b"1"


def test_rebuilt_twice_is_the_same(tmp_path: Path) -> None:
    torch.save(OBJECT, tmp_path / "model.pt")
    without(tmp_path / "model.pt", tmp_path / "first.pt", ["optimizer"])
    with open_layout(tmp_path / "first.pt", "zip") as layout:
        rebuild(layout, layout.pickles(), None, tmp_path / "second.pt", ignore)
    assert (tmp_path / "first.pt").read_bytes() == (tmp_path / "second.pt").read_bytes()


@pytest.mark.parametrize("dropped", ["small", "large", "note"])
def test_beyond_four_gib(dropped: str, tmp_path: Path) -> None:
    old, new = tmp_path / "large.pt", tmp_path / "small.pt"
    tensors = {
        "small": torch.zeros(1000, dtype=torch.uint8),
        "large": torch.empty((1 << 32) + 5, dtype=torch.uint8),
        "last": torch.arange(9.0),
        "end": torch.arange(5.0),
        "note": "of 1000 words" * 500,
    }
    with torch.serialization.skip_data():
        torch.save(tensors, old)
    with open_layout(old, "zip") as layout, old.open("r+b") as file:
        for key, name in (("2", "last"), ("3", "end")):
            file.seek(layout.records[f"data/{key}"].offset)  # type: ignore[attr-defined]
            file.write(bytes(tensors[name].untyped_storage()))
    without(old, new, [dropped])
    assert new.stat().st_blocks * 512 < 1 << 20, "holes stay holes"
    with config.patch({"load.calculate_storage_offsets": True}):
        loaded = torch.load(new, mmap=True)
    assert loaded.keys() == tensors.keys() - {dropped}
    assert torch.equal(loaded["last"], tensors["last"])
    assert torch.equal(loaded["end"], tensors["end"])
    for name in {"small", "large"} - {dropped}:
        assert loaded[name].shape == tensors[name].shape  # type: ignore[attr-defined]
    with zipfile.ZipFile(new) as archive:
        assert unchecked(archive, "large/data/3") == bytes(tensors["end"].untyped_storage())
        assert archive.getinfo("large/data/3").header_offset > 1 << 32 or dropped == "large"


def test_progress(tmp_path: Path) -> None:
    old = tmp_path / "model.pt"
    torch.save(OBJECT, old)
    seen: list[tuple[int, int]] = []
    with open_layout(old, "zip") as layout:
        done = cut(layout.pickles()["data.pkl"], (), ("optimizer",))
        rebuild(layout, {"data.pkl": done.pickle}, done.storages, tmp_path / "new.pt", lambda *both: seen.append(both))
    assert [one for one, _ in seen] == sorted({one for one, _ in seen})
    assert seen[-1][0] == seen[-1][1]


def test_what_exists_is_not_overwritten(tmp_path: Path) -> None:
    old, new = tmp_path / "model.pt", tmp_path / "new.pt"
    torch.save(OBJECT, old)
    new.write_bytes(b"mine")
    with pytest.raises(Refused, match="exists"):
        without(old, new, ["optimizer"])
    assert new.read_bytes() == b"mine"
    assert sorted(tmp_path.iterdir()) == [old, new]


class TestLegacy:
    # torch itself can't load an fp8 tensor from this format.
    OBJECT = OBJECT | {"tail": [SHARED]}

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "model.pt"
        torch.save(self.OBJECT, path, _use_new_zipfile_serialization=False)
        return path

    def test_dropped_storages_are_gone_and_the_rest_is_as_it_was(self, file: Path, tmp_path: Path) -> None:
        new = tmp_path / "small.pt"
        without(file, new, ["optimizer"], "legacy")
        loads(new, {key: value for key, value in self.OBJECT.items() if key != "optimizer"}, stored=False)
        assert DROPPED in file.read_bytes()
        assert DROPPED not in new.read_bytes()
        with open_layout(new, "legacy") as layout:
            keys = layout.source.read_at(layout.keys.start, layout.keys.end - layout.keys.start)  # type: ignore[attr-defined]
        written = [opcode.name for opcode, _, _ in pickletools.genops(keys)]
        with open_layout(file, "legacy") as layout:
            keys = layout.source.read_at(layout.keys.start, layout.keys.end - layout.keys.start)  # type: ignore[attr-defined]
        assert set(written) <= {opcode.name for opcode, _, _ in pickletools.genops(keys)}, (
            "weights_only knows no others"
        )

    def test_a_longer_pickle_and_every_storage(self, file: Path, tmp_path: Path) -> None:
        new = tmp_path / "new.pt"
        with open_layout(file, "legacy") as layout:
            pickle = layout.pickles()["data.pkl"][:-1] + b"q\xfe" * 3000 + b"."
            rebuild(layout, {"data.pkl": pickle}, None, new, ignore)
        loads(new, self.OBJECT, stored=False)
        assert new.stat().st_size == file.stat().st_size + 6000

    def test_the_same_again_is_the_same_file(self, file: Path, tmp_path: Path) -> None:
        new = tmp_path / "new.pt"
        with open_layout(file, "legacy") as layout:
            rebuild(layout, layout.pickles(), None, new, ignore)
        assert new.read_bytes() == file.read_bytes()
