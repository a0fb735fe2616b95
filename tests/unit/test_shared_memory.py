"""The shared memory probe: sizes, and which segments nobody uses."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from ddpdoctor.facts.base import Unknown
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.probes import shared_memory
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context


def look(root: Path, namespace: str = INITIAL_PID_NAMESPACE) -> SharedMemory:
    """Probes a made-up /dev/shm with this machine's real processes."""
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    proc = root / "proc"
    if not proc.exists():
        proc.mkdir()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                (proc / entry.name).symlink_to(entry)
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to(namespace)
    found = shared_memory.probe(Context("python", root=root))
    assert isinstance(found, SharedMemory)
    return found


def segment(root: Path, name: str, age: float = 3600.0, size: int = 65536) -> Path:
    path = root / "dev/shm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_this_machine() -> None:
    found = shared_memory.probe(Context("python"))
    state = os.statvfs("/dev/shm")
    assert isinstance(found, SharedMemory)
    assert found.size == state.f_blocks * state.f_frsize
    assert found.exists


def test_no_folder(tmp_path: Path) -> None:
    found = shared_memory.probe(Context("python", root=tmp_path))
    assert isinstance(found, SharedMemory)
    assert not found.exists


def test_segments_of_the_dead(tmp_path: Path) -> None:
    for name in ("nccl-abc", "torch_12_3_4", "psm_0a1b", "sem.mp-x1"):
        segment(tmp_path, name)
    segment(tmp_path, "somebody-elses.db")
    segment(tmp_path, "nccl-young", age=5.0)
    found = look(tmp_path)
    assert found.stale == ("/dev/shm/nccl-abc", "/dev/shm/psm_0a1b", "/dev/shm/sem.mp-x1", "/dev/shm/torch_12_3_4")
    assert found.stale_size >= 4 * 65536


def test_a_mapped_segment_is_alive(tmp_path: Path) -> None:
    path = segment(tmp_path, "nccl-mapped")
    segment(tmp_path, "nccl-dead")
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 65536):
        os.close(descriptor)  # Only the mapping is left, as with NCCL.
        assert look(tmp_path).stale == ("/dev/shm/nccl-dead",)
    assert look(tmp_path).stale == ("/dev/shm/nccl-dead", "/dev/shm/nccl-mapped")


def test_an_open_segment_is_alive(tmp_path: Path) -> None:
    path = segment(tmp_path, "torch_open")
    with path.open("rb"):
        assert look(tmp_path).stale == ()
    assert look(tmp_path).stale == ("/dev/shm/torch_open",)


def test_in_a_container_nobody_can_say(tmp_path: Path) -> None:
    segment(tmp_path, "nccl-abc")
    assert isinstance(look(tmp_path, namespace="pid:[4026532618]").stale, Unknown)


def test_without_segments_everybody_can_say(tmp_path: Path) -> None:
    assert look(tmp_path, namespace="pid:[4026532618]").stale == ()


def test_other_users_segments_are_not_called_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path, "nccl-abc")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert isinstance(look(tmp_path).stale, Unknown)


def test_looking_takes_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path, "nccl-abc")
    monkeypatch.setattr(shared_memory, "SEARCH_SECONDS", -1.0)
    assert isinstance(look(tmp_path).stale, Unknown)
