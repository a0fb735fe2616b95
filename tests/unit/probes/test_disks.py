"""The disks probe: which folders, which file system, and no hanging."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from ddpdoctor.facts.disks import Disk, Disks
from ddpdoctor.probes import disks
from ddpdoctor.probes.context import Context


def by_purpose(found: Disks) -> dict[str, Disk]:
    return {folder.purpose: folder for folder in found.folders}


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = by_purpose(disks.probe(Context("python", environ={"HOME": str(tmp_path), "TMPDIR": "/dev/shm"})))
    state = os.statvfs(tmp_path)
    assert found["working folder"].path == str(tmp_path)
    assert found["working folder"].total == state.f_blocks * state.f_frsize
    assert found["working folder"].writable
    assert found["temporary files"].file_system == "tmpfs"
    assert found["temporary files"].mount == "/dev/shm"
    # It doesn't exist yet: the figures are its nearest parent's.
    assert found["torch cache"].path == f"{tmp_path}/.cache/torch"
    assert found["torch cache"].total == found["home"].total


def test_where_the_libraries_put_their_files() -> None:
    environ = {
        "HOME": "/h",
        "XDG_CACHE_HOME": "/x",
        "TRITON_CACHE_DIR": "/t/cache",
        "HF_HOME": "/models",
        "TORCH_HOME": "relative",
    }
    found = by_purpose(disks.probe(Context("python", environ=environ)))
    assert found["Triton cache"].path == "/t/cache"
    assert found["Hugging Face cache"].path == "/models"
    assert "torch cache" not in found
    found = by_purpose(disks.probe(Context("python", environ={"HOME": "/h", "XDG_CACHE_HOME": "/x"})))
    assert found["torch cache"].path == "/x/torch"
    assert found["Hugging Face cache"].path == "/x/huggingface"
    assert found["Triton cache"].path == "/h/.triton"
    assert found["temporary files"].path == "/tmp"


def test_the_longest_mount_point_counts_and_the_last_of_equals(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "home/a b").mkdir(parents=True)
    (tmp_path / "homes").mkdir()
    (tmp_path / ".snapshots/triton").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 0:40 / /home rw - autofs systemd-1 rw\n"
        "3 1 0:41 / /home rw shared:1 - nfs4 server:/home rw\n"
        "4 1 0:42 / /home/a\\040b rw - lustre x rw\n"
        "5 1 0:43 / /.snapshots rw - xfs /dev/sdb1 rw\n"
        "broken line\n"
    )
    context = Context(
        "python",
        root=tmp_path,
        environ={
            "HOME": "/home/a b",
            "TMPDIR": "/home",
            "HF_HOME": "/homes",
            "TORCH_HOME": "/",
            "TRITON_CACHE_DIR": "/.snapshots/triton",
        },
    )
    found = by_purpose(disks.probe(context))
    assert (found["Triton cache"].file_system, found["Triton cache"].mount) == ("xfs", "/.snapshots")
    assert (found["torch cache"].file_system, found["torch cache"].mount) == ("ext4", "/")
    assert (found["home"].file_system, found["home"].mount) == ("lustre", "/home/a b")
    assert found["temporary files"].file_system == "nfs4"
    assert (found["Hugging Face cache"].file_system, found["Hugging Face cache"].mount) == ("ext4", "/")


def test_a_file_system_that_hangs_is_named_and_the_others_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    real = os.statvfs

    def hanging(path: Path) -> os.statvfs_result:
        if "hung" in str(path):
            release.wait(30)
        return real(path)

    (tmp_path / "hung").mkdir()
    monkeypatch.setattr(disks, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(os, "statvfs", hanging)
    hung = f"{tmp_path}/hung"
    context = Context("python", environ={"HOME": hung, "HF_HOME": str(tmp_path)})
    start = time.monotonic()
    found = disks.probe(context)
    took = time.monotonic() - start
    release.set()
    assert found.unanswered == (hung, f"{hung}/.cache/torch", f"{hung}/.triton")
    assert "Hugging Face cache" in by_purpose(found)
    assert took < 1.4, "all folders share one deadline"


def test_a_working_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = by_purpose(disks.probe(Context("python", environ={"HOME": str(tmp_path)})))
    assert "working folder" not in found
    assert "home" in found


def test_working_folder_that_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert disks.probe(Context("python")).removed == ""
    gone.rmdir()
    found = disks.probe(Context("python"))
    assert found.removed == str(gone)
    assert "working folder" not in by_purpose(found)
    gone.mkdir()
    assert disks.probe(Context("python")).removed == str(gone), "a new folder of that name is another one"
