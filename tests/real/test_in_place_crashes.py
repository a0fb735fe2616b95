"""A change in place, its recovery and its undo, killed and failing at every call that changes something on the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.checkpoints.errors import CheckpointError
from ddpdoctor.checkpoints.writing import in_place
from tests.support.command import ROOT, plain_environ
from tests.support.killed_runs import CHANGES, DATE, ORIGINAL, Checkpoint
from tests.support.power_cut import Call, Disk, after_power_cuts, read_log

pytestmark = pytest.mark.tool("gcc")

UNDO = "last.ckpt.ddpdoctor-undo"
DRAFT = "last.ckpt.ddpdoctor-undo.new"


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("killer") / "killer.so"
    source = ROOT / "tests" / "support" / "killer.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, capture_output=True)
    return library


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: what a killed process leaves is the same there, and comes sooner."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


def runs(killer: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    """What tests/support/killed_runs.py tells."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_runs", *map(str, arguments)],
        env=plain_environ() | {"LD_PRELOAD": str(killer)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def wrong(run: dict[str, Any]) -> list[str]:
    """What a recovered run does not keep of the promise."""
    last = len(CHANGES[run["kind"]])
    undone = run["run"].startswith("undo")
    possible = range(last + 1) if undone else (last - 1, last)
    # What was killed before the first byte changed left nothing to say, or only a draft.
    taken_back = range(last) if undone else (last - 1,)
    stays = {True: possible if undone else (last,), False: taken_back, None: possible}[run["finished"]]
    checks = {
        "neither the original nor the finished content": run["step"] in possible,
        "the words don't match the content": run["step"] in stays,
        "another date": run["dated"],
        "a dry run changed something": not run["touched_by_dry_run"],
        "the dry run said something else": run["planned"],
        "a second recovery found something": run["settled"],
        "the following change failed": run["fixed"],
        "the undo didn't bring the original back": run["undone"],
        "a draft is left": DRAFT not in run["beside"],
        "an undo file without a change": (UNDO in run["beside"]) == (run["step"] > 0),
    }
    return [name for name, fine in checks.items() if not fine]


def test_killed_at_every_call_the_file_is_the_original_or_the_finished_one(killer: Path, memory: Path) -> None:
    found = runs(killer, "kill", memory)
    assert [(run, wrong(run)) for run in found if wrong(run)] == []
    told = Counter((run["kind"], run["run"].split()[0], " " in run["run"], run["finished"]) for run in found)
    for kind in CHANGES:
        # Killed at dozens of points each, with each of the possible ends.
        assert told[kind, "change", False, True] > 5
        assert told[kind, "change", False, False] > 5
        assert told[kind, "undo", False, False] > 5
        assert told[kind, "undo", False, True] > 0
        # The same for the recoveries.
        assert told[kind, "change", True, False] > 10
        assert told[kind, "change", True, True] > 2
        assert told[kind, "undo", True, False] > 5


def test_a_call_that_fails_leaves_the_file_as_it_was_or_says_how_to_bring_it_back(killer: Path, memory: Path) -> None:
    found = runs(killer, "fail", memory)
    ends = Counter[str]()
    for run in found:
        what, _, text = run["ended"].partition(": ")
        ends[run["run"], what] += 1
        last = len(CHANGES[run["kind"]])
        expected = {"change": last, "undo": 0}[run["run"]]
        if what == "done":
            assert run["seen"]["step"] == expected, run
            assert run["seen"]["dated"], run
        elif what == "Refused" and run["run"] == "change":
            assert run["seen"]["step"] == last - 1, run
            assert run["seen"]["dated"], run
        elif what == "Refused":
            assert run["seen"]["step"] >= 0, run
        else:
            assert what == "Damaged", run
            assert "may be half changed" in text, run
            assert UNDO in run["seen"]["beside"], run
        assert not [one for one in wrong(run | {"run": "undo"}) if one != "the words don't match the content"], run
    assert ends["change", "done"] > 10, "an error that costs nothing, and writes of half of what was asked"
    assert ends["change", "Refused"] > 50
    assert ends["change", "Damaged"] > 5
    assert ends["undo", "Damaged"] > 5


@pytest.fixture(scope="module")
def logs(killer: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder in which it was done, and that of the logs."""
    folder, written = tmp_path_factory.mktemp("logged"), tmp_path_factory.mktemp("logs")
    runs(killer, "log", folder, written)
    return folder, written


@pytest.mark.parametrize("kind", CHANGES)
def test_the_undo_file_is_durable_before_the_first_byte_changes(kind: str, logs: tuple[Path, Path]) -> None:
    calls = read_log(logs[1] / f"{kind}.change", logs[0])

    def where(what: str, name: str) -> list[int]:
        return [number for number, call in enumerate(calls) if (call.kind, call.name) == (what, name)]

    (created,), (renamed,) = where("create", DRAFT), where("rename", DRAFT)
    assert created < max(where("write", DRAFT)) < min(where("fsync", DRAFT)) < renamed < min(where("fsync", ""))
    assert min(where("fsync", "")) < min(where("write", "last.ckpt"))
    size = CHANGES[kind][-1].size
    appended = [number for number in where("write", "last.ckpt") if calls[number].at >= size]
    patches = [number for number in where("write", "last.ckpt") if calls[number].at < size]
    if appended and patches:
        assert any(max(appended) < number < min(patches) for number in where("fsync", "last.ckpt"))
    # The date last, since every write changes it, and durable, too.
    assert max(appended + patches) < max(where("date", "last.ckpt")) < max(where("fsync", "last.ckpt"))


def _before(kind: str, what: str, folder: Path) -> Disk:
    one = Checkpoint(folder, kind)
    one.fresh(len(CHANGES[kind]) - (what == "change"))
    disk = one.disk()
    if what == "recover":
        content, date = disk["last.ckpt"]
        patches = one.change.patches[:1]
        for patch in patches:
            content = content[: patch.offset] + patch.old + content[patch.offset + len(patch.old) :]
        disk["last.ckpt"] = (content if patches else content[: one.change.size + 5], date)
    return disk


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("what", ["change", "undo", "recover"])
def test_after_a_power_cut_it_is_the_original_or_the_finished_one(
    kind: str, what: str, logs: tuple[Path, Path], memory: Path
) -> None:
    one = Checkpoint(memory, kind)
    last = len(CHANGES[kind])
    possible = {"change": (last - 1, last), "undo": tuple(range(last + 1)), "recover": (last - 1,)}[what]
    calls = read_log(logs[1] / f"{kind}.{what}", logs[0])
    states = {}
    for number, disk in after_power_cuts(_before(kind, what, memory), calls):
        states.setdefault(frozenset(disk.items()), number)
    assert len(states) >= 4
    reached = set()
    for state, number in states.items():
        one.restore(dict(state))
        recovery = in_place.recover(one.path)
        seen = one.seen()
        reached.add(seen["step"])
        assert seen["step"] in possible, (number, calls[:number])
        assert seen["dated"], (number, calls[:number])
        assert DRAFT not in seen["beside"]
        assert in_place.recover(one.path) is None
        if recovery is not None:
            assert recovery.finished == (seen["step"] == last) or (what, kind) == ("undo", "two")
        if seen["step"] > 0:
            in_place.undo(one.path)
        assert one.disk() == {"last.ckpt": (ORIGINAL, DATE)}
    assert reached == set(possible)


# All that a program could change a file or folder with, so that none is forgotten in killer.c.
CHANGING = (
    "write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,sync_file_range,copy_file_range,"
    "sendfile,splice,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,mknod,"
    "mknodat,utime,utimes,futimesat,utimensat,chmod,fchmod,fchmodat,chown,fchown,lchown,fchownat,setxattr,lsetxattr,"
    "fsetxattr,removexattr,lremovexattr,fremovexattr,open,openat,openat2,creat,mmap,io_uring_setup"
)
NAMES = {
    "pwrite64": "write",
    "write": "write",
    "ftruncate": "truncate",
    "fsync": "fsync",
    "utimensat": "date",
    "openat": "create",
    "renameat": "rename",
    "rename": "rename",
    "unlinkat": "unlink",
    "unlink": "unlink",
    "fchmod": "mode",
    "fchown": "owner",
}


def traced(folder: Path, work: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The work on folder/last.ckpt under strace, which says on stderr what was asked of the kernel."""
    program = (
        "import sys; from pathlib import Path; from tests.support.killed_runs import *\n"
        f"one = Checkpoint(Path({str(folder)!r}), 'both'); {work}"
    )
    return subprocess.run(
        ["strace", "-y", "-qq", *options, sys.executable, "-c", program],
        env=plain_environ() | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


WORKS = {"change": "in_place.change_in_place(one.path, one.change)", "undo": "in_place.undo(one.path)"}


@pytest.mark.tool("strace")
@pytest.mark.parametrize("what", WORKS)
def test_the_kernel_saw_the_very_calls_that_were_counted(what: str, logs: tuple[Path, Path], tmp_path: Path) -> None:
    """Else there would be a call at which nothing was killed."""
    Checkpoint(tmp_path, "both").fresh(what == "undo")
    done = traced(tmp_path, WORKS[what], "-e", f"trace={CHANGING}")
    assert done.returncode == 0, done.stderr
    seen = []
    for line in done.stderr.splitlines():
        name = line.partition("(")[0]
        looks_only = name in ("open", "openat") and "O_CREAT" not in line
        if str(tmp_path) in line and not looks_only and not (name == "mmap" and "MAP_PRIVATE" in line):
            seen.append(NAMES[name])
    assert seen == [call.kind for call in read_log(logs[1] / f"both.{what}", logs[0])]


@pytest.mark.tool("strace")
@pytest.mark.parametrize("what", WORKS)
def test_killed_by_the_kernel_at_the_entry_of_every_call(what: str, logs: tuple[Path, Path], tmp_path: Path) -> None:
    """The same without our own hand in it."""
    one = Checkpoint(tmp_path, "both")
    calls = Counter(call.kind for call in read_log(logs[1] / f"both.{what}", logs[0]))
    killed = 0
    for name in ("pwrite64", "ftruncate", "fsync", "utimensat", "renameat", "unlinkat"):
        for number in range(1, calls[NAMES[name]] + 1):
            one.fresh(what == "undo")
            done = traced(
                tmp_path, WORKS[what], "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}"
            )
            assert done.returncode in (-9, 137), (name, number, done.stderr)
            killed += 1
            in_place.recover(one.path)
            assert one.seen()["step"] in (0, 1), (name, number)
            assert one.seen()["dated"], (name, number)
            if one.seen()["step"]:
                in_place.undo(one.path)
            assert one.disk() == {"last.ckpt": (ORIGINAL, DATE)}, (name, number)
    assert killed >= 7


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR2])
def test_a_signal_takes_the_change_back_or_waits_for_its_end(number: int, memory: Path) -> None:
    """At each call that changes something; the program's own handler raises what the command line's does."""
    program = f"""
import itertools, os, signal
from tests.support.killed_runs import *
class Stopped(BaseException): pass
def stop(number, frame): raise Stopped
def counting(function):
    def then_signal(*arguments, **options):
        global calls
        calls += 1
        here = calls == at
        try:
            return function(*arguments, **options)
        finally:
            if here:
                os.kill(os.getpid(), {number})
    return then_signal
calls = at = 0
signal.signal({number}, stop)
for name in ("pwrite", "fsync", "utime", "rename", "unlink"):
    setattr(os, name, counting(getattr(os, name)))
one = Checkpoint(Path({str(memory)!r}), "both")
steps = []
for last in itertools.count(1):
    at = 0
    one.fresh(0)
    calls, at = 0, last
    try:
        in_place.change_in_place(one.path, one.change)
    except Stopped:
        pass
    else:
        break
    at = 0
    seen = one.seen()
    steps.append(seen["step"])
    assert seen["dated"], (last, seen)
    assert seen["beside"] == ["last.ckpt.ddpdoctor-undo"] * seen["step"], (last, seen)
    assert in_place.recover(one.path) is None, last
    if seen["step"]:
        in_place.undo(one.path)
assert calls == last - 1, "a signal was lost"
print(steps)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=plain_environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Taken back until all is written; the last call only notes that it is complete.
    steps = json.loads(done.stdout)
    assert len(steps) > 10
    assert steps == [0] * (len(steps) - 1) + [1]


def test_without_a_signal_handler_the_program_ends_by_the_signal_when_the_file_is_whole(tmp_path: Path) -> None:
    """As a scheduler's SIGUSR1 would end it."""
    program = f"""
import signal
from tests.support.killed_runs import *
one = Checkpoint(Path({str(tmp_path)!r}), "both")
one.fresh(0)
write = in_place.journal.write_exactly
def and_signal(*what):
    signal.raise_signal(signal.SIGUSR1)
    write(*what)
in_place.journal.write_exactly = and_signal
in_place.change_in_place(one.path, one.change)
"""
    done = subprocess.run([sys.executable, "-c", program], env=plain_environ(), check=False)
    assert done.returncode == -10
    assert Checkpoint(tmp_path, "both").disk() == {"last.ckpt": (ORIGINAL, DATE)}


def test_it_works_in_a_thread_which_no_signal_reaches(memory: Path) -> None:
    one = Checkpoint(memory, "both")
    one.fresh(0)
    thread = threading.Thread(target=in_place.change_in_place, args=(one.path, one.change))
    thread.start()
    thread.join()
    assert one.seen() == {"step": 1, "dated": True, "beside": [UNDO]}


def test_the_log_of_calls_can_show_a_wrong_order(logs: tuple[Path, Path], tmp_path: Path) -> None:
    """The model of the power cut finds a patch written before the undo file was durable."""
    calls = read_log(logs[1] / "patch.change", logs[0])
    first = next(number for number, call in enumerate(calls) if (call.kind, call.name) == ("write", "last.ckpt"))
    hasty: list[Call] = [calls[first], *calls[:first], *calls[first + 1 :]]
    one = Checkpoint(tmp_path, "patch")
    found = set()
    for _, disk in after_power_cuts({"last.ckpt": (ORIGINAL, DATE)}, hasty):
        one.restore(disk)
        try:
            in_place.recover(one.path)
        except CheckpointError:
            os.unlink(one.path.with_name(UNDO))  # noqa: PTH108
        found.add(one.seen()["step"])
    assert -1 in found
