"""The layout from before torch 1.6, against torch's own reader."""

from __future__ import annotations

import pickle
import pickletools
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.checkpoints.errors import CheckpointError, Damaged, NotACheckpoint, Refused
from ddpdoctor.checkpoints.formats import legacy as legacy_layout
from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.formats.legacy import MAGIC, Legacy, read_legacy
from ddpdoctor.checkpoints.pickles.machine import scan
from tests.support.checkpoint_files import changed

OBJECT = {
    "name": "alpha",
    "weight": torch.arange(1000.0),
    "empty": torch.zeros(0),
    "flags": torch.tensor([True, False]),
    "bias": torch.ones(7, dtype=torch.bfloat16),
    "complex": torch.ones(3, dtype=torch.complex64),
}


def save(value: Any, path: Path, **options: Any) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False, **options)


def equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) if isinstance(one[key], torch.Tensor) else one[key] == other[key]
        for key in one
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    save(OBJECT, path)
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_storages_are_found(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save(OBJECT, path, pickle_protocol=protocol)
    with ByteSource(path) as source:
        legacy = read_legacy(source)
        assert legacy.kind == "legacy"
        assert legacy.byteorder == "little"
        storages = scan(legacy.pickles()["data.pkl"]).storages
        assert len(storages) == len(legacy.places) == 5
        expected = {value.untyped_storage() for value in OBJECT.values() if isinstance(value, torch.Tensor)}
        found = [source.read_at(*legacy.place(storage)) for storage in storages]
        assert found == [b"".join(legacy.pieces(storage)) for storage in storages]
        assert sorted(found) == sorted(map(bytes, expected))


def test_a_pickle_of_the_same_length(file: Path) -> None:
    original = file.read_bytes()
    with ByteSource(file) as source:
        legacy = read_legacy(source)
        new = legacy.pickles()["data.pkl"].replace(b"alpha", b"omega")
        change = legacy.change({"data.pkl": new})
        assert not legacy.change(legacy.pickles())
    assert not change.appended
    (patch,) = change.patches
    assert (patch.old, patch.new) == (b"alph", b"omeg")
    file.write_bytes(changed(original, change))
    assert equal(torch.load(file), OBJECT | {"name": "omega"})


def test_a_pickle_of_another_length_takes_a_new_file(file: Path) -> None:
    with ByteSource(file) as source:
        legacy = read_legacy(source)
        longer = legacy.pickles()["data.pkl"].replace(b"\5\0\0\0alpha", b"\6\0\0\0alphas")
        with pytest.raises(Refused, match="nothing behind it can move") as caught:
            legacy.change({"data.pkl": longer})
    assert "new file" in caught.value.advice


def rewritten(path: Path, edit: Any) -> None:
    """Replaces the file's main pickle and its list of keys by what `edit` makes of them."""
    data = path.read_bytes()
    with ByteSource(path) as source:
        legacy = read_legacy(source)
    main = edit(data[legacy.main.start : legacy.main.end])
    keys = edit(data[legacy.keys.start : legacy.keys.end])
    path.write_bytes(data[: legacy.main.start] + main + keys + data[legacy.keys.end :])


def with_short_strings(data: bytes) -> bytes:
    """As Python 2 wrote it: byte strings."""
    out = bytearray()
    operations = list(pickletools.genops(data))
    ends = [position for _, _, position in operations[1:]] + [len(data)]
    for (opcode, argument, position), end in zip(operations, ends, strict=True):
        if opcode.name == "BINUNICODE":
            out += b"U" + bytes([len(argument)]) + argument.encode()
        else:
            out += data[position:end]
    return bytes(out)


def test_written_by_python_2(file: Path) -> None:
    rewritten(file, with_short_strings)
    assert b"U\x03cpu" in file.read_bytes()
    assert equal(torch.load(file), OBJECT)
    with ByteSource(file) as source:
        legacy = read_legacy(source)
        (storage, *_) = scan(legacy.pickles()["data.pkl"]).storages
        assert source.read_at(*legacy.place(storage)) == bytes(OBJECT["weight"].untyped_storage())  # type: ignore[attr-defined]
        change = legacy.change({"data.pkl": legacy.pickles()["data.pkl"].replace(b"alpha", b"omega")})
    file.write_bytes(changed(file.read_bytes(), change))
    assert equal(torch.load(file), OBJECT | {"name": "omega"})


def test_storages_with_views(tmp_path: Path) -> None:
    """The sixth field of the persistent id: (key of the view, offset, size), as the first versions wrote it."""
    path = tmp_path / "model.pt"
    save({"part": torch.arange(10)[:3]}, path)
    rewritten(path, lambda data: data.replace(b"K\x0aNt", b"K\x0a(X\1\0\0\x001K\2K\3tt"))
    assert torch.equal(torch.load(path)["part"], torch.tensor([2, 3, 4]))
    with ByteSource(path) as source:
        legacy = read_legacy(source)
        (storage,) = scan(legacy.pickles()["data.pkl"]).storages
        assert storage.view is not None
        assert source.read_at(*legacy.place(storage)) == struct.pack("<10q", *range(10))


def test_thirty_thousand_storages(tmp_path: Path) -> None:
    """Its pickles are longer than any window in which their ends are looked for at first."""
    path = tmp_path / "many.pt"
    save([torch.tensor([number]) for number in range(30_000)], path)
    with ByteSource(path) as source:
        legacy = read_legacy(source)
        assert len(legacy.places) == 30_000
        assert legacy.main.end - legacy.main.start > 1 << 20


def test_cut_off_anywhere(tmp_path: Path) -> None:
    path, cut = tmp_path / "model.pt", tmp_path / "cut.pt"
    save({"one": torch.arange(4.0), "two": torch.arange(3.0)}, path)
    whole = path.read_bytes()
    with ByteSource(path) as source:
        legacy = read_legacy(source)
    first, second = (place.offset for place in legacy.places.values())
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with ByteSource(cut) as source, pytest.raises(Damaged, match="Truncated") as caught:
            read_legacy(source)
        if length >= legacy.keys.end:
            which = "none" if length < second - 8 else "the first"
            assert f"of its 2 storages, {which} is whole" in caught.value.text
            assert f"should have {len(whole):,} bytes and has {length:,}" in caught.value.text
    assert first < second


MAGIC_PICKLE = pickle.dumps(MAGIC, 2)
VERSION = pickle.dumps(1001, 2)
MACHINE = pickle.dumps({"protocol_version": 1001, "little_endian": True}, 2)
EMPTY = pickle.dumps({}, 2)
KEYS = pickle.dumps([], 2)


def test_without_any_storage(tmp_path: Path) -> None:
    path = tmp_path / "made.pt"
    path.write_bytes(MAGIC_PICKLE + VERSION + MACHINE + EMPTY + KEYS)
    assert torch.load(path) == {}
    with ByteSource(path) as source:
        assert read_legacy(source).places == {}


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (EMPTY, NotACheckpoint, "magic number"),
        (pickle.dumps(12, 2), NotACheckpoint, "magic number"),
        (MAGIC_PICKLE + pickle.dumps(1002, 2), NotACheckpoint, "magic number"),
        (MAGIC_PICKLE, Damaged, "Truncated"),
        (b"<html>", CheckpointError, "pickle"),
        (b"", Damaged, "Truncated"),
        (MAGIC_PICKLE + VERSION + MACHINE + EMPTY + pickle.dumps({}, 2), Damaged, "keys of its storages"),
        (MAGIC_PICKLE + VERSION + MACHINE + EMPTY + pickle.dumps(["1"], 2), Damaged, "list of storages does not match"),
        (MAGIC_PICKLE + VERSION + MACHINE + EMPTY + pickle.dumps(["1", "1"], 2), Damaged, "keys of its storages"),
        (MAGIC_PICKLE + VERSION + MACHINE + EMPTY + KEYS + b"more", Refused, "4 bytes follow its last storage"),
    ],
)
def test_what_is_no_such_file(data: bytes, error: type[CheckpointError], words: str, tmp_path: Path) -> None:
    path = tmp_path / "made.pt"
    path.write_bytes(data)
    with ByteSource(path) as source, pytest.raises(error, match=words):
        read_legacy(source)


def test_a_count_that_the_pickle_contradicts(file: Path) -> None:
    data = file.read_bytes()
    with ByteSource(file) as source:
        place = next(iter(read_legacy(source).places.values()))
    count = int.from_bytes(data[place.offset - 8 : place.offset], "little")
    file.write_bytes(data[: place.offset - 8] + (count + 1).to_bytes(8, "little") + data[place.offset :])
    with ByteSource(file) as source, pytest.raises(Damaged, match=f"has {count + 1:,} elements"):
        read_legacy(source)


def test_a_type_of_storage_that_nobody_knows(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"FloatStorage", b"FlootStorage"))
    with ByteSource(file) as source, pytest.raises(Refused, match="FlootStorage"):
        read_legacy(source)


def test_a_pickle_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_layout, "MAX_PICKLE_BYTES", 1 << 20)
    path = tmp_path / "made.pt"
    path.write_bytes(MAGIC_PICKLE + VERSION + MACHINE + b"\x80\2" + b"N0" * (1 << 20))
    with ByteSource(path) as source, pytest.raises(Refused, match="has no end within 1,048,576 bytes"):
        read_legacy(source)


@pytest.mark.parametrize("seed", range(6))
def test_flipped_bytes_give_nothing_but_our_errors(file: Path, tmp_path: Path, seed: int) -> None:
    whole = file.read_bytes()
    chance = random.Random(seed)
    mutated = tmp_path / "mutated.pt"
    with ByteSource(file) as source:
        end = read_legacy(source).keys.end + 8
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 8))):
            data[chance.randrange(end)] ^= 1 << chance.randrange(8)
        mutated.write_bytes(data)
        try:
            with ByteSource(mutated) as source:
                legacy = read_legacy(source)
                assert isinstance(legacy, Legacy)
                main = legacy.pickles()["data.pkl"]
                assert changed(bytes(data), legacy.change({"data.pkl": main[:-2] + b"0."})) != data
        except CheckpointError:
            pass
