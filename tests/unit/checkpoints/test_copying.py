"""Copies that are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.checkpoints.errors import Refused
from ddpdoctor.checkpoints.formats.layouts import Change, Patch
from ddpdoctor.checkpoints.writing import copying, new_file
from ddpdoctor.checkpoints.writing.copying import write_copy
from ddpdoctor.checkpoints.writing.new_file import hidden_name
from tests.support.checkpoint_files import changed

SIZE = 3_000_000
CHANGE = Change(SIZE, (Patch(5, b"5", b"F"), Patch(2_000_000, b"0000001", b"patched")), b"appended")


def ignore(done: int, total: int) -> None:
    """For who doesn't wait to see."""


def names(file: Path) -> list[str]:
    """Of everything in its folder."""
    return sorted(path.name for path in file.parent.iterdir())


def fail(*_: object) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "old.pt"
    path.write_bytes(b"".join(b"%07d\n" % number for number in range(SIZE // 8)))
    data = bytearray(path.read_bytes())
    data[5:6] = b"5"
    data[2_000_000:2_000_007] = b"0000001"
    path.write_bytes(data)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "new.pt"


class Ioctl:
    """No file system here shares blocks, whatever this machine has."""

    LOCK_EX, LOCK_NB = fcntl.LOCK_EX, fcntl.LOCK_NB
    ioctl = staticmethod(fail)


@pytest.mark.parametrize("way", ["as it comes", "without sharing", "by ourselves", "nothing from the kernel"])
def test_the_copy_has_the_change_and_the_mode_and_times(
    way: str, file: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way != "as it comes":
        monkeypatch.setattr(copying, "fcntl", Ioctl)
    if way == "by ourselves":
        monkeypatch.setattr(os, "copy_file_range", fail)
    if way == "nothing from the kernel":
        monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    file.chmod(0o640)
    os.utime(file, ns=(1_500_000_000_000_000_001, 1_400_000_000_000_000_001))
    before = file.read_bytes()
    os.utime(file, ns=(1_500_000_000_000_000_001, 1_400_000_000_000_000_001))
    seen: list[tuple[int, int]] = []
    write_copy(file, CHANGE, out, lambda *both: seen.append(both))
    status = out.stat()
    assert status.st_mode & 0o7777 == 0o640
    assert status.st_mtime_ns == 1_400_000_000_000_000_001
    assert seen[-1] == (SIZE, SIZE)
    assert seen == sorted(seen)
    assert out.read_bytes() == changed(before, CHANGE)
    assert file.read_bytes() == before
    assert names(file) == ["new.pt", "old.pt"]


def test_set_user_id_is_not_passed_on(file: Path, out: Path) -> None:
    file.chmod(0o4755)
    write_copy(file, CHANGE, out, ignore)
    assert out.stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("copies", [True, False])
def test_holes_stay_holes(copies: bool, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "fcntl", Ioctl)
    if not copies:
        monkeypatch.setattr(os, "copy_file_range", fail)
    path = tmp_path / "sparse.pt"
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 32)
        file.write(b"middle")
        file.truncate(5 << 30)
    write_copy(path, Change(5 << 30, (Patch(0, b"begin", b"BEGIN"),)), out, ignore)
    status = out.stat()
    assert status.st_size == 5 << 30
    assert status.st_blocks * 512 < 1 << 20
    with out.open("rb") as file:
        assert file.read(6) == b"BEGIN\0"
        file.seek(1 << 32)
        assert file.read(7) == b"middle\0"


def test_what_exists_is_not_overwritten(file: Path, out: Path) -> None:
    out.write_bytes(b"mine")
    with pytest.raises(Refused, match="exists"):
        write_copy(file, CHANGE, out, ignore)
    assert out.read_bytes() == b"mine"
    out.unlink()
    out.symlink_to("nowhere")
    with pytest.raises(Refused, match="exists"):
        write_copy(file, CHANGE, out, ignore)
    assert names(file) == ["new.pt", "old.pt"]


def refuse_rename(number: int) -> Callable[..., None]:
    def rename(old: Path, new: Path) -> None:
        raise OSError(number, os.strerror(number))

    return rename


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("renames", [True, False])
@pytest.mark.parametrize("meanwhile", [True, False])
def test_a_name_that_is_taken_meanwhile_is_left_alone(
    renames: bool, links: bool, meanwhile: bool, file: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all three ways to give the file its name: renameat2, a link as on NFS, and a plain rename as on FAT."""
    if not renames:
        monkeypatch.setattr(new_file, "_rename_without_replacing", refuse_rename(errno.EINVAL))
    if not links:
        monkeypatch.setattr(os, "link", refuse_rename(errno.EPERM))

    def take(done: int, total: int) -> None:
        out.write_bytes(b"mine")

    if meanwhile:
        with pytest.raises(Refused, match="exists"):
            write_copy(file, CHANGE, out, take)
        assert out.read_bytes() == b"mine"
    else:
        write_copy(file, CHANGE, out, ignore)
        assert out.stat().st_nlink == 1
        assert out.stat().st_size == CHANGE.size + len(CHANGE.appended)
    assert names(file) == ["new.pt", "old.pt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, RuntimeError])
def test_nothing_is_left_when_it_is_stopped(error: type[BaseException], file: Path, out: Path) -> None:
    def stop(done: int, total: int) -> None:
        assert hidden_name(out).exists()
        raise error

    with pytest.raises(error):
        write_copy(file, CHANGE, out, stop)
    assert names(file) == ["old.pt"]


@pytest.mark.parametrize("renames", [True, False])
def test_stopped_the_moment_it_has_its_name(
    renames: bool, file: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is there, and whole."""
    if renames:
        rename = new_file._rename_without_replacing
        monkeypatch.setattr(new_file, "_rename_without_replacing", interrupted(rename))
    else:
        monkeypatch.setattr(new_file, "_rename_without_replacing", refuse_rename(errno.EINVAL))
        monkeypatch.setattr(os, "link", interrupted(os.link))
    with pytest.raises(KeyboardInterrupt):
        write_copy(file, CHANGE, out, ignore)
    assert out.read_bytes() == changed(file.read_bytes(), CHANGE)
    assert names(file) == ["new.pt", "old.pt"]


def interrupted(function: Callable[..., None]) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        function(*arguments)
        raise KeyboardInterrupt

    return run


def test_a_file_that_is_written_to_meanwhile(file: Path, out: Path) -> None:
    def write(done: int, total: int) -> None:
        with file.open("ab") as appended:
            appended.write(b"more")

    with pytest.raises(Refused, match="changed while it was being read"):
        write_copy(file, CHANGE, out, write)
    assert names(file) == ["old.pt"]


@pytest.mark.parametrize(
    "change", [Change(SIZE - 1), Change(SIZE, (Patch(7, b"other", b"words"),)), Change(SIZE + 1, (), b"more")]
)
def test_a_change_that_was_made_for_another_file(change: Change, file: Path, out: Path) -> None:
    with pytest.raises(Refused, match="changed while it was being read"):
        write_copy(file, change, out, ignore)
    assert names(file) == ["old.pt"]


class TestKilled:
    """A run that could not clean up."""

    SCRIPT = textwrap.dedent("""
        import sys
        from pathlib import Path
        from ddpdoctor.checkpoints.formats.layouts import Change
        from ddpdoctor.checkpoints.writing.copying import write_copy

        def wait(done, total):
            print(done, flush=True)
            sys.stdin.readline()

        path, out = map(Path, sys.argv[1:])
        write_copy(path, Change(path.stat().st_size), out, wait)
    """)

    @pytest.fixture
    def writer(self, file: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Another process, in the middle of writing `out`."""
        command = [sys.executable, "-c", self.SCRIPT, str(file), str(out)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout
        assert process.stdout.readline().strip().isdigit()
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            assert process.stdin
            process.stdin.close()

    def test_its_leftover_is_replaced(self, writer: subprocess.Popen[bytes], file: Path, out: Path) -> None:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert hidden_name(out).exists()
        assert not out.exists()
        write_copy(file, CHANGE, out, ignore)
        assert names(file) == ["new.pt", "old.pt"]
        assert out.read_bytes() == changed(file.read_bytes(), CHANGE)

    def test_while_it_lives_it_is_not_disturbed(self, writer: subprocess.Popen[bytes], file: Path, out: Path) -> None:
        with pytest.raises(Refused, match="Another run is writing"):
            write_copy(file, CHANGE, out, ignore)
        writer.communicate(b"\n" * 100)
        assert writer.returncode == 0
        assert out.read_bytes() == file.read_bytes()


def test_a_link_in_the_hidden_name_is_not_followed(file: Path, out: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    hidden_name(out).symlink_to(target)
    with pytest.raises(Refused):
        write_copy(file, CHANGE, out, ignore)
    assert target.read_bytes() == b"mine"
    assert not out.exists()


def test_a_very_long_name(file: Path, tmp_path: Path) -> None:
    out = tmp_path / ("é" * 127)
    write_copy(file, CHANGE, out, ignore)
    assert out.stat().st_size == CHANGE.size + len(CHANGE.appended)


def test_no_folder(file: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="There is no folder"):
        write_copy(file, CHANGE, tmp_path / "nowhere" / "new.pt", ignore)
    with pytest.raises(Refused, match="There is no folder"):
        write_copy(file, CHANGE, file / "new.pt", ignore)


def test_a_limit_on_the_size_of_files(file: Path, out: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(Refused, match="larger than a file may be"):
            write_copy(file, CHANGE, out, ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert names(file) == ["old.pt"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "may not write"),
        (errno.EIO, "could not be written: Input/output error"),
    ],
)
def test_what_the_disk_says_in_plain_words(
    number: int, words: str, file: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(Refused, match=words):
        write_copy(file, CHANGE, out, ignore)
    assert names(file) == ["old.pt"]


@pytest.mark.root
class TestMounted:
    """On file systems of a test's own, in a mount namespace."""

    SCRIPT = textwrap.dedent("""
        import sys
        from pathlib import Path
        from ddpdoctor.checkpoints.formats.layouts import Change
        from ddpdoctor.checkpoints.writing.copying import write_copy
        from ddpdoctor.checkpoints.errors import CheckpointError

        path, out = map(Path, sys.argv[1:])
        try:
            write_copy(path, Change(path.stat().st_size), out, lambda done, total: None)
        except CheckpointError as error:
            print(error)
    """)

    def copy(self, file: Path, out: Path, prepare: str) -> str:
        """What is said when `prepare`, shell commands, went before; then the names in the folder."""
        python = f'"{sys.executable}" -c "$SCRIPT" "{file}" "{out}"; ls -A "{out.parent}"'
        command = ["unshare", "--mount", "sh", "-ec", f"{prepare}\n{python}"]
        environment = {**os.environ, "SCRIPT": self.SCRIPT}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    def test_a_full_disk(self, file: Path, tmp_path: Path) -> None:
        folder = tmp_path / "small"
        folder.mkdir()
        said = self.copy(file, folder / "new.pt", f'mount -t tmpfs -o size=1m none "{folder}"')
        assert said == f"The disk is full: 1 MiB are free in {folder}, too little for new.pt\n"

    def test_a_read_only_disk(self, file: Path, tmp_path: Path) -> None:
        folder = tmp_path / "frozen"
        folder.mkdir()
        said = self.copy(file, folder / "new.pt", f'mount -t tmpfs -o ro none "{folder}"')
        assert said == f"{folder} is on a file system that is mounted read-only\n"

    def test_from_one_disk_to_another(self, file: Path, tmp_path: Path) -> None:
        folder = tmp_path / "other"
        folder.mkdir()
        assert self.copy(file, folder / "new.pt", f'mount -t tmpfs none "{folder}"') == "new.pt\n"

    @pytest.mark.tool("mkfs.xfs")
    def test_shared_blocks(self, tmp_path: Path) -> None:
        """Where the file system can, the copy takes no room: two files of 250 MB on a disk of 400."""
        folder = tmp_path / "sharing"
        folder.mkdir()
        image = tmp_path / "image"
        prepare = f"""
            truncate -s 400M "{image}"
            mkfs.xfs -q -m reflink=1 "{image}"
            mount -o loop "{image}" "{folder}"
            head -c 250000000 /dev/urandom > "{folder}/old.pt"
        """
        assert self.copy(folder / "old.pt", folder / "new.pt", prepare) == "new.pt\nold.pt\n"
