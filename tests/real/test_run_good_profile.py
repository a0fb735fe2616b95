"""`ddpdoctor run` compares a failure with the last good run of the same command."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.run import good_profile
from ddpdoctor.run.good_profile import MAX_PROFILES, keep_profile, last_good_run, name_of_run
from tests.support.command import command, plain_environ
from tests.support.other_users import User

TRAINING = """\
import sys
from pathlib import Path
steps = 57 if Path("ill").exists() else 200
for step in range(steps):
    print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
if steps < 200:
    print("volume seven: quota nearly used up")
    sys.exit(3)
print("finished")
"""
COMPARED = "Compared with the run of "


class Training:
    """A command that ends well, until it is made ill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        (folder / "train.py").write_text(TRAINING)

    def run(self, *options: str, state: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("run", *options, "--", sys.executable, "train.py"),
            cwd=self.folder,
            env=plain_environ() | {"XDG_STATE_HOME": str(state or self.state)} | environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def becomes_ill(self) -> None:
        (self.folder / "ill").touch()

    def kept(self) -> list[Path]:
        return sorted(self.state.rglob("*.json"))


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_what_is_new_and_where_it_stops_is_told(training: Training) -> None:
    good = training.run()
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.endswith("finished\n")
    (profile,) = training.kept()
    assert stat.S_IMODE(profile.stat().st_mode) == 0o600
    assert stat.S_IMODE(profile.parent.stat().st_mode) == 0o700
    training.becomes_ill()
    failed = training.run()
    assert failed.returncode == 3
    report = " ".join(failed.stderr.split())
    assert COMPARED in report
    assert "new volume seven: quota nearly used up" in report
    assert "missing finished" in report
    assert "57 such lines, where good runs have 200" in report


def test_a_failure_leaves_the_profile_of_the_good_run(training: Training) -> None:
    training.run()
    before = [path.read_bytes() for path in training.kept()]
    training.becomes_ill()
    assert [COMPARED in training.run().stderr for _ in range(2)] == [True, True]
    assert [path.read_bytes() for path in training.kept()] == before


def test_nothing_is_kept_or_compared_that_is_not_wished(training: Training) -> None:
    training.run("--no-remember")
    assert training.kept() == []
    training.run()
    training.becomes_ill()
    assert COMPARED not in training.run("--no-remember").stderr


@pytest.mark.parametrize(
    "environ", [{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, {"XDG_STATE_HOME": "relative"}]
)
def test_nothing_is_kept_by_another_rank_and_in_no_folder(training: Training, environ: dict[str, str]) -> None:
    assert training.run(**environ).returncode == 0
    assert training.kept() == []
    assert not (training.folder / "relative").exists()


WRITING = ("openat", "write", "fchown", "fchmod", "rename", "renameat", "renameat2", "close")
KEEPS = """\
from ddpdoctor.run.good_profile import keep_profile, last_good_run
keep_profile(["train"], last_good_run(["the new one"]))
"""


def test_whenever_it_is_killed_the_profile_is_the_one_before_or_the_new_one(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.run()
    monkeypatch.setenv("XDG_STATE_HOME", str(training.state))
    monkeypatch.chdir(training.folder)
    new = last_good_run([sys.executable, "train.py"])
    assert new is not None
    before = msgspec.structs.replace(new, name="the one before")
    keep_profile(["the new one"], new)
    left = set()
    for name in WRITING:
        keep_profile(["train"], before)
        # The last ones: those before are Python's own, as it starts.
        calls = kept_under(tmp_path / "trace", "-e", f"trace={name}").count(f"{name}(")
        for number in range(max(calls - 8, 1), calls + 1):
            keep_profile(["train"], before)
            kept_under(tmp_path / "trace", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}")
            profile = last_good_run(["train"])
            assert profile is not None, f"killed at {name} {number} of {calls}"
            left.add(profile.name)
    assert left == {before.name, new.name}


def kept_under(trace: Path, *options: str) -> str:
    """Keep the new profile under strace. Returns what that has seen."""
    line = ["strace", "-f", "-o", str(trace), *options, sys.executable, "-c", KEEPS]
    subprocess.run(
        line,
        env=plain_environ() | {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]},
        timeout=60,
        check=False,
        stderr=subprocess.DEVNULL,
    )
    return trace.read_text()


def test_a_command_in_another_folder_is_another_one(training: Training, tmp_path: Path) -> None:
    training.run()
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = Training(other)
    elsewhere.becomes_ill()
    assert COMPARED not in elsewhere.run(state=training.state).stderr


def test_a_folder_that_can_not_be_written_costs_no_word(training: Training) -> None:
    training.state.write_text("no folder")
    done = training.run()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"version": "0", "run": {}}', b"\xff" * 100, b"[" * 100_000])
def test_a_damaged_profile_is_none(training: Training, content: bytes) -> None:
    training.run()
    (profile,) = training.kept()
    profile.write_bytes(content)
    training.becomes_ill()
    failed = training.run()
    assert failed.returncode == 3
    assert COMPARED not in failed.stderr
    assert "Nothing in that tells why." in failed.stderr


def test_output_of_which_a_part_was_left_out_is_not_kept(training: Training) -> None:
    (training.folder / "train.py").write_text("for step in range(200_000):\n    print('step', step, 'x' * 99)\n")
    assert training.run().returncode == 0
    assert training.kept() == []


def test_the_last_ones_stay(tmp_path: Path, training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    training.run()
    monkeypatch.setenv("XDG_STATE_HOME", str(training.state))
    monkeypatch.chdir(training.folder)
    run = last_good_run([sys.executable, "train.py"])
    assert run is not None
    for number in range(MAX_PROFILES + 3):
        keep_profile([str(number)], run)
        newest = max(training.kept(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    assert len(training.kept()) == MAX_PROFILES
    assert [last_good_run([str(number)]) is None for number in (2, MAX_PROFILES + 2)] == [True, False]
    monkeypatch.setattr(good_profile, "MAX_BYTES", 100)
    keep_profile(["a large one"], run)
    assert last_good_run(["a large one"]) is None


def test_a_run_is_called_by_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    assert name_of_run(1_700_000_000.0) == "the run of 2023-11-14 22:13"


@pytest.mark.root
def test_what_another_user_could_have_put_there_is_not_believed(eve: User, shared: Path, training: Training) -> None:
    training.run()
    eve.does(f"mkdir -m 755 {shared}/hers")
    hers = shared / "hers" / "ddpdoctor"
    shutil.copytree(training.state / "ddpdoctor", hers)
    for path in (hers, *hers.rglob("*")):
        os.chown(path, eve.uid, -1)
    training.becomes_ill()
    assert COMPARED not in training.run(state=hers.parent).stderr


@pytest.mark.root
def test_nothing_is_put_where_another_user_decides(eve: User, shared: Path, training: Training, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    eve.does(f"mkdir -m 755 {shared}/hers; ln -s {precious} {shared}/hers/ddpdoctor")
    done = training.run(state=shared / "hers")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(precious.iterdir()) == []
