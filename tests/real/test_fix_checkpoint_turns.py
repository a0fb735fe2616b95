"""Many runs of `ddpdoctor fix-checkpoint` at once on one file, as when every rank of a job begins with it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from ddpdoctor.checkpoints.fixing import Action, EditOptions, fix, undo
from ddpdoctor.checkpoints.writing import lock_retry as turns
from tests.real.test_fix_checkpoint_command import same, saved, weights
from tests.support.command import command, ddpdoctor, plain_environ

RUNS = 8


def all_at_once(*arguments: str | Path) -> list[tuple[int, str]]:
    """Exit code and what was said, of each run."""
    runs = [
        subprocess.Popen(
            command("fix-checkpoint", *arguments),
            env=plain_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(RUNS)
    ]
    said = [run.communicate(timeout=120)[0] for run in runs]
    return [(process.returncode, text) for process, text in zip(runs, said, strict=True)]


@pytest.mark.parametrize("zipped", [True, False])
def test_one_fixes_the_file_and_the_others_find_it_clean(tmp_path: Path, zipped: bool) -> None:
    path = saved(tmp_path / "ckpt.pt", weights(), _use_new_zipfile_serialization=zipped)
    before = path.read_bytes()
    for _ in range(3):
        ended = all_at_once(path)
        assert [code for code, _ in ended] == [0] * RUNS, ended
        assert Counter(text.split()[0] for _, text in ended) == {"FIXED": 1, "CLEAN": RUNS - 1}, ended
        assert same(torch.load(path, weights_only=True), weights())
        assert ddpdoctor("fix-checkpoint", "--undo", path).returncode == 0
        assert path.read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == ["ckpt.pt"]


def without_turns(folder: Path) -> None:
    """One run in a process of its own, on a file system that locks files and not folders."""
    program = """
import sys
from pathlib import Path
from ddpdoctor.checkpoints import fixing
from ddpdoctor.checkpoints.writing import lock_retry
lock_retry._locked = lambda folder: True
# On a busy machine all that look at once take long, and so refuse each other for longer: the pauses grow until they are longer than that.
lock_retry._MAX_WAIT_SECONDS, lock_retry._MAX_PAUSE_SECONDS = 200.0, 20.0
outcome = fixing.fix(Path(sys.argv[1]), fixing.EditOptions())
print(outcome.action.value, outcome.error)
"""
    # The name by which another run is known.
    (folder / "ddpdoctor").write_text(program)


def test_without_locks_on_folders_they_come_to_the_same_by_chance(tmp_path: Path) -> None:
    path = saved(tmp_path / "ckpt.pt", weights())
    without_turns(tmp_path)
    runs = [
        subprocess.Popen(
            [sys.executable, tmp_path / "ddpdoctor", path],
            env=plain_environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(RUNS)
    ]
    said = [run.communicate(timeout=300)[0] for run in runs]
    assert Counter(said) == {"fixed \n": 1, "clean \n": RUNS - 1}
    assert same(torch.load(path, weights_only=True), weights())


def test_a_folder_that_is_never_unlocked_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_MAX_WAIT_SECONDS", 0.2)
    path = saved(tmp_path / "ckpt.pt", weights())
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        assert fix(path, EditOptions()).action is Action.FIXED
        assert undo(path).action is Action.UNDONE
    finally:
        os.close(folder)


def test_a_reader_of_another_kind_is_named_at_once(tmp_path: Path) -> None:
    path = saved(tmp_path / "ckpt.pt", weights())
    with path.open("rb"):
        outcome = fix(path, EditOptions())
    assert outcome.action is Action.REFUSED
    assert f"pid {os.getpid()}" in outcome.error
