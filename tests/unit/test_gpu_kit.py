"""The GPU kit's own machinery: what hangs costs its deadline, what is done is on disk, nothing is called passed that was not."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests import hardware_page
from tests.command import ROOT
from tests.gpu import running
from tests.gpu.__main__ import NEEDED, how_to_bring, lacking
from tests.gpu.kit import PARTS, Machine
from tests.gpu.outcomes import Outcome, Record, Row, changes, read_record
from tests.unit import kit_parts

MACHINE = Machine(gpus=1, rehearsal=True)
OWN = [part for part in PARTS if part.work.__module__ == kit_parts.__name__]


@pytest.fixture(autouse=True)
def only_real_parts_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests see are the kit's parts; these are run by name."""
    monkeypatch.setattr(running, "PARTS", [part for part in PARTS if part not in OWN])


def run(name: str, folder: Path, deadline: float = 30) -> Row:
    return running.run_part(next(part for part in OWN if part.name == name), MACHINE, folder / name, deadline, 1.0)


def test_what_fails_is_told_with_all_that_was_seen(tmp_path: Path) -> None:
    row = run("test-fails", tmp_path)
    assert (row.outcome, row.reason, row.seen) == (Outcome.FAILED, "two and two are five", {"number": 7})
    assert row.differs == ("a colour: expected 'red', found 'blue'",)
    assert "what it printed" in row.output
    assert row.imports > 0


def test_what_is_not_possible_says_why(tmp_path: Path) -> None:
    row = run("test-not-possible", tmp_path)
    assert (row.outcome, row.reason) == (Outcome.NOT_POSSIBLE, "there is no such machine")


@pytest.mark.parametrize(("name", "word"), [("test-breaks", "KeyError: 'bug'"), ("test-dies", "without a word (-9)")])
def test_a_part_that_breaks_has_failed(tmp_path: Path, name: str, word: str) -> None:
    row = run(name, tmp_path)
    assert row.outcome is Outcome.FAILED
    assert word in row.reason


def test_what_hangs_costs_its_deadline_says_where_and_leaves_nothing(tmp_path: Path) -> None:
    row = run("test-hangs", tmp_path, deadline=5)
    assert (row.outcome, row.reason) == (Outcome.FAILED, "did not end within 5 s")
    assert "kit_parts.py" in row.output
    pid = int((tmp_path / "test-hangs" / "work" / "pid").read_text())
    assert (
        not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    )


def record_of(*rows: tuple[str, Outcome, str]) -> Record:
    return Record(rows=tuple(Row(part=name, title="", outcome=outcome, reason=why) for name, outcome, why in rows))


def test_the_difference_to_an_earlier_run(tmp_path: Path) -> None:
    earlier = record_of(("a", Outcome.FAILED, "why"), ("b", Outcome.PASSED, ""))
    later = record_of(("a", Outcome.PASSED, ""), ("b", Outcome.PASSED, ""), ("c", Outcome.PASSED, ""))
    assert changes(earlier, later) == ["a: passed (before: failed: why)", "c: passed (was not run before)"]
    assert changes(later, later) == []
    later.written_to(tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == later


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 2}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ValueError, match=r"record\.json"):
        read_record(tmp_path / "record.json")


def test_with_no_time_left_nothing_is_begun_and_all_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running.parts.machine, "look", lambda folder, rehearsal: (MACHINE, {"gpus": []}, 1.0))
    monkeypatch.setattr(running, "PARTS", [part for part in OWN if part.name in ("test-passes", "test-fails")])
    assert running.run_all([], 0.0, tmp_path / "none", None, rehearsal=True) == 0
    rows = read_record(tmp_path / "none" / "record.json").rows
    assert [(row.outcome, row.reason) for row in rows] == [
        (Outcome.NOT_POSSIBLE, "the 0 s for the whole were used up")
    ] * 2
    earlier = tmp_path / "none" / "record.json"
    assert running.run_all([], 60.0, tmp_path / "all", earlier, rehearsal=True) == 1
    rows = read_record(tmp_path / "all" / "record.json").rows
    assert {row.part: row.outcome for row in rows} == {"test-passes": Outcome.PASSED, "test-fails": Outcome.FAILED}
    with tarfile.open(tmp_path / "all" / "kept.tar.gz") as kept:
        assert "test-passes/recorded.txt" in kept.getnames()
    printed = capsys.readouterr().out
    assert "test-passes: passed (before: not possible here" in printed
    assert "A rehearsal: this says nothing of any GPU." in printed
    assert running.run_all(["test-nonsense"], 60.0, tmp_path / "all", None, rehearsal=True) == 2


def kit(*arguments: str, seconds: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def test_the_parts_are_listed_with_their_time() -> None:
    listed = kit("--list").stdout.splitlines()
    assert len(listed) > 40
    assert listed[0].startswith("check ")
    assert listed[-1].startswith("all ")
    names = [part.name for part in PARTS]
    assert len(names) == len(set(names))


def test_without_a_gpu_it_says_so_and_runs_nothing(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    ended = kit("--output", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert "can use no GPU here" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out" / "record.json").exists()


def test_what_is_missing_is_said_with_the_way_to_bring_it() -> None:
    assert lacking() == []
    said = how_to_bring(["msgspec", "torch"])
    assert "-d wheels msgspec\n" in said
    assert "CUDA build of torch" in said
    assert "msgspec" in NEEDED


@pytest.mark.tool("gcc")
@pytest.mark.timeout(200)
def test_a_rehearsal(tmp_path: Path) -> None:
    """Parts of each kind: facts against stand-ins, a smoke training with a fault, a checkpoint."""
    only = [word for name in ("nvidia-smi", "driver", "smoke-fail", "checkpoint-pinned") for word in ("--only", name)]
    ended = kit("--rehearse", "--output", str(tmp_path), *only, seconds=180)
    record = read_record(tmp_path / "record.json")
    assert {row.part: (row.outcome, row.reason) for row in record.rows} == dict.fromkeys(
        ["nvidia-smi", "driver", "smoke-fail", "checkpoint-pinned"], (Outcome.PASSED, "")
    )
    assert ended.returncode == 0
    assert record.rehearsal


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_whole_rehearsal(tmp_path: Path) -> None:
    ended = kit("--rehearse", "--output", str(tmp_path), seconds=800)
    failed = {
        row.part: row.reason for row in read_record(tmp_path / "record.json").rows if row.outcome is Outcome.FAILED
    }
    assert failed == {}
    assert ended.returncode == 0


def test_the_page_tells_of_real_gpus_alone() -> None:
    assert "run on no GPU yet" in hardware_page.page([])
    machine = {"gpus": ["NVIDIA H100", "NVIDIA H100"], "driver": "580.95.05", "torch": "2.13.0+cu130"}
    rows = (
        Row(part="smoke", title="smoke trains", outcome=Outcome.PASSED),
        Row(part="xid", title="a | b", outcome=Outcome.NOT_POSSIBLE, reason="no | log", differs=("more",)),
    )
    page = hardware_page.page([Record(date="2027-01-02", machine=machine, rows=rows)])
    assert "2 x NVIDIA H100, 2027-01-02" in page
    assert "| `xid` | a \\| b | not possible here | no \\| log |" in page
    assert "- `xid`: more" in page
    assert "run on no GPU yet" not in page


def test_records_that_are_kept_are_of_gpus() -> None:
    assert not any(read_record(path).rehearsal for path in hardware_page.RECORDS.glob("*.json"))
