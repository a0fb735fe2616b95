"""The shared memory probe: sizes, and which segments nobody uses."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory as PythonsMemory
from pathlib import Path
from unittest import mock

import pytest

from ddpdoctor.base.unknown import Unknown
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.knowledge.segment_names import MODE, Maker, maker_of, maker_pid, may_be_chosen
from ddpdoctor.probes import segment_users, shared_memory
from ddpdoctor.probes.context import INITIAL_PID_NAMESPACE, Context
from ddpdoctor.processes.leftovers.all_kinds import blind_spots
from tests.support.other_users import User
from tests.support.segments import make, nccl_name

NOBODY = 65534
NOT_DUMPABLE = (4, 0, 0, 0, 0)
"""prctl(PR_SET_DUMPABLE, 0): no other process of the same user may look into this one."""


def made_up(root: Path, namespace: str = INITIAL_PID_NAMESPACE) -> Context:
    """A made-up /dev/shm with this machine's real processes."""
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    proc = root / "proc"
    if not proc.exists():
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to(namespace)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileExistsError):
                (proc / entry.name).symlink_to(entry)
    return Context("python", root=root)


def look(root: Path, namespace: str = INITIAL_PID_NAMESPACE, settled: float = -1.0) -> SharedMemory:
    """settled: in seconds; nothing is too young where it is negative."""
    with mock.patch.object(shared_memory, "SETTLED_SECONDS", settled):
        found = shared_memory.probe(made_up(root, namespace))
    assert isinstance(found, SharedMemory)
    return found


def segment(root: Path, name: str, size: int = 65536, mode: int = 0o600) -> Path:
    return make(root / "dev/shm" / name, size, mode)


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


OURS = (
    ("nccl-3XkQz1", Maker.NCCL),
    ("nccl-shm-recv-5f3a9c01d2-0-1-0", Maker.NCCL),
    ("nccl-shm-send-5f3a9c01d2-0-1", Maker.NCCL),
    ("psm_2a6ecd0b", Maker.MEMORY),
    ("sem.mp-n_vjzf9h", Maker.SEMAPHORE),
    ("torch_20426_1055735120_0", Maker.TORCH),
)
SOMEBODYS = (
    "nccl-topo.xml",
    "nccl-3XkQz1.bak",
    "nccl-3XkQz1\n",
    "my-nccl-3XkQz1",
    "nccl-rank0",
    "psm_table",
    "psm_2A6ECD0B",
    "psm_2a6ecd0b1",
    "sem.mp-lock",
    "sem.mp-n_vjzf9h.1",
    "torch_imagenet_train_cache.pt",
    "torch_2024_11_22",
    "torch_20426_1055735120_0.pt",
    "torch_cache",
)


def test_segments_of_the_dead(tmp_path: Path) -> None:
    for name, _ in OURS:
        segment(tmp_path, name)
    for name in (*SOMEBODYS, "somebody-elses.db"):
        segment(tmp_path, name)
    found = look(tmp_path)
    assert found.stale == tuple(f"/dev/shm/{name}" for name, _ in OURS)
    assert found.stale_size >= len(OURS) * 65536


def test_names() -> None:
    assert [maker_of(name) for name, _ in OURS] == [maker for _, maker in OURS]
    assert not any(maker_of(name) for name in SOMEBODYS)
    assert maker_pid("torch_20426_1055735120_0") == 20426
    assert maker_pid("nccl-3XkQz1") is None
    assert all(may_be_chosen(name) for name in ("nccl-config", "nccl-Config", "nccl-run042", "nccl-202411"))
    assert not any(may_be_chosen(name) for name in ("nccl-3XkQz1", "nccl-BfG7pU", "psm_2a6ecd0b"))


def test_python_names_its_segments_so() -> None:
    memory = PythonsMemory(create=True, size=16)
    try:
        assert maker_of(memory.name.lstrip("/")) is Maker.MEMORY
        assert Path("/dev/shm", memory.name.lstrip("/")).stat().st_mode & 0o777 == MODE
    finally:
        memory.close()
        memory.unlink()
    lock = get_context("spawn").Lock()
    name = lock._semlock.name  # type: ignore[attr-defined]
    assert maker_of(f"sem.{name.lstrip('/')}") is Maker.SEMAPHORE


def test_what_its_makers_would_not_have_made_so_is_somebody_elses(tmp_path: Path) -> None:
    segment(tmp_path, "nccl-3XkQz1", mode=0o644)
    segment(tmp_path, "nccl-BfG7pU").rename(tmp_path / "kept")
    (tmp_path / "dev/shm/nccl-BfG7pU").symlink_to(tmp_path / "kept")
    os.link(segment(tmp_path, "torch_20426_1055735120_0"), tmp_path / "linked")
    assert look(tmp_path).stale == ()


def test_a_copy_that_keeps_its_date_is_new(tmp_path: Path) -> None:
    """As `cp -p` and rsync make it: two hours old as to its date, and made a moment ago."""
    path = segment(tmp_path, "nccl-3XkQz1")
    os.utime(path, (time.time() - 7200, time.time() - 7200))
    assert look(tmp_path, settled=60.0).stale == ()
    assert look(tmp_path).stale == ("/dev/shm/nccl-3XkQz1",)
    assert look(tmp_path).segments[0].age < 3600


def test_a_mapped_segment_is_alive(tmp_path: Path) -> None:
    path = segment(tmp_path, "nccl-Mapped")
    segment(tmp_path, "nccl-DeadOn")
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 65536):
        os.close(descriptor)  # Only the mapping is left, as with NCCL.
        assert look(tmp_path).stale == ("/dev/shm/nccl-DeadOn",)
    assert look(tmp_path).stale == ("/dev/shm/nccl-DeadOn", "/dev/shm/nccl-Mapped")


def test_an_open_segment_is_alive(tmp_path: Path) -> None:
    path = segment(tmp_path, "nccl-IsOpen")
    with path.open("rb"):
        assert look(tmp_path).stale == ()
    assert look(tmp_path).stale == ("/dev/shm/nccl-IsOpen",)


def test_torchs_maker_lives(tmp_path: Path) -> None:
    segment(tmp_path, f"torch_{os.getpid()}_1055735120_0")
    (one,) = look(tmp_path).segments
    assert one.wanted_by == f"pid {os.getpid()}, which made it"


def test_in_a_container_nobody_can_say(tmp_path: Path) -> None:
    segment(tmp_path, "nccl-3XkQz1")
    assert isinstance(look(tmp_path, namespace="pid:[4026532618]").stale, Unknown)


def test_without_segments_everybody_can_say(tmp_path: Path) -> None:
    assert look(tmp_path, namespace="pid:[4026532618]").stale == ()


def test_where_processes_are_hidden_nobody_can_say(tmp_path: Path) -> None:
    segment(tmp_path, "nccl-3XkQz1")
    context = made_up(tmp_path)
    (tmp_path / "proc/1").unlink()
    with mock.patch.object(shared_memory, "SETTLED_SECONDS", -1.0):
        found = shared_memory.probe(context)
    assert isinstance(found, SharedMemory)
    assert isinstance(found.stale, Unknown)
    assert "hidepid" in found.stale.reason


def test_other_users_segments_are_not_called_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path, "nccl-3XkQz1")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert isinstance(look(tmp_path).stale, Unknown)


def test_looking_takes_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment(tmp_path, "nccl-3XkQz1")
    monkeypatch.setattr(segment_users, "SEARCH_SECONDS", -1.0)
    assert isinstance(look(tmp_path).stale, Unknown)


@contextmanager
def forked(work: Callable[[], None]) -> Iterator[int]:
    """A process that does this and then waits to be ended; its pid, once it has done it."""
    ready, done = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            work()
            os.write(done, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(done)
    try:
        assert os.read(ready, 1) == b"x"
        yield pid
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@pytest.mark.root
@pytest.mark.parametrize("holder", ["root", "its owner, not to be looked into"])
def test_who_may_not_look_into_all_processes_is_sure_of_nothing(holder: str, tmp_path: Path) -> None:
    path = Path("/dev/shm", nccl_name())
    context = made_up(tmp_path)
    (tmp_path / "dev/shm").rmdir()
    (tmp_path / "dev/shm").symlink_to("/dev/shm")
    tmp_path.chmod(0o755)
    answer, told = os.pipe()

    def hold() -> None:
        descriptor = os.open(path, os.O_RDWR)
        mapped = mmap.mmap(descriptor, 4096)
        os.close(descriptor)
        globals()["_kept"] = mapped
        if holder != "root":
            become_nobody()
            ctypes.CDLL(None).prctl(*NOT_DUMPABLE)

    def ask() -> None:
        become_nobody()
        with mock.patch.object(shared_memory, "SETTLED_SECONDS", -1.0):
            found = shared_memory.probe(context)
        assert isinstance(found, SharedMemory)
        assert not isinstance(found.stale, Unknown)
        os.write(told, f"{str(path) in found.stale} {found.closed}".encode())

    make(path)
    os.chown(path, NOBODY, NOBODY)
    try:
        with forked(hold), open_to_all(tmp_path), forked(ask):
            seen, _, closed = os.read(answer, 100).decode().partition(" ")
    finally:
        path.unlink()
        os.close(answer)
        os.close(told)
    assert seen == "True"
    assert int(closed) >= 1


@contextmanager
def open_to_all(folder: Path) -> Iterator[None]:
    """pytest keeps its folders to their owner."""
    closed = [one for one in (folder, *folder.parents) if not one.stat().st_mode & 0o001]
    modes = [one.stat().st_mode & 0o7777 for one in closed]
    for one, mode in zip(closed, modes, strict=True):
        one.chmod(mode | 0o001)
    try:
        yield
    finally:
        for one, mode in zip(closed, modes, strict=True):
            one.chmod(mode)


@pytest.mark.root
def test_of_whoever_leaves_too_many_not_all_are_looked_at(
    ada: User, eve: User, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "MAX_SEGMENTS_OF_A_USER", 50)
    made_up(shared)
    for folder in (shared / "dev", shared / "dev/shm"):
        folder.chmod(0o1777)
    eve.does("umask 077; for each in $(seq 80); do : > torch_999999_3999999999_$each; done", cwd=shared / "dev/shm")
    ada.does("umask 077; : > torch_999998_3999999999_0", cwd=shared / "dev/shm")
    found = look(shared)
    assert isinstance(found.stale, tuple)
    assert "/dev/shm/torch_999998_3999999999_0" in found.stale
    assert len(found.stale) == 51
    (left_out,) = found.left_out
    assert left_out == f"30 more segments of {eve.name} lie in /dev/shm than are looked at"
    assert f"/dev/shm: {left_out}" in blind_spots(Unknown("not asked"), Unknown("not asked"), found)
