"""Who has a file open or mapped, told from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddpdoctor.checkpoints.writing import open_handles as occupancy
from ddpdoctor.checkpoints.writing.open_handles import Occupant, file_system, occupants

LIBC = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def map(path, flags=1):
    file = os.open(path, os.O_RDONLY)
    assert libc.mmap(None, 4096, 1, flags, file, 0) != ctypes.c_void_p(-1).value
    os.close(file)
"""


@contextmanager
def process(path: Path, statement: str) -> Iterator[int]:
    program = f"{LIBC}\npath = sys.argv[1]\n{statement}\nprint(flush=True)\nsys.stdin.read()"
    started = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "\n"
    try:
        yield started.pid
    finally:
        started.communicate("")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "with a space\nand a line.ckpt"
    path.write_bytes(bytes(10_000))
    return path


def found(path: Path) -> tuple[Occupant, ...]:
    with path.open("rb") as file:
        return occupants(file.fileno())


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("file = open(path, 'rb')", "open"),
        ("file = open(path, 'ab')", "open for writing"),
        ("file = open(path, 'r+b')", "open for writing"),
        ("file = os.open(path, os.O_WRONLY)", "open for writing"),
        ("file = os.open(path, os.O_PATH)", "open"),
        ("one = open(path, 'rb'); two = open(path, 'r+b')", "open for writing"),
        ("map(path)", "mapped"),
        ("map(path, 2)", "mapped"),
        ("map(path); file = open(path, 'r+b')", "open for writing"),
    ],
)
def test_each_way_to_have_a_file_is_told(statement: str, how: str, path: Path) -> None:
    with process(path, statement) as pid:
        (one,) = found(path)
    assert one == Occupant(pid, one.program, how)
    assert str(one) == f"{one.program} (pid {pid}) has it {how}"
    assert one.program.startswith("python")
    assert found(path) == ()


def test_all_are_named_and_nobody_else(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(10_000))
    with process(path, "map(path)") as one, process(path, "f = open(path)") as two, process(other, "f = open(path)"):
        assert {(seen.pid, seen.how) for seen in found(path)} == {(one, "mapped"), (two, "open")}


def test_another_descriptor_of_our_own_counts(path: Path) -> None:
    with path.open("rb") as one, path.open("rb"):
        (seen,) = occupants(one.fileno())
    assert (seen.pid, seen.how) == (os.getpid(), "open")


def test_a_file_that_is_gone_still_has_its_readers(path: Path) -> None:
    with process(path, "map(path)") as pid, path.open("rb") as file:
        path.unlink()
        assert [seen.pid for seen in occupants(file.fileno())] == [pid]


def test_on_a_kernel_that_does_not_name_inodes_it_asks_the_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.14."""
    real = occupancy._fdinfo

    def without_inodes(pid: str, number: str) -> dict[str, str]:
        return {key: value for key, value in real(pid, number).items() if key != "ino"}

    monkeypatch.setattr(occupancy, "_fdinfo", without_inodes)
    with process(path, "f = open(path, 'r+b')") as one, process(path, "map(path)") as two:
        assert {(seen.pid, seen.how) for seen in found(path)} == {(one, "open for writing"), (two, "mapped")}


@pytest.mark.tool("findmnt")
def test_the_file_system_is_the_one_that_findmnt_names(tmp_path: Path) -> None:
    for folder in (tmp_path, Path("/dev/shm"), Path("/proc")):
        file = os.open(folder, os.O_RDONLY)
        try:
            named = subprocess.run(
                ["findmnt", "--noheadings", "--output=FSTYPE", "--target", folder],
                capture_output=True,
                text=True,
                check=True,
            )
            # Of several, one over the other, the last is seen.
            assert file_system(file) == named.stdout.split()[-1]
        finally:
            os.close(file)
