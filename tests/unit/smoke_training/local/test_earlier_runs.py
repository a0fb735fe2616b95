"""Which folders are of dead runs of this user's, and what of their shared memory may go."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.probes.smoke_notes import NOTES, PREFIX, dead_runs
from ddpdoctor.processes.leftovers.all_kinds import leftovers_of
from ddpdoctor.report.reported_leftovers import Certainty
from ddpdoctor.smoke_training.local.leftovers import clear_up_earlier_runs
from tests.support.other_users import User
from tests.support.process_trees import ME, Host


class Run:
    """A folder as a run leaves it, and three segments of which it noted two, one by another name."""

    def __init__(self, place: Path) -> None:
        self.environ = {"TMPDIR": os.fspath(place)}
        self.shared = place / "shared"
        self.shared.mkdir()
        self.folder = place / f"{PREFIX}abc"
        self.folder.mkdir(mode=0o700)
        lines = []
        for name, noted in (
            ("sem.mp-aaaaaaaa", "sem.mp-aaaaaaaa"),
            ("sem.mp-bbbbbbbb", "sem.mp-cccccccc"),
            ("model.bin", ""),
        ):
            path = self.shared / name
            path.touch(mode=0o600)
            state = path.stat()
            lines += [f"{state.st_dev} {state.st_ino} {noted}\n"] if noted else []
        self.notes = self.folder / NOTES
        self.notes.write_text("".join(lines) + "12 half a li")

    def cleared(self) -> list[str]:
        clear_up_earlier_runs(self.environ, os.fspath(self.shared))
        return sorted(path.name for path in self.shared.iterdir())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


ALL = ["model.bin", "sem.mp-aaaaaaaa", "sem.mp-bbbbbbbb"]


def test_what_it_noted_goes_and_nothing_else(run: Run) -> None:
    assert run.cleared() == ["model.bin", "sem.mp-bbbbbbbb"]
    assert not run.folder.exists()


def test_while_its_keeper_lives_nothing_is_touched(run: Run) -> None:
    with run.notes.open() as notes:
        fcntl.flock(notes, fcntl.LOCK_EX)
        assert run.cleared() == ALL
    assert run.folder.exists()


@pytest.mark.parametrize("by", ["command", "environment"])
def test_while_somebody_names_its_folder_nothing_is_touched(run: Run, by: str) -> None:
    folder = os.fspath(run.folder)
    words = [sys.executable, "-c", "print(flush=True); input()", *([folder] if by == "command" else [])]
    environ = {"TMPDIR": folder} if by == "environment" else {}
    with subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alive:
        assert alive.stdout
        alive.stdout.readline()
        assert run.cleared() == ALL
        alive.communicate(b"\n")
    assert run.cleared() != ALL


@pytest.mark.parametrize("how", ["open to others", "a link", "notes that are a link", "two names"])
def test_what_others_may_have_made_is_not_believed(run: Run, how: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    if how == "open to others":
        run.folder.chmod(0o770)
    elif how == "a link":
        run.folder.rename(other)
        run.folder.symlink_to(other)
    elif how == "notes that are a link":
        run.notes.rename(other)
        run.notes.symlink_to(other)
    else:
        os.link(run.notes, other)
    assert run.cleared() == ALL


@pytest.mark.root
def test_root_believes_nobody_elses(eve: User, shared: Path) -> None:
    victim = Path("/dev/shm/sem.mp-vvvvvvvv")
    victim.touch(mode=0o600)
    try:
        state = victim.stat()
        folder = shared / f"{PREFIX}eve"
        eve.does(f"mkdir -m 700 {folder}; echo '{state.st_dev} {state.st_ino} {victim.name}' > {folder}/{NOTES}")
        assert not list(dead_runs({"TMPDIR": os.fspath(shared)}))
        clear_up_earlier_runs({"TMPDIR": os.fspath(shared)})
        assert victim.exists()
        assert folder.exists()
    finally:
        victim.unlink()


@pytest.mark.parametrize(("by_smoke", "certainty"), [(True, Certainty.PROVEN), (False, Certainty.DOUBT)])
def test_zombies_is_sure_of_what_smoke_noted(by_smoke: bool, certainty: Certainty) -> None:
    path = "/dev/shm/sem.mp-n_vjzf9h"
    segment = Segment(path=path, uid=ME, age=99.0, device=1, inode=7, by_smoke=by_smoke)
    shared = SharedMemory(size=1 << 30, free=1 << 30, stale=(path,), segments=(segment,))
    (one,) = leftovers_of(*Host(Random(1)).facts(), shared)
    assert one.certainty is certainty
    assert ("earlier `ddpdoctor smoke`" in one.why) is by_smoke
