"""The undo file as data: what it says about a file, and what is no undo file of ours."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddpdoctor.checkpoints.errors import Damaged, Refused
from ddpdoctor.checkpoints.formats.layouts import Change, Patch
from ddpdoctor.checkpoints.writing import in_place, journal

ORIGINAL = random.Random(0).randbytes(100_000)
DATE = 1_600_000_000_123_456_789


def patch(at: int, length: int = 200) -> Patch:
    return Patch(at, ORIGINAL[at : at + length], bytes(255 - byte for byte in ORIGINAL[at : at + length]))


BOTH = Change(len(ORIGINAL), (patch(100), patch(50_000), patch(99_900, 100)), b"appended" * 100)


def applied(change: Change) -> bytes:
    new = bytearray(ORIGINAL)
    for patch in change.patches:
        new[patch.offset : patch.offset + len(patch.new)] = patch.new
    return bytes(new) + change.appended


FIXED = applied(BOTH)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Fixed."""
    path = tmp_path / "last.ckpt"
    return fix(path)


def fix(path: Path, change: Change = BOTH) -> Path:
    path.write_bytes(ORIGINAL)
    os.utime(path, ns=(DATE, DATE))
    in_place.change_in_place(path, change)
    return path


def refusal(path: Path, work: Callable[[Path], object]) -> Refused:
    """What is said; the folder is as before, byte for byte."""
    before = {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in path.parent.iterdir() if one.is_file()}
    with pytest.raises(Refused) as caught:
        work(path)
    after = {one.name: (one.read_bytes(), one.stat().st_mtime_ns) for one in path.parent.iterdir() if one.is_file()}
    assert after == before
    return caught.value


def recover_dry(path: Path) -> object:
    return in_place.recover(path, dry_run=True)


def change_again(path: Path) -> object:
    return in_place.change_in_place(path, Change(path.stat().st_size, (), b"more"))


EVERYTHING = [in_place.recover, recover_dry, in_place.undo, change_again]


def test_the_undo_file_is_small() -> None:
    """Of a pickle of 400 tensors, say."""
    pickle = b"".join(b"layers.%d.weight cuda:0 FloatStorage %d" % (number, 4096 + number) for number in range(400))
    layer = journal.Layer(
        size=10**10,
        mtime_ns=DATE,
        patches=(Patch(0, pickle, pickle.replace(b"cuda:0", b"cpu\0\0\0")),),
        appended=0,
        digest=bytes(32),
        witness=bytes(32),
    )
    import msgspec

    assert len(zlib.compress(msgspec.msgpack.encode(layer), 1)) < len(pickle) / 2


@pytest.mark.parametrize("work", EVERYTHING)
def test_a_damaged_undo_file_is_refused(work: Callable[[Path], object], path: Path) -> None:
    undo_file = journal.undo_file(path)
    whole = undo_file.read_bytes()
    for at in (0, 8, 14, 15, 16, 17, 24, 25, 56, 57, len(whole) // 2, len(whole) - 1):
        undo_file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        assert undo_file.name in refusal(path, work).text, at
    for length in (0, 1, 14, 15, 16, 40, 56, 57, 58, len(whole) - 1):
        undo_file.write_bytes(whole[:length])
        assert undo_file.name in refusal(path, work).text, length
    for more in (b"x", whole[:20], b"\0" * 100):
        undo_file.write_bytes(whole + more)
        assert undo_file.name in refusal(path, work).text, more
    undo_file.write_bytes(whole)
    assert in_place.undo(path) == 1
    assert path.read_bytes() == ORIGINAL


def test_every_bit_of_the_undo_file_counts(path: Path) -> None:
    """Whichever is flipped: refused, or (the stage alone) the same file comes out."""
    undo_file = journal.undo_file(path)
    whole = undo_file.read_bytes()
    for bit in range(8 * min(len(whole), 300)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        undo_file.write_bytes(content)
        try:
            in_place.recover(path, dry_run=True)
        except Refused:
            continue
        assert bit // 8 == len(journal.MAGIC) + 1


def test_a_later_releases_undo_file_names_the_remedy(path: Path) -> None:
    undo_file = journal.undo_file(path)
    content = bytearray(undo_file.read_bytes())
    content[len(journal.MAGIC)] = journal.VERSION + 1
    undo_file.write_bytes(content)
    for work in EVERYTHING:
        error = refusal(path, work)
        assert "later release" in error.text
        assert error.commands == ("python -m pip install --upgrade ddpdoctor",)


def _record(payload: bytes) -> bytes:
    import hashlib

    digest = hashlib.sha256(payload).digest()
    return (
        journal.HEADER.pack(journal.MAGIC, journal.VERSION, journal.JournalStage.COMPLETE, len(payload), digest)
        + payload
    )


def _layer(**changes: object) -> bytes:
    import msgspec

    fields: dict[str, object] = {
        "size": 100,
        "mtime_ns": 0,
        "patches": (),
        "appended": 0,
        "digest": b"",
        "witness": b"",
    }
    return _record(zlib.compress(msgspec.msgpack.encode(list((fields | changes).values()))))


FORGED = {
    "no compressed data": _record(b"x" * 50),
    "no record": _record(zlib.compress(b"x" * 50)),
    "patches beyond the end": _layer(patches=[{"offset": 99, "old": b"ab", "new": b"cd"}]),
    "patches that overlap": _layer(patches=[{"offset": 5, "old": b"ab", "new": b"cd"}] * 2),
    "patches before the start": _layer(patches=[{"offset": -5, "old": b"ab", "new": b"cd"}]),
    "patches that grow": _layer(patches=[{"offset": 5, "old": b"ab", "new": b"cde"}]),
    "a negative length": _layer(appended=-5),
    "a negative size": _layer(size=-5),
    "a huge length": _layer(appended=1 << 62),
    "a huge size": _layer(size=1 << 62),
    "a date beyond all dates": _layer(mtime_ns=1 << 63),
    "a date before all dates": _layer(mtime_ns=-(1 << 63)),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_undo_file_is_refused(forged: str, path: Path) -> None:
    """With a right checksum, so that only its sense can give it away."""
    journal.undo_file(path).write_bytes(FORGED[forged])
    for work in EVERYTHING:
        refusal(path, work)


def test_forged_figures_are_refused_even_where_the_content_fits(tmp_path: Path) -> None:
    """The witness of an empty file is no secret."""
    path = tmp_path / "last.ckpt"
    path.write_bytes(b"")
    empty = journal.layer_of(os.open(path, os.O_RDONLY), Change(0))
    for figures in ({"mtime_ns": 1 << 63}, {"mtime_ns": -(1 << 63)}):
        journal.undo_file(path).write_bytes(_layer(size=0, digest=empty.digest, witness=empty.witness, **figures))
        assert "is damaged" in refusal(path, in_place.undo).text


def test_a_bomb_is_not_unpacked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_MAX_BYTES", 1 << 20)
    journal.undo_file(path).write_bytes(_record(zlib.compress(bytes(1 << 24))))
    assert "damaged" in refusal(path, in_place.undo).text
    monkeypatch.setattr(journal, "_MAX_BYTES", 50)
    assert "far too large" in refusal(path, in_place.undo).text


@pytest.mark.parametrize("make", ["symlink", "fifo", "folder"])
@pytest.mark.parametrize("work", EVERYTHING)
def test_something_else_under_its_name_is_refused(make: str, work: Callable[[Path], object], path: Path) -> None:
    undo_file = journal.undo_file(path)
    moved = undo_file.rename(path.with_name("moved"))
    {"symlink": lambda: undo_file.symlink_to(moved), "fifo": lambda: os.mkfifo(undo_file), "folder": undo_file.mkdir}[
        make
    ]()
    assert undo_file.name in refusal(path, work).text


CHANGED_SINCE = {
    "saved anew, of the same size": lambda content: random.Random(9).randbytes(len(content)),
    "saved anew, shorter": lambda content: random.Random(9).randbytes(1000),
    "saved anew, longer": lambda content: random.Random(9).randbytes(len(content) + 1),
    "saved anew, as long as the original": lambda content: random.Random(9).randbytes(len(ORIGINAL)),
    "cut": lambda content: content[:-1],
    "cut into the original": lambda content: content[: len(ORIGINAL) - 1],
    "cut to nothing": lambda content: b"",
    "something behind it": lambda content: content + b"x",
    "a byte in a patch": lambda content: content[:150] + bytes([content[150] ^ 1]) + content[151:],
    "a byte at the front": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "a byte before the old end": lambda content: content[:99_000] + bytes([content[99_000] ^ 1]) + content[99_001:],
    "a byte in what was appended": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
}


@pytest.mark.parametrize("changed", CHANGED_SINCE)
def test_another_content_is_never_touched(changed: str, path: Path) -> None:
    path.write_bytes(CHANGED_SINCE[changed](FIXED))
    for work in (in_place.recover, recover_dry, in_place.undo):
        error = refusal(path, work)
        assert "belongs to other content" in error.text
        assert error.commands == (f"rm {journal.undo_file(path)}",)
    assert refusal(path, change_again)


def test_what_was_only_appended_to_another_file_is_never_cut_off(tmp_path: Path) -> None:
    """Without patches there is nothing but both ends to know the content by."""
    path = fix(tmp_path / "last.ckpt", Change(len(ORIGINAL), (), b"x" * 5_000))
    path.write_bytes(random.Random(5).randbytes(len(ORIGINAL) + 2_000))
    assert "belongs to other content" in refusal(path, in_place.recover).text
    assert "belongs to other content" in refusal(path, in_place.undo).text


def test_a_checkpoint_that_is_gone_is_said(path: Path) -> None:
    path.rename(path.with_name("best.ckpt"))
    for work in (in_place.recover, recover_dry, in_place.undo):
        error = refusal(path, work)
        assert "is gone" in error.text
        assert "new name" in error.advice


def test_a_renamed_checkpoint_finds_its_undo_file(path: Path) -> None:
    renamed = path.rename(path.with_name("best one.ckpt"))
    assert in_place.recover(renamed) is None
    error = refusal(renamed, in_place.undo)
    assert "last.ckpt.ddpdoctor-undo belongs to this very content" in error.text
    (command,) = error.commands
    assert os.system(command) == 0
    assert in_place.undo(renamed) == 1
    assert renamed.read_bytes() == ORIGINAL


def test_nothing_to_undo_is_said(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    path.write_bytes(ORIGINAL)
    (tmp_path / "other.ckpt.ddpdoctor-undo").write_bytes(b"")
    assert refusal(path, in_place.undo).text == (
        "There is nothing to undo: no undo file last.ckpt.ddpdoctor-undo lies beside it"
    )


def test_a_link_to_a_fixed_checkpoint_says_where_the_undo_file_is(path: Path) -> None:
    link = path.with_name("link.ckpt")
    link.symlink_to(path.name)
    assert refusal(link, in_place.undo).commands == (f"ddpdoctor fix-checkpoint --undo {path}",)


def test_a_moved_folder_or_a_copy_with_its_undo_file_can_be_undone(path: Path, tmp_path: Path) -> None:
    """Another inode, another date: it is the content that counts."""
    other = tmp_path / "other"
    other.mkdir()
    copy = other / path.name
    copy.write_bytes(path.read_bytes())
    journal.undo_file(copy).write_bytes(in_place.undo_file(path).read_bytes())
    date = copy.stat().st_mtime_ns
    assert in_place.recover(copy) is None
    assert copy.stat().st_mtime_ns == date
    assert in_place.undo(copy) == 1
    assert copy.read_bytes() == ORIGINAL


def test_the_original_put_back_by_hand_ends_it(path: Path) -> None:
    path.write_bytes(ORIGINAL)
    recovery = in_place.recover(path)
    assert recovery is not None
    assert not recovery.finished
    assert "already as it was" in recovery.text
    assert not journal.undo_file(path).exists()
    assert path.read_bytes() == ORIGINAL


def test_undo_counts_dry_and_takes_back_one_at_a_time(path: Path) -> None:
    change_again(path)
    assert in_place.undo(path, dry_run=True) == 2
    assert path.read_bytes() == FIXED + b"more"
    assert in_place.undo(path, only_last=True) == 1
    assert path.read_bytes() == FIXED
    assert in_place.undo(path, dry_run=True) == 1
    assert in_place.undo(path) == 1
    assert path.read_bytes() == ORIGINAL
    assert path.stat().st_mtime_ns == DATE


def test_when_not_even_the_old_bytes_can_be_written_the_way_out_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes, offset: int) -> None:
        raise OSError(28, "No space left on device")

    write = journal.write_exactly
    monkeypatch.setattr(journal, "write_exactly", full)
    with pytest.raises(Damaged) as caught:
        in_place.undo(path)
    monkeypatch.setattr(journal, "write_exactly", write)
    assert "disk is full" in caught.value.text
    assert "Free some space" in caught.value.advice
    assert caught.value.commands == (f"ddpdoctor fix-checkpoint --undo {path}",)
    assert in_place.undo(path) == 1
    assert path.read_bytes() == ORIGINAL


@given(st.data())
def test_any_mixture_of_old_and_new_is_taken_back(data: st.DataObject) -> None:
    """Byte by byte, as no real disk would mix them."""
    import tempfile

    offsets = data.draw(st.lists(st.integers(0, 99_999), min_size=1, max_size=4, unique=True).map(sorted))
    ends = [*offsets[1:], 100_000]
    patches = []
    for at, end in zip(offsets, ends, strict=True):
        old = ORIGINAL[at : data.draw(st.integers(at + 1, min(end, at + 50)))]
        patches.append(Patch(at, old, data.draw(st.binary(min_size=len(old), max_size=len(old)))))
    change = Change(len(ORIGINAL), tuple(patches), data.draw(st.binary(max_size=50)))
    assume(applied(change) != ORIGINAL)
    with tempfile.TemporaryDirectory() as folder:
        path = fix(Path(folder) / "a", change)
        content = bytearray(applied(change))
        assert path.read_bytes() == content
        for patch in patches:
            for at in range(len(patch.old)):
                if data.draw(st.booleans()):
                    content[patch.offset + at] = patch.old[at]
        path.write_bytes(content)
        recovery = in_place.recover(path)
        if content == applied(change) and path.read_bytes() == content:
            assert recovery is None or path.read_bytes() == ORIGINAL
        else:
            assert recovery is not None
            assert path.read_bytes() == ORIGINAL
            assert path.stat().st_mtime_ns == DATE
        if journal.undo_file(path).exists():
            in_place.undo(path)
        assert path.read_bytes() == ORIGINAL
