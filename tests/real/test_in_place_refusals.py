"""What a change in place refuses, on the file systems of this kernel: said in a sentence, and the file is untouched."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ddpdoctor.checkpoints.errors import CheckpointError, Refused
from ddpdoctor.checkpoints.formats.layouts import Change
from ddpdoctor.checkpoints.writing import exclusive_open as holding
from ddpdoctor.checkpoints.writing import in_place
from tests.support.command import plain_environ
from tests.support.killed_runs import CHANGES, DATE, ORIGINAL, applied

CHANGE = CHANGES["both"][0]
PATCHED = CHANGES["patch"][0]
FIXED = applied(ORIGINAL, CHANGE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return checkpoint(tmp_path)


def checkpoint(folder: Path, name: str = "last.ckpt") -> Path:
    path = folder / name
    path.write_bytes(ORIGINAL)
    os.utime(path, ns=(DATE, DATE))
    return path


def refused(path: Path, change: Change = CHANGE) -> Refused:
    """What is said; whatever the path leads to is as before, and no file is left beside it."""
    before = seen(path)
    with pytest.raises(Refused) as caught:
        in_place.change_in_place(path, change)
    assert seen(path) == before
    assert caught.value.text
    return caught.value


def seen(path: Path) -> tuple[bytes, int, int, list[str]]:
    return path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode, names(path.parent)


def names(folder: Path) -> list[str]:
    """But for the folder that a new ext4 has."""
    return sorted(path.name for path in folder.iterdir() if path.name != "lost+found")


def works(path: Path, change: Change = CHANGE) -> None:
    """Changed and undone: inode, mode and date stay, and in the end every byte is as it was."""
    before = path.read_bytes(), path.stat(), names(path.parent)
    in_place.change_in_place(path, change)
    after = path.stat()
    assert path.read_bytes() == applied(before[0], change)
    assert in_place.recover(path) is None
    for kept in ("st_ino", "st_mode", "st_uid", "st_gid", "st_mtime_ns"):
        assert getattr(after, kept) == getattr(before[1], kept), kept
    in_place.undo(path)
    assert path.read_bytes() == before[0]
    assert path.stat().st_mtime_ns == before[1].st_mtime_ns
    assert names(path.parent) == before[2]


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    point = folder / "mounted"
    point.mkdir()
    subprocess.run(["mount", *arguments, point], check=True, capture_output=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


@contextmanager
def formatted(folder: Path, kind: str, size: str) -> Iterator[Path]:
    image = folder / "image"
    subprocess.run(["truncate", "-s", size, image], check=True)
    subprocess.run([f"mkfs.{kind}", image], check=True, capture_output=True)
    with mounted(folder, "-o", "loop", "-t", kind, str(image)) as point:
        yield point


@contextmanager
def overlay(folder: Path, *, lower: bool) -> Iterator[Path]:
    """As in a container. lower: the checkpoint came with the image, and is copied when it is first opened for writing."""
    for name in ("lower", "upper", "work"):
        (folder / name).mkdir()
    if lower:
        checkpoint(folder / "lower")
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    # The scratch folder may itself be such a file system, which can't lie over another one.
    with mounted(folder, "-t", "overlay", "-o", options, "overlay") as point:
        yield point


FILE_SYSTEMS: dict[str, Callable[[Path], object]] = {
    "ext4": lambda folder: formatted(folder, "ext4", "32M"),
    "xfs": lambda folder: formatted(folder, "xfs", "320M"),
    "btrfs": lambda folder: formatted(folder, "btrfs", "128M"),
    "tmpfs": lambda folder: mounted(folder, "-t", "tmpfs", "tmpfs"),
    "overlay": lambda folder: overlay(folder, lower=False),
    "image": lambda folder: overlay(folder, lower=True),
}
NEEDS = {kind: pytest.mark.tool(f"mkfs.{kind}") for kind in ("ext4", "xfs", "btrfs")}


@pytest.fixture(params=[pytest.param(kind, marks=NEEDS.get(kind, ())) for kind in FILE_SYSTEMS])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A checkpoint on a file system of each kind."""
    ensure_known("overlay" if request.param == "image" else request.param)
    with FILE_SYSTEMS[request.param](tmp_path) as folder:  # type: ignore[attr-defined]
        path = folder / "last.ckpt"
        yield path if path.exists() else checkpoint(folder)


def ensure_known(kind: str) -> None:
    """A person's kernel may lack one; CI's fails then."""
    if kind not in Path("/proc/filesystems").read_text().split() and not os.environ.get("CI"):
        pytest.skip(f"this kernel has no {kind}")


HOLDERS = {
    "for reading": ("open(path, 'rb')", "open"),
    "for writing": ("open(path, 'r+b')", "open for writing"),
    "mapped": ("mmap.mmap(open(path, 'rb').fileno(), 0, access=mmap.ACCESS_READ)", "mapped"),
    "mapped privately": ("mmap.mmap(open(path, 'rb').fileno(), 0, access=mmap.ACCESS_COPY)", "mapped"),
}


@contextmanager
def holder(path: Path, how: str) -> Iterator[int]:
    """Another process that has the file; its id."""
    program = f"import mmap, sys; path = sys.argv[1]; held = {HOLDERS[how][0]}; print(flush=True); sys.stdin.read()"
    if how.startswith("mapped"):
        # Without the descriptor that Python's mmap keeps beside the mapping.
        program = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDONLY)
assert libc.mmap(None, 4096, 1, {2 if "privately" in how else 1}, file, 0) != ctypes.c_void_p(-1).value
os.close(file)
print(flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"
    try:
        yield process.pid
    finally:
        process.communicate("")


@pytest.mark.root
@pytest.mark.tool("mount", "umount")
def test_on_every_file_system_it_works_and_names_who_has_the_file(anywhere: Path) -> None:
    works(anywhere)
    works(anywhere, PATCHED)
    for how, (_, words) in HOLDERS.items():
        with holder(anywhere, how) as pid:
            assert f"(pid {pid}) has it {words}" in refused(anywhere).text, how
    works(anywhere)


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("lease", [True, False])
def test_a_file_in_use_is_refused_by_name(how: str, lease: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not lease:
        without_leases(monkeypatch)
    with holder(path, how) as pid:
        error = refused(path)
        assert "python" in error.text
        assert f"(pid {pid}) has it {HOLDERS[how][1]}" in error.text
        assert error.commands == (f"ps -fp {pid}",)
    works(path)


def without_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without leases, or a user who doesn't own the file."""

    def no_lease(file: int, command: int, argument: int = 0) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(holding.fcntl, "fcntl", no_lease)


def test_nothing_is_undone_under_a_reader(path: Path) -> None:
    in_place.change_in_place(path, CHANGE)
    with holder(path, "mapped") as pid, pytest.raises(Refused, match=f"pid {pid}"):
        in_place.undo(path)
    assert path.read_bytes() == FIXED
    in_place.undo(path)
    assert path.read_bytes() == ORIGINAL


def test_a_reader_who_comes_meanwhile_waits_and_sees_the_whole(path: Path) -> None:
    """Readers open and read it all the time; none sees anything between the two contents."""
    program = """
import sys
seen = set()
print(flush=True)
while not sys.argv[2] in seen:
    with open(sys.argv[1], "rb") as file:
        seen.add(str(hash(file.read()) & 0xffff))
print(*seen)
"""
    environ = {"PYTHONHASHSEED": "1"}
    hashed = [
        subprocess.run(
            [sys.executable, "-c", f"print(hash(open({str(name)!r}, 'rb').read()) & 0xffff)"],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name in (path, _written(path.with_name("fixed"), FIXED))
    ]
    reader = subprocess.Popen(
        [sys.executable, "-c", program, path, hashed[1]], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "\n"
    refusals = set()
    for _ in range(10_000):
        try:
            in_place.change_in_place(path, CHANGE)
            break
        except Refused as error:
            refusals.add(error.text.partition(":")[0])
    assert all(refusal == "The file is in use" or "can't see" in refusal for refusal in refusals), refusals
    said, _ = reader.communicate(timeout=60)
    assert set(said.split()) <= set(hashed)
    assert path.read_bytes() == FIXED


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_whoever_opens_it_waits_until_it_is_whole(path: Path) -> None:
    """The kernel holds an open back while we work, and doesn't end us for it."""
    with holding.open_exclusively(path) as held:
        program = f"import time; file = open({str(path)!r}, 'rb'); print(file.read(4).hex(), flush=True)"
        other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        time.sleep(0.5)
        assert other.poll() is None
        os.pwrite(held.file, b"\1\2\3\4", 0)
    assert other.communicate(timeout=30)[0] == "01020304\n"


def test_a_file_that_a_file_server_has_leased_is_refused_at_once(path: Path) -> None:
    """And not after the 45 seconds for which the kernel would wait. As Samba does it for its clients."""
    program = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
sys.stdin.read()
"""
    in_place.change_in_place(path, CHANGE)
    server = subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "\n"
    start = time.monotonic()
    for work in (in_place.recover, in_place.undo, lambda path: in_place.change_in_place(path, CHANGE)):
        with pytest.raises(Refused, match=r"taken .* for itself"):
            work(path)
    assert time.monotonic() - start < 10
    server.communicate("")
    assert in_place.undo(path) == 1


def test_a_second_run_is_kept_away(path: Path) -> None:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        error = refused(path)
    assert f"(pid {os.getpid()})" in error.text


def test_two_runs_at_once_never_mix(path: Path) -> None:
    """Many at a time: some are refused, and what comes out is one change, which can be undone."""
    program = """
import random
import sys
import time
from pathlib import Path
from tests.support.command import plain_environ
from tests.support.killed_runs import CHANGES
from ddpdoctor.checkpoints.writing import in_place
from ddpdoctor.checkpoints.errors import Refused
path = Path(sys.argv[1])
sys.stdin.readline()
tries, done, until = 0, 0, time.monotonic() + 50
while tries < 40 or (not done and time.monotonic() < until):
    tries += 1
    try:
        in_place.recover(path)
        if path.stat().st_size == CHANGES["both"][0].size:
            in_place.change_in_place(path, CHANGES["both"][0])
        else:
            in_place.undo(path)
        done += 1
        print("done")
    except Refused as error:
        print(error.text)
        time.sleep(random.uniform(0, 0.05))
"""
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=plain_environ(),
            text=True,
        )
        for _ in range(2)
    ]
    for one in both:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    said = [process.communicate(timeout=60) for process in both]
    assert [error for _, error in said] == ["", ""]
    assert "done" in said[0][0]
    assert "done" in said[1][0]
    in_place.recover(path)
    if path.read_bytes() != ORIGINAL:
        in_place.undo(path)
    assert path.read_bytes() == ORIGINAL
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_a_file_that_only_one_can_create_keeps_the_second_away(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(holding.fcntl, "flock", no_lock)
    works(path)
    lock = path.with_name("last.ckpt.ddpdoctor-lock")
    lock.write_text(f"{socket.gethostname()} {os.getppid()}")
    error = refused(path)
    assert f"(pid {os.getppid()})" in error.text
    assert error.commands == (f"rm {lock}",)
    lock.write_text("another-host 1")
    assert "another-host" in refused(path).text
    lock.write_text("")
    assert "some host" in refused(path).text
    # Left by a run on this host that has ended.
    ended = subprocess.Popen(["true"])
    ended.wait()
    lock.write_text(f"{socket.gethostname()} {ended.pid}")
    in_place.change_in_place(path, CHANGE)
    assert names(path.parent) == ["last.ckpt", "last.ckpt.ddpdoctor-undo"]


def test_a_symbolic_link_is_refused_and_says_where_it_leads(path: Path) -> None:
    link = path.with_name("link.ckpt")
    link.symlink_to(path.name)
    error = refused(link)
    assert str(path) in error.text
    assert error.commands == (f"ddpdoctor fix-checkpoint {path}",)
    assert "-o" in error.advice


def test_a_hubs_blob_is_named_so(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    blob = checkpoint(blobs, "0123456789abcdef")
    link = snapshot / "pytorch_model.bin"
    link.symlink_to(blob)
    error = refused(link)
    assert "hub's cache" in error.text
    assert error.commands == ()
    assert "-o" in error.advice


def test_a_second_name_is_refused(path: Path) -> None:
    os.link(path, path.with_name("other.ckpt"))
    error = refused(path)
    assert "2 names" in error.text
    assert "-o" in error.advice


@pytest.mark.parametrize("make", ["mkfifo", "mkdir", "socket", "nothing"])
def test_what_is_no_file_is_refused(make: str, tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    {
        "mkfifo": lambda: os.mkfifo(path),
        "mkdir": path.mkdir,
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(path)),
        "nothing": lambda: None,
    }[make]()
    with pytest.raises(Refused, match="No such file" if make == "nothing" else "not a regular file"):
        in_place.change_in_place(path, CHANGE)


def as_user(user: int, work: Callable[[], object]) -> str:
    """What the work says as that user: "done", or what it raised; in a fork, since there is no way back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "done"
        try:
            if user != os.getuid():
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            work()
        except CheckpointError as error:
            said = f"{type(error).__name__}: {error.text} / {error.advice} / {error.commands}"
        except BaseException as error:
            said = f"crashed: {error!r}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


NOBODY = 65534


@pytest.mark.root
def test_without_the_right_to_write_it_names_the_owner(shared: Path) -> None:
    path = checkpoint(shared)
    path.chmod(0o644)
    said = as_user(NOBODY, lambda: in_place.change_in_place(path, CHANGE))
    assert said.startswith("Refused: This user may not write")
    assert "root" in said
    assert path.read_bytes() == ORIGINAL
    assert names(shared) == [path.name]


@pytest.mark.root
def test_a_file_of_which_only_the_date_could_not_be_kept_is_refused(shared: Path) -> None:
    path = checkpoint(shared)
    path.chmod(0o666)
    said = as_user(NOBODY, lambda: in_place.change_in_place(path, CHANGE))
    assert "belongs to another user" in said
    assert path.read_bytes() == ORIGINAL
    assert path.stat().st_mtime_ns == DATE
    assert names(shared) == [path.name]


@pytest.mark.root
def test_a_folder_without_the_right_to_write_is_refused(shared: Path) -> None:
    path = checkpoint(shared)
    os.chown(path, NOBODY, NOBODY)
    shared.chmod(0o755)
    said = as_user(NOBODY, lambda: in_place.change_in_place(path, CHANGE))
    assert (
        "undo file last.ckpt.ddpdoctor-undo can't be written beside it: this user may not write to the folder" in said
    )
    assert path.read_bytes() == ORIGINAL
    assert names(shared) == [path.name]


@pytest.mark.root
def test_the_undo_file_is_for_whoever_the_checkpoint_is_for(shared: Path) -> None:
    """What root fixed, its owner can undo; nobody else can read it."""
    path = checkpoint(shared)
    os.chown(path, NOBODY, NOBODY)
    path.chmod(0o640)
    undo_file = in_place.change_in_place(path, CHANGE)
    status = undo_file.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (NOBODY, NOBODY, 0o640)
    assert as_user(NOBODY, lambda: in_place.undo(path)) == "done"
    assert path.read_bytes() == ORIGINAL


@pytest.mark.root
def test_a_file_open_in_a_process_that_this_user_cannot_see_is_refused(shared: Path) -> None:
    path = checkpoint(shared)
    os.chown(path, NOBODY, NOBODY)
    with holder(path, "mapped"):
        said = as_user(NOBODY, lambda: in_place.change_in_place(path, CHANGE))
    assert said.startswith("Refused: The file is open in a process that this user can't see")
    assert f"sudo fuser -v {path}" in said
    assert path.read_bytes() == ORIGINAL


@pytest.mark.root
@pytest.mark.tool("chattr")
@pytest.mark.parametrize("mark", ["i", "a"])
def test_an_immutable_file_says_how_to_take_the_mark_off(mark: str, tmp_path: Path) -> None:
    with formatted(tmp_path, "ext4", "8M") as folder:
        path = checkpoint(folder)
        subprocess.run(["chattr", f"+{mark}", path], check=True)
        error = refused(path)
        assert "immutable or append-only" in error.text
        subprocess.run(error.commands[0].removeprefix("sudo "), shell=True, check=True)
        works(path)


@pytest.mark.root
@pytest.mark.tool("chattr")
def test_an_immutable_folder_is_refused(tmp_path: Path) -> None:
    with formatted(tmp_path, "ext4", "8M") as folder:
        path = checkpoint(folder)
        subprocess.run(["chattr", "+i", folder], check=True)
        assert "the folder is marked as immutable" in refused(path).text
        subprocess.run(["chattr", "-i", folder], check=True)


@pytest.mark.root
@pytest.mark.tool("mount", "umount")
def test_a_file_system_mounted_read_only_is_refused(path: Path, tmp_path: Path) -> None:
    with mounted(tmp_path, "--bind", str(tmp_path)) as point:
        subprocess.run(["mount", "-o", "remount,bind,ro", point], check=True)
        error = refused(point / path.name)
    assert "mounted read-only" in error.text
    assert "-o" in error.advice


def test_a_name_too_long_for_an_undo_file_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "x" * 250)
    assert "name would be too long" in refused(path).text
    works(checkpoint(tmp_path, "y" * (255 - len(".ddpdoctor-undo.new"))))


@pytest.mark.parametrize("name", ["-rf", "a b'c\n", "\udcff.pt", "ü.pt", "%s"])
def test_any_name_will_do(name: str, tmp_path: Path) -> None:
    works(checkpoint(tmp_path, name))


def test_a_limit_of_file_size_is_no_end_by_signal(shared: Path) -> None:
    """ulimit -f, or a quota's nearest relative: the appended bytes don't fit."""
    path = checkpoint(shared)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(ORIGINAL) + 1_000, len(ORIGINAL) + 1_000))
        in_place.change_in_place(path, CHANGE)

    said = as_user(os.getuid(), limited)
    assert said.startswith("Refused: The change could not be written: the file would exceed the limit"), said
    assert path.read_bytes() == ORIGINAL
    assert path.stat().st_mtime_ns == DATE
    assert names(shared) == [path.name]


FULL = {
    "tmpfs": lambda folder: mounted(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs"),
    "ext4": lambda folder: formatted(folder, "ext4", "8M"),
    "btrfs": lambda folder: formatted(folder, "btrfs", "128M"),
}


@pytest.mark.root
@pytest.mark.tool("mount", "umount")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=NEEDS.get(kind, ())) for kind in FULL])
def test_on_a_full_disk_the_file_stays_as_it_was(kind: str, tmp_path: Path) -> None:
    """With less and less room: at first it works, then the appended bytes don't fit, at last not even the undo file."""
    ensure_known(kind)
    ends = set()
    with FULL[kind](tmp_path) as folder:  # type: ignore[attr-defined]
        path = checkpoint(folder)
        dated = path.stat().st_mtime_ns
        filler = folder / "filler"
        fill(filler)
        for free in (
            64 << 10,
            16 << 10,
            12 << 10,
            8 << 10,
            7 << 10,
            6 << 10,
            5 << 10,
            4 << 10,
            3 << 10,
            2 << 10,
            1 << 10,
            0,
        ):
            os.truncate(filler, filler.stat().st_size - free)
            try:
                in_place.change_in_place(path, CHANGE)
            except CheckpointError as error:
                ends.add(error.text)
                if isinstance(error, Refused):
                    assert path.read_bytes() == ORIGINAL
                    assert path.stat().st_mtime_ns == dated
                    assert names(folder) == ["filler", path.name]
                filler.unlink()
            else:
                ends.add("done")
                filler.unlink()
                assert path.read_bytes() == FIXED
            in_place.recover(path)
            if path.read_bytes() != ORIGINAL:
                in_place.undo(path)
            assert names(folder) == [path.name]
            assert path.read_bytes() == ORIGINAL
            fill(filler)
    assert all(end == "done" or "the disk is full" in end for end in ends), ends
    assert any("undo file" in end for end in ends), ends


def fill(path: Path) -> None:
    """Takes all the room there is."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
        os.fsync(file.fileno())


@pytest.mark.root
@pytest.mark.tool("mount", "umount", "mkfs.ext4")
def test_what_fits_is_undone_on_a_full_disk(tmp_path: Path) -> None:
    """Undoing needs no room, not even with two changes in the undo file."""
    changes = CHANGES["two"]
    with formatted(tmp_path, "ext4", "8M") as folder:
        path = checkpoint(folder)
        for change in changes:
            in_place.change_in_place(path, change)
        fill(folder / "filler")
        in_place.undo(path)
        assert path.read_bytes() == ORIGINAL
        assert path.stat().st_mtime_ns == DATE


def test_a_file_that_changed_since_it_was_read_is_refused(path: Path) -> None:
    at = CHANGE.patches[0].offset + 7
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([ORIGINAL[at] ^ 1]))
    assert "was changed while it was being read" in refused(path).text
    path.write_bytes(ORIGINAL + b"x")
    assert "was changed while it was being read" in refused(path).text


def test_a_sparse_file_of_any_size_takes_no_longer(tmp_path: Path) -> None:
    """Nothing reads or writes what lies between."""
    path = checkpoint(tmp_path)
    os.truncate(path, 40 << 30)
    change = Change(40 << 30, CHANGE.patches, CHANGE.appended)
    start = time.monotonic()
    in_place.change_in_place(path, change)
    in_place.undo(path)
    assert time.monotonic() - start < 20
    assert path.stat().st_size == 40 << 30


@pytest.mark.root
@pytest.mark.parametrize(
    ("options", "used_up", "words"),
    [
        ("size=4m", lambda folder: fill(folder / "filler"), ("Free some space", "df -h")),
        ("nr_inodes=3", lambda folder: (folder / "one").touch(), ("no inodes left", "df -i")),
    ],
)
def test_a_full_disk_is_told_with_what_is_missing(
    options: str, used_up: Callable[[Path], object], words: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        path = checkpoint(folder)
        with suppress(OSError):
            used_up(folder)
        told = refused(path)
        assert words[0] in told.advice
        assert told.commands == (f"{words[1]} {folder}",)
    finally:
        subprocess.run(["umount", folder], check=True)
