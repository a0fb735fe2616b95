"""The zip layout, against torch's own reader, Python's zipfile and unzip."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpdoctor.checkpoints.errors import CheckpointError, Damaged, NotACheckpoint, Refused
from ddpdoctor.checkpoints.formats.byte_source import ByteSource
from ddpdoctor.checkpoints.formats.layouts import StoragePlace
from ddpdoctor.checkpoints.formats.zip_archive import Archive, read_archive
from ddpdoctor.checkpoints.pickles.machine import scan
from tests.support.checkpoint_files import Made, changed, make_zip, repacked, unchecked

OBJECT = {
    "name": "alpha",
    "weight": torch.arange(1000.0),
    "empty": torch.zeros(0),
    "bias": torch.ones(7, dtype=torch.bfloat16),
    "step": 12,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    torch.save(OBJECT, path)
    return path


@pytest.fixture
def config() -> Iterator[Any]:
    from torch.utils.serialization import config

    with config.patch({}):
        yield config


def equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) if isinstance(one[key], torch.Tensor) else one[key] == other[key]
        for key in one
    )


def accepted(path: Path, expected: dict[str, Any], *, sound: bool = True, stored: bool = True) -> None:
    """Loads it every way that torch has, and has it tested by two other readers. sound: its checksums are right."""
    assert equal(torch.load(path), expected)
    assert equal(torch.load(path, weights_only=False), expected)
    if stored:
        assert equal(torch.load(path, mmap=True), expected)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert len(set(names)) == len(names)
        if sound:
            assert archive.testzip() is None
    if sound:
        subprocess.run(["unzip", "-tq", str(path)], check=True, stdout=subprocess.DEVNULL)


def save_aligned(path: Path, config: Any) -> None:
    with config.patch({"save.storage_alignment": 4096}):
        torch.save(OBJECT, path)


def save_unchecked(path: Path, config: Any) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(OBJECT, path)
    finally:
        torch.serialization.set_crc32_options(True)


def save_repacked(**options: Any) -> Callable[[Path, Any], None]:
    def save(path: Path, config: Any) -> None:
        torch.save(OBJECT, path)
        repacked(path, **options)

    return save


def save_zipped(path: Path, config: Any) -> None:
    """By Info-ZIP, which also lists the folders."""
    torch.save(OBJECT, path)
    folder = path.parent / "unpacked"
    subprocess.run(["unzip", "-q", str(path), "-d", str(folder)], check=True)
    path.unlink()
    subprocess.run(["zip", "-q0r", str(path), path.stem], cwd=folder, check=True)


def save_commented(path: Path, config: Any) -> None:
    torch.save(OBJECT, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"by me, on a Tuesday"


SAVERS = {
    "plain": lambda path, config: torch.save(OBJECT, path),
    "aligned to 4096": save_aligned,
    "without checksums": save_unchecked,
    "stored anew": save_repacked(),
    "compressed": save_repacked(method=zipfile.ZIP_DEFLATED),
    "streamed": save_repacked(streamed=True),
    "streamed and compressed": save_repacked(streamed=True, method=zipfile.ZIP_DEFLATED),
    "with 64-bit sizes": save_repacked(large=True),
    "streamed with 64-bit sizes": save_repacked(large=True, streamed=True),
    "zipped": save_zipped,
    "with a comment": save_commented,
}


@pytest.mark.tool("zip", "unzip")
@pytest.mark.parametrize("how", SAVERS)
class TestReal:
    @pytest.fixture
    def file(self, how: str, tmp_path: Path, config: Any) -> Path:
        path = tmp_path / "model.pt"
        SAVERS[how](path, config)
        assert equal(torch.load(path), OBJECT)
        return path

    def test_is_read_as_others_read_it(self, file: Path) -> None:
        reader = torch._C.PyTorchFileReader(str(file))
        with ByteSource(file) as source, zipfile.ZipFile(file) as oracle:
            archive = read_archive(source)
            assert archive.kind == "zip"
            assert [archive.prefix + name for name in archive.records] == oracle.namelist()
            for name, record in archive.records.items():
                if name and not name.endswith("/"):
                    assert archive.read(record) == unchecked(oracle, archive.prefix + name)
                    assert record.offset == reader.get_record_offset(name)

    def test_takes_a_pickle_of_the_same_length(self, file: Path, how: str) -> None:
        original = file.read_bytes()
        with ByteSource(file) as source:
            archive = read_archive(source)
            new = archive.pickles()["data.pkl"].replace(b"alpha", b"omega")
            change = archive.change({"data.pkl": new})
        assert bool(change.appended) == ("compressed" in how)
        file.write_bytes(changed(original, change))
        accepted(file, OBJECT | {"name": "omega"}, sound=how != "without checksums", stored="compressed" not in how)
        if not change.appended:
            assert sum(len(patch.old) for patch in change.patches) <= 5 + 3 * 4
        with ByteSource(file) as source:
            assert read_archive(source).pickles() == {"data.pkl": new}

    def test_takes_a_longer_pickle_behind_its_end_any_number_of_times(self, file: Path, how: str) -> None:
        for name in ("a name that is longer", "one that is longer still than the other"):
            before = file.read_bytes()
            with ByteSource(file) as source:
                archive = read_archive(source)
                alignment = archive.alignment
                pickle = self.renamed(file.parent / "other.pt", name)
                change = archive.change({"data.pkl": pickle})
            after = changed(before, change)
            assert not change.patches
            assert after.startswith(before), "cutting it off is enough to undo it"
            file.write_bytes(after)
            accepted(file, OBJECT | {"name": name}, sound=how != "without checksums", stored="compressed" not in how)
            with ByteSource(file) as source:
                archive = read_archive(source)
                assert archive.pickles() == {"data.pkl": pickle}
                assert archive.records["data.pkl"].offset % alignment == 0
                assert bool(archive.records["data.pkl"].crc) == (how != "without checksums")

    def renamed(self, path: Path, name: str) -> bytes:
        """The pickle of the object with another name."""
        torch.save(OBJECT | {"name": name}, path)
        with ByteSource(path) as source:
            return read_archive(source).pickles()["data.pkl"]

    def test_storages_are_found(self, file: Path, how: str) -> None:
        with ByteSource(file) as source:
            archive = read_archive(source)
            for storage in scan(archive.pickles()["data.pkl"]).storages:
                data = b"".join(archive.pieces(storage))
                tensor = {1000: OBJECT["weight"], 0: OBJECT["empty"], 7: OBJECT["bias"]}[storage.count]
                assert data == bytes(tensor.untyped_storage())
                if "compressed" in how:
                    with pytest.raises(Refused, match="compressed"):
                        archive.place(storage)
                else:
                    assert source.read_at(*archive.place(storage)) == data

    def test_the_same_pickle_changes_nothing(self, file: Path) -> None:
        with ByteSource(file) as source:
            archive = read_archive(source)
            assert not archive.change(archive.pickles())


def test_torchscript(tmp_path: Path) -> None:
    ones = torch.ones(4)

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * ones

    path = tmp_path / "model.pt"
    module = torch.jit.trace(Scaled(), torch.zeros(2, 3))
    torch.jit.save(module, path)
    with ByteSource(path) as source:
        archive = read_archive(source)
        assert archive.kind == "torchscript"
        pickles = archive.pickles()
        assert list(pickles) == ["data.pkl", "constants.pkl"]
        (constant,) = scan(pickles["constants.pkl"]).storages
        assert source.read_at(*archive.place(constant, "constants.pkl")) == struct.pack("<4f", 1, 1, 1, 1)
        # A longer pickle with the same meaning: PUTs, of which nothing makes use.
        pickles["constants.pkl"] = pickles["constants.pkl"][:-1] + b"q\xee" + b"."
        change = archive.change(pickles)
    path.write_bytes(changed(path.read_bytes(), change))
    loaded = torch.jit.load(path)
    x = torch.rand(2, 3)
    assert torch.equal(loaded(x), module(x))


def test_seventy_thousand_records(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.pt"
    writer = torch._C.PyTorchFileWriter(str(path))
    with zipfile.ZipFile(file) as source:
        for name in source.namelist():
            if not name.endswith(("version", "serialization_id")) or "format" in name:
                data = source.read(name)
                writer.write_record(name.removeprefix("model/"), data, len(data))
    for number in range(3, 70_000):
        writer.write_record(f"data/{number}", b"1234", 4)
    writer.write_end_of_file()
    del writer
    with ByteSource(path) as source:
        archive = read_archive(source)
        assert len(archive.records) == 70_006
        pickle = archive.pickles()["data.pkl"]
        patched = changed(path.read_bytes(), archive.change({"data.pkl": pickle.replace(b"alpha", b"omega")}))
        # "q" and a memo number that nothing asks for, before STOP.
        appended = changed(path.read_bytes(), archive.change({"data.pkl": pickle[:-1] + b"q\xff."}))
    for data, name in ((patched, "omega"), (appended, "alpha")):
        path.write_bytes(data)
        assert equal(torch.load(path, mmap=True), OBJECT | {"name": name})
        with zipfile.ZipFile(path) as oracle:
            assert len(oracle.namelist()) == 70_006


def test_storages_beyond_four_gib(tmp_path: Path) -> None:
    path = tmp_path / "large.pt"
    tensors = {"name": "alpha", "large": torch.empty((1 << 32) + 5, dtype=torch.uint8), "last": torch.arange(9.0)}
    with torch.serialization.skip_data():
        torch.save(tensors, path)
    with ByteSource(path) as source:
        archive = read_archive(source)
        large, last = archive.records["data/0"], archive.records["data/1"]
        assert large.size == (1 << 32) + 5
        assert last.header > 1 << 32
        reader = torch._C.PyTorchFileReader(str(path))
        assert last.offset == reader.get_record_offset("data/1")
        pickle = archive.pickles()["data.pkl"]
        change = archive.change({"data.pkl": pickle[:-1] + b"q\xff."})
    with path.open("r+b") as out:
        out.seek(last.offset)
        out.write(struct.pack("<9f", *range(9)))
        out.seek(change.size)
        out.write(change.appended)
    loaded = torch.load(path, mmap=True)
    assert torch.equal(loaded["last"], torch.arange(9.0))
    assert loaded["large"].shape == ((1 << 32) + 5,)
    with zipfile.ZipFile(path) as oracle:
        assert oracle.read("large/data.pkl") == pickle[:-1] + b"q\xff."
    with ByteSource(path) as source:
        assert read_archive(source).records["data.pkl"].header == change.size


def test_byte_order(file: Path, tmp_path: Path) -> None:
    with ByteSource(file) as source:
        assert read_archive(source).byteorder == "little"
    for word in (b"big", b"middle"):
        new = tmp_path / "other.pt"
        repacked_with(file, new, {"model/byteorder": word})
        with ByteSource(new) as source:
            archive = read_archive(source)
            if word == b"middle":
                with pytest.raises(Damaged, match="byte order is given as 'middle'"):
                    assert archive.byteorder
            else:
                assert archive.byteorder == "big"


def repacked_with(old: Path, new: Path, contents: dict[str, bytes]) -> None:
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(new, "w") as target:
        for name in source.namelist():
            target.writestr(name, contents.get(name) or source.read(name))


PICKLE = b"\x80\x02}q\x00."
GOOD = Made(b"x/data.pkl", PICKLE)
OTHER = Made(b"x/data/0", b"12345678")


def test_what_is_made_up_is_read(tmp_path: Path) -> None:
    """Or the refusals below would prove nothing."""
    path = tmp_path / "made.pt"
    path.write_bytes(make_zip([GOOD, OTHER], comment=b"hello"))
    with ByteSource(path) as source:
        archive = read_archive(source)
        assert archive.pickles() == {"data.pkl": PICKLE}
        assert archive.directory.comment == b"hello"
        assert archive.prefix == "x/"


deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
BOMB = deflate.compress(bytes(12_000_000)) + deflate.flush()

SUSPICIOUS = {
    "two of one name": (make_zip([GOOD, OTHER, OTHER]), "Two records are named x/data/0"),
    "two of one name but for case": (make_zip([GOOD, OTHER, Made(b"x/DATA/0", b"")]), "Two records are named x/DATA/0"),
    "two pickles": (make_zip([GOOD, GOOD]), "Two records are named x/data.pkl"),
    "another data.pkl": (make_zip([GOOD, Made(b"x/y/Data.pkl", PICKLE)]), "more than one data.pkl"),
    "two folders": (make_zip([GOOD, Made(b"y/data.pkl", PICKLE)]), "different folders, x/ and that of y/data.pkl"),
    "a zero byte in a name": (make_zip([GOOD, Made(b"x/data/0\0.txt", b"")]), "line break or a zero byte"),
    "a line break in a name": (make_zip([GOOD, Made(b"x/da\nx/ta", b"")]), "line break or a zero byte"),
    "encrypted": (make_zip([GOOD._replace(flags=0x801)]), "x/data.pkl is encrypted"),
    "strongly encrypted": (make_zip([GOOD._replace(flags=0x840)]), "x/data.pkl is encrypted"),
    "encrypted by its own header": (make_zip([GOOD._replace(flags=0x2800)]), "x/data.pkl is encrypted"),
    "a patch": (make_zip([GOOD._replace(flags=0x820)]), "marked as a patch"),
    "a folder with contents": (make_zip([GOOD._replace(attributes=0x10)]), "marked as a patch or a folder"),
    "an unknown compression": (make_zip([GOOD._replace(method=12)]), "compressed by method 12"),
    "a header that says otherwise": (
        make_zip([GOOD, OTHER._replace(local_name=b"x/data/1")]),
        "is x/data/0 in the directory, but not in its own header",
    ),
    "a header with another method": (make_zip([GOOD._replace(local_method=8)]), "but not in its own header"),
    "one record within another": (
        make_zip(
            [GOOD, Made(b"x/data/0", make_zip([Made(b"x/data/1", b"abc")])[:41]), Made(b"x/data/1", b"abc", header=84)]
        ),
        "overlaps",
    ),
    "the same data twice": (make_zip([GOOD, OTHER, Made(b"x/data/1", b"", header=46)]), "header|overlaps"),
    "in parts": (make_zip([GOOD], end={0: 1}), "one part of a zip archive"),
}

BROKEN = {
    "no end record": (make_zip([GOOD])[:-5], "without the directory"),
    "bytes behind the end": (make_zip([GOOD]) + b"abc", "The zip archive ends at byte"),
    "all zeros from some point": (make_zip([GOOD])[:60] + bytes(70_000), "nothing but zeros"),
    "an end record in the comment": (make_zip([GOOD], comment=b"PK\5\6" + bytes(20)), "The zip archive ends at byte"),
    "a directory elsewhere": (make_zip([GOOD], end={5: 3}), "directory should end at"),
    "too many entries said": (make_zip([GOOD], end={2: 2, 3: 2}), "too short for 2 records"),
    "too few entries said": (make_zip([GOOD, OTHER], end={2: 1, 3: 1}), "does not end where its 1 entries do"),
    "none": (make_zip([]), "begin|empty"),
    "no header": (make_zip([GOOD, OTHER._replace(signature=b"PKxx")]), "should begin at byte 46"),
    "out of bounds": (make_zip([GOOD, OTHER._replace(size=5000, stored=5000)]), "reaches beyond the end"),
    "a header out of bounds": (make_zip([GOOD, OTHER._replace(header=5000)]), "reaches beyond the end"),
    "two sizes for what is stored": (make_zip([GOOD, OTHER._replace(size=5)]), "both 8 and 5 bytes"),
    "64-bit sizes that are missing": (make_zip([GOOD, OTHER._replace(size=0xFFFFFFFF)]), "lacks its zip64 numbers"),
}


@pytest.mark.parametrize("what", SUSPICIOUS)
def test_the_suspicious_is_refused(what: str, tmp_path: Path) -> None:
    data, words = SUSPICIOUS[what]
    path = tmp_path / "made.pt"
    path.write_bytes(data)
    with ByteSource(path) as source, pytest.raises(Refused, match=words):
        read_archive(source)


@pytest.mark.parametrize("what", BROKEN)
def test_the_broken_is_named(what: str, tmp_path: Path) -> None:
    data, words = BROKEN[what]
    path = tmp_path / "made.pt"
    path.write_bytes(data)
    with ByteSource(path) as source, pytest.raises((Damaged, NotACheckpoint), match=words):
        read_archive(source)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (GOOD._replace(crc=1), "do not match their checksum"),
        (Made(b"x/data.pkl", BOMB, method=8, size=1000, crc=0), "inflates to more than the 1,000 bytes"),
        (Made(b"x/data.pkl", BOMB, method=8, size=15_000_000, crc=0), "inflates to 3,000,000 bytes less"),
        (Made(b"x/data.pkl", BOMB[:-4], method=8, size=12_000_000, crc=0), "less than it is said to have"),
        (Made(b"x/data.pkl", BOMB, method=8, size=60_000_000, crc=0), "as only a bomb does"),
        (Made(b"x/data.pkl", BOMB, method=8, size=3 << 30, crc=0), "no checkpoint needs that"),
        (Made(b"x/data.pkl", b"\xff" * 40, method=8, size=40), "can't be decompressed"),
    ],
)
def test_a_pickle_that_cannot_be_had(record: Made, words: str, tmp_path: Path) -> None:
    path = tmp_path / "made.pt"
    path.write_bytes(make_zip([record]))
    with ByteSource(path) as source:
        archive = read_archive(source)
        with pytest.raises((Damaged, Refused), match=words):
            archive.pickles()


def test_a_missing_checksum_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "made.pt"
    path.write_bytes(make_zip([GOOD._replace(crc=0)]))
    with ByteSource(path) as source:
        assert read_archive(source).pickles() == {"data.pkl": PICKLE}


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"PK\3\4", b"\x80\x02}.", make_zip([Made(b"arr_0.npy", b"")]), make_zip([OTHER])]
)
def test_other_files(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with ByteSource(path) as source, pytest.raises((NotACheckpoint, Damaged)):
        read_archive(source)


def test_a_checksum_that_no_one_can_find_is_not_guessed(tmp_path: Path) -> None:
    """With bit 3 set and no descriptor behind the data, patching would hit the next record's header."""
    broken = make_zip([GOOD._replace(flags=0x808), OTHER])
    at = broken.index(b"PK\7\x08")
    path = tmp_path / "made.pt"
    path.write_bytes(broken[:at] + bytes(16) + broken[at + 16 :])
    with ByteSource(path) as source:
        change = read_archive(source).change({"data.pkl": PICKLE.replace(b"}", b"]")})
    assert not change.patches
    assert change.appended


def test_storages_that_are_missing_or_short(file: Path, tmp_path: Path) -> None:
    with ByteSource(file) as source:
        archive = read_archive(source)
        storages = scan(archive.pickles()["data.pkl"]).storages
        place = archive.place(storages[0])
        assert place == StoragePlace(archive.records["data/0"].offset, 4000)
        archive.check(storages)
        storages[0].count += 1
        with pytest.raises(Damaged, match=r"data/0 has 4,000 bytes"):
            archive.check(storages)
        with pytest.raises(Damaged, match=r"data/0 has 4,000 bytes, but its tensors need 4,004"):
            archive.place(storages[0])
        storages[0].key = "99"
        with pytest.raises(Damaged, match="data/99"):
            list(archive.pieces(storages[0]))


def boundaries(archive: Archive) -> Iterator[int]:
    for record in archive.records.values():
        yield from (record.header, record.header + 30, record.offset, record.offset + record.stored)
    directory = archive.directory
    yield from (directory.offset, directory.offset + 46, directory.offset + directory.size)
    yield from (directory.offset + directory.size + step for step in (56, 76, 76 + 21))


def test_cut_off_anywhere(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    with ByteSource(file) as source:
        places = sorted(set(boundaries(read_archive(source))))
    assert len(places) > 30
    for place in places:
        for length in {max(0, place - 1), place, place + 1} - {len(whole)}:
            cut = tmp_path / "cut.pt"
            cut.write_bytes(whole[:length])
            with ByteSource(cut) as source, pytest.raises((Damaged, NotACheckpoint)):
                read_archive(source)


def test_what_survives_a_cut(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    with ByteSource(file) as source:
        records = read_archive(source).records
    cut = tmp_path / "cut.pt"
    for length, words in (
        (records["data.pkl"].offset + 10, "nothing of its tensors can be made out"),
        (records["data/0"].offset + 3999, "of its 3 storages, none is whole"),
        (records["data/0"].offset + 4000, "of its 3 storages, 1 is whole"),
        (records["data/2"].offset, "of its 3 storages, 2 are whole"),
        (records["version"].offset, "3 storages, all that its tensors need, are whole"),
    ):
        cut.write_bytes(whole[:length])
        with ByteSource(cut) as source, pytest.raises(Damaged, match=words) as caught:
            read_archive(source)
        assert "go back to the checkpoint before" in caught.value.advice
    # As a download leaves it that first makes the file as long as it will be.
    cut.write_bytes(whole[: records["data/0"].offset + 100] + bytes(100_000))
    with (
        ByteSource(cut) as source,
        pytest.raises(Damaged, match=r"nothing but zeros.*of its 3 storages, none is whole"),
    ):
        read_archive(source)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_give_nothing_but_our_errors(file: Path, tmp_path: Path, seed: int) -> None:
    whole = file.read_bytes()
    structure = [at for at in range(len(whole)) if not 1500 < at < 5000]
    chance = random.Random(seed)
    fine = 0
    for _ in range(150):
        data = bytearray(whole)
        for at in chance.sample(structure, chance.choice((1, 1, 2, 8))):
            data[at] ^= 1 << chance.randrange(8)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        mutated = tmp_path / "mutated.pt"
        mutated.write_bytes(data)
        try:
            with ByteSource(mutated) as source:
                archive = read_archive(source)
                pickle = archive.pickles()["data.pkl"]
                for new in (pickle[:-3] + b"abc", pickle + b"more"):
                    change = archive.change({"data.pkl": new})
                    assert changed(bytes(data), change) != data
                assert archive.byteorder
                fine += 1
        except CheckpointError:
            pass
    assert fine


def mutated(data: bytes, chance: random.Random) -> bytes:
    """With a few bytes changed in the archive's structure: flipped, extreme, or taken from elsewhere in it."""
    new = bytearray(data)
    signs = [at for at in range(len(data) - 3) if data[at : at + 2] == b"PK" and data[at + 2] in (1, 3, 5, 6, 7)]
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = min(chance.choice(signs) + chance.randrange(66), len(data) - 1)
        way = chance.randrange(4)
        if way == 0:
            new[at] ^= 1 << chance.randrange(8)
        elif way == 1:
            new[at] = chance.choice((0, 1, 8, 16, 255))
        elif way == 2:
            other, length = chance.choice(signs), chance.choice((4, 22, 30, 46, 76))
            new[at : at + length] = new[other : other + length]
        else:
            new[at : at + 4] = chance.choice(signs).to_bytes(4, "little")
    return bytes(new)


@pytest.mark.parametrize("how", ["plain", "compressed", "streamed", "with 64-bit sizes", "with a comment"])
def test_what_is_accepted_reads_the_same_in_torch_and_in_zipfile(how: str, tmp_path: Path) -> None:
    """Or a file could show us one pickle, and torch another."""
    path = tmp_path / "model.pt"
    SAVERS[how](path, torch.utils.serialization.config)
    original = path.read_bytes()
    with ByteSource(path) as source:
        archive = read_archive(source)
        appended = changed(original, archive.change({"data.pkl": archive.pickles()["data.pkl"][:-1] + b"q\xff."}))
    chance = random.Random(how)
    accepted = 0
    for number in range(600):
        path.write_bytes(mutated(appended if number % 2 else original, chance))
        try:
            with ByteSource(path) as source:
                archive = read_archive(source)
                ours = archive.pickles()["data.pkl"]
        except CheckpointError:
            continue
        accepted += 1
        with contextlib.suppress(RuntimeError, UnicodeDecodeError):
            reader = torch._C.PyTorchFileReader(str(path))
            assert reader.get_record("data.pkl") == ours
            for name, record in archive.records.items():
                assert reader.get_record_offset(name) == record.offset
        with contextlib.suppress(zipfile.BadZipFile, NotImplementedError), zipfile.ZipFile(path) as oracle:
            assert oracle.read(archive.prefix + "data.pkl") == ours
    assert accepted > 50


def test_a_directory_made_to_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "made.pt"
    end = make_zip([GOOD], end={4: 1 << 30})[-22:]
    with path.open("wb") as file:
        file.write(make_zip([GOOD])[:-22])
        at = file.tell() - 56
        file.truncate(at + (1 << 30))
        file.seek(at + (1 << 30))
        file.write(end)
    assert path.stat().st_blocks * 512 < 1 << 20
    with ByteSource(path) as source, pytest.raises(Refused, match="no checkpoint needs that"):
        read_archive(source)


def test_names_for_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        ByteSource(tmp_path / "nowhere.pt")
    with pytest.raises(NotACheckpoint, match="not a regular file"):
        ByteSource(tmp_path)


def test_a_pickle_that_swells_a_hundredfold_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", b"\x80\x02" + b"]" * (20 << 20) + b".")
    with ByteSource(path) as source, pytest.raises(Refused, match="as only a bomb does"):
        read_archive(source).pickles()
