"""Kills a change in place, its recovery and its undo at every call that changes something on the disk.

Run as a program with killer.so loaded before libc (see test_in_place_crashes.py); prints one JSON object for each run.
Each run is a fork of this process, so that thousands of them take seconds.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ddpdoctor.checkpoints.errors import CheckpointError
from ddpdoctor.checkpoints.formats.layouts import Change, Patch
from ddpdoctor.checkpoints.writing import in_place, journal

BEFORE, AFTER, HALF, FAIL_ONCE, FAIL_FROM_THERE, SHORT = range(1, 7)
KILLS = (BEFORE, AFTER, HALF)
FAILURES = (
    (FAIL_ONCE, errno.EIO),
    (FAIL_ONCE, errno.ENOSPC),
    (FAIL_FROM_THERE, errno.ENOSPC),
    (FAIL_FROM_THERE, errno.EIO),
    (SHORT, 0),
)
DATE = 1_600_000_000_123_456_789
killer = ctypes.CDLL(None)


def changes() -> dict[str, list[Change]]:
    """For each kind of change, those made before, and at last the one that is killed."""
    # Larger than what the undo file compares of both ends, with patches within these ends and between them.
    patched = _patches(ORIGINAL, 1_000, 70_000, len(ORIGINAL) - 40)
    both = Change(len(ORIGINAL), patched, random.Random(2).randbytes(3_000))
    after = applied(ORIGINAL, both)
    again = Change(len(after), _patches(after, 1_100, len(after) - 100), random.Random(3).randbytes(500))
    return {
        "patch": [Change(len(ORIGINAL), patched)],
        "append": [Change(len(ORIGINAL), (), both.appended)],
        "both": [both],
        "two": [both, again],
    }


def _patches(content: bytes, *offsets: int) -> tuple[Patch, ...]:
    chance = random.Random(1)
    return tuple(
        Patch(at, content[at : at + 300], chance.randbytes(300)[: len(content[at : at + 300])]) for at in offsets
    )


def applied(content: bytes, change: Change) -> bytes:
    new = bytearray(content)
    for patch in change.patches:
        new[patch.offset : patch.offset + len(patch.new)] = patch.new
    return bytes(new) + change.appended


ORIGINAL = random.Random(0).randbytes(150_000)
CHANGES = changes()


def contents(kind: str) -> list[bytes]:
    """The original, and what it is after each change."""
    return list(itertools.accumulate(CHANGES[kind], applied, initial=ORIGINAL))


class Checkpoint:
    """A checkpoint in a folder of its own, with the changes that were made before."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.path = folder / "last.ckpt"
        self.kind = kind
        self.contents = contents(kind)
        self.change = CHANGES[kind][-1]

    def fresh(self, steps: int) -> None:
        """As it is when the first `steps` changes are made."""
        self.restore({self.path.name: (ORIGINAL, DATE)})
        for change in CHANGES[self.kind][:steps]:
            in_place.change_in_place(self.path, change)

    def disk(self) -> dict[str, tuple[bytes, int]]:
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.path.parent.iterdir()}

    def restore(self, disk: dict[str, tuple[bytes, int]]) -> None:
        for path in self.path.parent.iterdir():
            if path.name not in disk:
                path.unlink()
        for name, (content, date) in disk.items():
            self.path.with_name(name).write_bytes(content)
            os.utime(self.path.with_name(name), ns=(date, date))

    def seen(self) -> dict[str, object]:
        """Which of its contents it has (-1: none), whether its date is kept, and the files beside it."""
        content = self.path.read_bytes()
        return {
            "step": self.contents.index(content) if content in self.contents else -1,
            "dated": self.path.stat().st_mtime_ns == DATE,
            "beside": sorted(path.name for path in self.path.parent.iterdir() if path != self.path),
        }


def run(work: Callable[[], object], at: int, mode: int, error: int = 0, log: Path | None = None) -> tuple[bool, str]:
    """Runs it in a fork. Returns whether that was killed, and how it ended: "done", or what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        logged = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if log else -1
        ended = "done"
        killer.killer_arm(at, mode, error, logged)
        try:
            work()
        except CheckpointError as problem:
            ended = f"{type(problem).__name__}: {problem.text}"
        except BaseException as problem:
            ended = f"crashed: {problem!r}"
        reached = killer.killer_disarm() >= at
        os.write(writer, f"{int(reached)}{ended}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    if not said:
        return True, "killed"
    return said[0] == "1", said[1:]


def every_call(
    work: Callable[[], object], prepare: Callable[[], None], modes: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Runs it once for each call and mode; gives these two after each."""
    for at in itertools.count(1):
        reached = False
        for mode in modes:
            prepare()
            killed, ended = run(work, at, mode)
            if killed and ended == "killed":
                yield at, mode
            reached = reached or killed
        if not reached:
            return


def recovered(one: Checkpoint) -> dict[str, object]:
    """What a dry run says, what the recovery says, and what the file then is; then all is undone."""
    torn = one.disk()
    planned = in_place.recover(one.path, dry_run=True)
    touched = torn != one.disk()
    did = in_place.recover(one.path)
    seen = one.seen()
    again = in_place.recover(one.path)
    step = seen["step"]
    if step == len(one.contents) - 2:
        # A following fix.
        in_place.change_in_place(one.path, one.change)
    fixed = one.path.read_bytes() == one.contents[-1] or step not in (len(one.contents) - 1, len(one.contents) - 2)
    with suppress(CheckpointError):
        in_place.undo(one.path)
    return {
        **seen,
        "touched_by_dry_run": touched,
        "planned": (planned and planned.finished) == (did and did.finished),
        "finished": did.finished if did else None,
        "text": did.text if did else "",
        "settled": again is None,
        "fixed": fixed,
        "undone": one.path.read_bytes() == ORIGINAL and one.seen()["beside"] == [] and one.seen()["dated"],
    }


def kill_everywhere(folder: Path) -> Iterator[dict[str, object]]:
    """The change and the undo; then the recovery of each different thing that they left."""
    for kind in CHANGES:
        one = Checkpoint(folder, kind)
        last = len(CHANGES[kind])
        works = {
            "change": (lambda one=one: in_place.change_in_place(one.path, one.change), last - 1),
            "undo": (lambda one=one: in_place.undo(one.path), last),
        }
        for name, (work, steps) in works.items():
            left = {}
            prepare = lambda one=one, steps=steps: one.fresh(steps)  # noqa: E731
            for at, mode in every_call(work, prepare, KILLS):
                disk = one.disk()
                left[_without_dates(disk)] = (at, mode, disk)
                yield {"kind": kind, "run": name, "at": at, "mode": mode, **recovered(one)}
            for at, mode, disk in left.values():
                prepare = lambda one=one, disk=disk: one.restore(disk)  # noqa: E731
                recover = lambda one=one: in_place.recover(one.path)  # noqa: E731
                # After a call is before the next.
                for then, how in every_call(recover, prepare, (BEFORE, HALF)):
                    yield {"kind": kind, "run": f"{name} {at} {mode}", "at": then, "mode": how, **recovered(one)}


def _without_dates(disk: dict[str, tuple[bytes, int]]) -> frozenset[tuple[str, bytes]]:
    return frozenset((name, content) for name, (content, _) in disk.items())


def fail_everywhere(folder: Path) -> Iterator[dict[str, object]]:
    """Calls fail instead: once, or all from then on, as on a full disk; or only half is written."""
    for kind in CHANGES:
        one = Checkpoint(folder, kind)
        last = len(CHANGES[kind])
        works = {
            "change": (lambda one=one: in_place.change_in_place(one.path, one.change), last - 1),
            "undo": (lambda one=one: in_place.undo(one.path), last),
        }
        for (name, (work, steps)), (mode, error) in itertools.product(works.items(), FAILURES):
            for at in itertools.count(1):
                one.fresh(steps)
                reached, ended = run(work, at, mode, error)
                if not reached:
                    break
                seen = one.seen()
                yield {
                    "kind": kind,
                    "run": name,
                    "at": at,
                    "mode": mode,
                    "error": error,
                    "ended": ended,
                    "seen": seen,
                    **recovered(one),
                }


def log_runs(folder: Path, logs: Path) -> None:
    """What each change, undo and recovery does to the disk, in the order in which it does it."""
    for kind in CHANGES:
        one = Checkpoint(folder, kind)
        last = len(CHANGES[kind])
        one.fresh(last - 1)
        run(lambda one=one: in_place.change_in_place(one.path, one.change), 0, 0, log=logs / f"{kind}.change")
        one.fresh(last)
        run(lambda one=one: in_place.undo(one.path), 0, 0, log=logs / f"{kind}.undo")
        # Half of the patches written, and all that is appended.
        one.fresh(last)
        with one.path.open("r+b") as file:
            for patch in one.change.patches[:1]:
                file.seek(patch.offset)
                file.write(patch.old)
        if not one.change.patches:
            os.truncate(one.path, one.change.size + 5)
        run(lambda one=one: in_place.recover(one.path), 0, 0, log=logs / f"{kind}.recover")


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "log":
        log_runs(folder, Path(sys.argv[3]))
        return
    for result in {"kill": kill_everywhere, "fail": fail_everywhere}[what](folder):
        print(json.dumps(result))


if __name__ == "__main__":
    assert journal.SUFFIX == ".ddpdoctor-undo"
    main()
