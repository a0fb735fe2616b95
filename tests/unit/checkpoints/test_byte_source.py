"""Reading by position."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.checkpoints.errors import Damaged, NotACheckpoint, Refused
from ddpdoctor.checkpoints.formats.byte_source import PIECE_BYTES, ByteSource


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 9000)
    return path


def test_exactly_what_is_asked_for(file: Path) -> None:
    with ByteSource(file) as source:
        assert source.size == 256 * 9000
        assert source.read_at(250, 10) == bytes([250, 251, 252, 253, 254, 255, 0, 1, 2, 3])
        assert source.read_at(source.size, 0) == b""
        pieces = list(source.pieces(3, 2 * PIECE_BYTES + 5))
        assert b"".join(pieces) == file.read_bytes()[3 : 3 + 2 * PIECE_BYTES + 5]
        assert max(map(len, pieces)) <= PIECE_BYTES
    source.close()
    assert source.fd == -1


def test_short_reads_are_continued(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: pread(fd, min(length, 7), offset))
    with ByteSource(file) as source:
        assert source.read_at(250, 20) == file.read_bytes()[250:270]


def test_a_file_that_is_cut_short_while_it_is_read(file: Path) -> None:
    with ByteSource(file) as source:
        os.truncate(file, 100)
        with pytest.raises(Damaged, match="ends at byte 100, within something that goes on to 110"):
            source.read_at(90, 20)
        with pytest.raises(Refused, match="changed while it was being read"):
            source.refuse_if_changed()


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, Damaged), (errno.ESTALE, Refused)])
def test_what_the_disk_cannot_read(
    number: int, error: type[Exception], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pread(*_: Any) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", pread)
    with ByteSource(file) as source, pytest.raises(error, match="Reading 10 bytes at 5 failed"):
        source.read_at(5, 10)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(NotACheckpoint, match="not a regular file"):
            ByteSource(path)
    with pytest.raises(Refused, match="does not exist"):
        ByteSource(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Refused, match="could not be opened"):
        ByteSource(tmp_path / "loop")
