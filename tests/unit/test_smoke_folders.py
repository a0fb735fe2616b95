"""Where the ranks' temporary files go, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

from ddpdoctor.smoke.folders import Folder, own_folder


def test_the_first_place_is_not_worth_a_word() -> None:
    with TemporaryDirectory(dir="/tmp") as short:
        found = own_folder({"TMPDIR": short})
        assert Path(found.path).parent == Path(short)
        assert found.told == ""


def test_a_place_that_cant_be_used_is_told() -> None:
    found = own_folder({"TMPDIR": "/proc/self/nowhere"})
    assert found.told == f"in {Path(found.path).parent}, since others can't be used ({found.passed_over})"
    assert found.passed_over.startswith("/proc/self/nowhere: ")
    rmtree(found.path)
    assert Folder("/dev/shm/ddpdoctor-smoke-x", "/tmp: No space left on device").told == (
        "in /dev/shm, since others can't be used (/tmp: No space left on device)"
    )
