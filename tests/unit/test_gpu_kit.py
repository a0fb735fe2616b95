"""The GPU kit's own machinery: what hangs costs its deadline, what is done is on disk, nothing is called passed that was not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import hardware_page
from tests.gpu import running
from tests.gpu.__main__ import NEEDED, how_to_bring, lacking
from tests.gpu.anonymous import anonymiser
from tests.gpu.kit import MARK, PARTS, Kit, Machine, end_all_marked, has_mark, marked, programs
from tests.gpu.outcomes import Outcome, Record, Row, changes, read_record
from tests.gpu.parts.host import unknown_against
from tests.support.command import ROOT
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
    monkeypatch.setattr(running.parts.machine, "look", lambda folder, rehearsed: (MACHINE, {"gpus": []}, 1.0))
    monkeypatch.setattr(running, "PARTS", [part for part in OWN if part.name in ("test-passes", "test-fails")])
    assert running.run_all([], 0.0, tmp_path / "none", None, rehearsed_gpus=1) == 2
    rows = read_record(tmp_path / "none" / "record.json").rows
    assert [(row.outcome, row.reason) for row in rows] == [
        (Outcome.NOT_POSSIBLE, "the 0 s for the whole were used up")
    ] * 2
    earlier = tmp_path / "none" / "record.json"
    assert running.run_all([], 60.0, tmp_path / "all", earlier, rehearsed_gpus=1) == 1
    rows = read_record(tmp_path / "all" / "record.json").rows
    assert {row.part: row.outcome for row in rows} == {"test-passes": Outcome.PASSED, "test-fails": Outcome.FAILED}
    with tarfile.open(tmp_path / "all" / "kept.tar.gz") as kept:
        assert "test-passes/recorded.txt" in kept.getnames()
    printed = capsys.readouterr().out
    assert "test-passes: passed (before: not possible here" in printed
    assert "A rehearsal: this says nothing of any GPU." in printed
    assert running.run_all(["test-nonsense"], 60.0, tmp_path / "all", None, rehearsed_gpus=1) == 2


WHOLE = """
import sys
from pathlib import Path
from tests.gpu import running
from tests.gpu.kit import PARTS, Machine
from tests.unit import kit_parts
PARTS[:] = [part for name in sys.argv[2:] for part in PARTS if part.name == name]
running.parts.machine.look = lambda folder, rehearsed: (Machine(gpus=1, rehearsal=True), {"gpus": []}, 1.0)
sys.exit(running.run_all([], 60.0, Path(sys.argv[1]), None, rehearsed_gpus=1))
"""


@contextmanager
def whole_run(output: Path, *names: str) -> Iterator[subprocess.Popen[str]]:
    """A run of these parts in a process of its own, once its first part has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", WHOLE, str(output), *names], cwd=ROOT, env={**os.environ, "TMPDIR": str(output)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        while "[1/" not in process.stdout.readline():
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()
        (work,) = list(output.glob("ddpdoctor-gpu-*")) or [output / "none"]
        assert end_all_marked(str(work)) == []


def test_a_kit_that_is_killed_has_all_on_disk_that_was_done(tmp_path: Path) -> None:
    with whole_run(tmp_path, "test-passes", "test-hangs"):
        pass
    assert [row.part for row in read_record(tmp_path / "record.json").rows] == ["test-passes"]
    with tarfile.open(tmp_path / "kept.tar.gz") as kept:
        assert "test-passes/recorded.txt" in kept.getnames()


def test_a_kit_that_is_told_to_stop_ends_what_it_started_and_leaves_only_its_two_files(tmp_path: Path) -> None:
    with whole_run(tmp_path, "test-passes", "test-hangs") as process:
        (work,) = tmp_path.glob("ddpdoctor-gpu-*")
        until = time.monotonic() + 20
        while not (work / "test-hangs" / "work" / "pid").is_file():
            assert time.monotonic() < until
            time.sleep(0.05)
        process.terminate()
        assert process.wait(timeout=20) == 143
        assert marked(str(work)) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.tar.gz", "record.json"]


def test_parts_that_may_run_beside_each_other_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.parts.machine, "look", lambda folder, rehearsed: (MACHINE, {"gpus": []}, 1.0))
    monkeypatch.setattr(running, "PARTS", [part for part in OWN if part.name.startswith("test-meets")])
    monkeypatch.setattr(running, "lanes_here", lambda: 2)
    assert running.run_all([], 60.0, tmp_path, None, rehearsed_gpus=1) == 0


def test_those_alone_stay_alone() -> None:
    names = {part.name: [at for at, group in enumerate(running.groups(PARTS)) if part in group] for part in PARTS}
    assert all(len(where) == 1 for where in names.values())
    for group in running.groups(PARTS):
        assert len(group) == 1 or all(part.beside for part in group)
    for name in ("zombies", "speed", "context-memory", "hang-ras", "smoke-illegal-access", "smoke-endless-kernel"):
        assert [part.name for group in running.groups(PARTS) for part in group if len(group) == 1].count(name) == 1


def test_what_is_written_has_no_names_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.parts.machine, "look", lambda folder, rehearsed: (MACHINE, {"gpus": []}, 1.0))
    monkeypatch.setattr(running, "PARTS", [part for part in OWN if part.name == "test-tells-names"])
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    monkeypatch.setenv("HOME", "/home/somebody")
    assert running.run_all([], 60.0, tmp_path, None, rehearsed_gpus=1) == 0
    (row,) = read_record(tmp_path / "record.json").rows
    assert row.seen["told"] == "HOST at HOME in WORK/test-tells-names/work"
    assert len(row.seen["much"]) < 10_000
    with tarfile.open(tmp_path / "kept.tar.gz") as kept:
        told, dump = (kept.extractfile(f"test-tells-names/{name}") for name in ("told.txt", "dump"))
        assert told
        assert told.read().decode() == row.seen["told"]
        assert dump
        assert dump.read().startswith(b"\x80\x02")


def test_names_that_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node7.lab.example")
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    clean = anonymiser({"/tmp/x": "WORK"})
    text = "node7:12:13 node7.lab.example /tmp/x/a /tmp/xy ada node77 GPU-01234567-89ab-cdef-0123-456789abcdef adam"
    assert clean(text) == "HOST:12:13 HOST WORK/a /tmp/xy USER node77 GPU-UUID adam"
    assert clean("    Serial Number             : 1650123456\n") == "    Serial Number             : (number)\n"


def test_a_mark_is_of_a_folder_and_not_of_what_is_called_similarly() -> None:
    assert has_mark(f"A=1\0{MARK}=/kit/check\0B=2\0", "/kit/check")
    assert has_mark(f"{MARK}=/kit/check/parts/training-1\0", "/kit/check")
    assert not has_mark(f"{MARK}=/kit/checkpoint\0", "/kit/check")


def test_what_a_command_leaves_running_holds_nobody_up(tmp_path: Path) -> None:
    ran = Kit(MACHINE, tmp_path).run(["sh", "-c", "sleep 20 & echo said"])
    assert (ran.code, ran.stdout) == (0, "said\n")
    assert ran.seconds < 10
    assert end_all_marked(str(tmp_path)) == []


def test_programs_beside_this_python_and_among_unpacked_wheels_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert programs("/bin").split(":")[:2] == ["/bin", str(Path(sys.executable).parent)]
    assert str(tmp_path / "bin") in programs("/bin").split(":")


def test_what_is_known_there_and_not_here() -> None:
    unknown = {"type": "unknown", "reason": "why"}
    there = {"a": 1, "b": {"c": 2, "d": unknown}, "e": [{"f": 3}], "g": 4}
    here = {"a": unknown, "b": {"c": 2, "d": unknown}, "e": [{"f": unknown}], "h": unknown}
    assert sorted(unknown_against(there, here)) == ["a: why", "e[0].f: why"]


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
    assert f"manylinux2014_{platform.machine()}" in said
    assert "CUDA build of torch" in said
    assert "msgspec" in NEEDED


@pytest.mark.tool("gcc")
def test_a_rehearsal(tmp_path: Path) -> None:
    """Parts of two kinds: facts against stand-ins, a smoke training with a fault."""
    only = [word for name in ("nvidia-smi", "smoke-fail") for word in ("--only", name)]
    ended = kit("--rehearse", "--output", str(tmp_path), *only, seconds=180)
    record = read_record(tmp_path / "record.json")
    assert {row.part: (row.outcome, row.reason) for row in record.rows} == dict.fromkeys(
        ["nvidia-smi", "smoke-fail"], (Outcome.PASSED, "")
    )
    assert ended.returncode == 0
    assert record.rehearsal


def test_a_name_means_that_part_and_a_beginning_all_that_begin_so() -> None:
    assert [part.name for part in running.chosen(["check"])] == ["check"]
    assert {part.name for part in running.chosen(["hang-r", "zombies-a"])} == {
        "hang-ras", "hang-recorder", "zombies-at-work",
    }  # fmt: skip


@pytest.mark.root
@pytest.mark.thorough
@pytest.mark.tool("unshare")
def test_it_trains_on_a_host_without_a_network_whose_name_does_not_resolve(tmp_path: Path) -> None:
    script = 'hostname nowhere-at-all; ip link set lo up; exec "$@"'
    command = [sys.executable, "-m", "tests.gpu", "--rehearse", "1", "--only", "jobs", "--output", str(tmp_path)]
    subprocess.run(["unshare", "--uts", "--net", "sh", "-c", script, "sh", *command], cwd=ROOT, timeout=110, check=True)
    (row,) = read_record(tmp_path / "record.json").rows
    assert row.outcome is Outcome.PASSED
    assert "nowhere-at-all" not in (tmp_path / "record.json").read_text()


@pytest.mark.thorough
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("gpus", ["1", "2"])
def test_the_whole_rehearsal(tmp_path: Path, gpus: str) -> None:
    ended = kit("--rehearse", gpus, "--budget", "900", "--output", str(tmp_path), seconds=950)
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


def test_the_readme_says_whether_it_has_met_a_gpu() -> None:
    says_none = "run on no GPU yet" in " ".join((ROOT / "README.md").read_text().split())
    assert says_none is not bool(hardware_page.records())


@pytest.mark.parametrize("budget", ["0", "-5", "nan", "inf", "soon"])
def test_a_budget_is_a_number_of_seconds(budget: str) -> None:
    ended = kit("--budget", budget)
    assert ended.returncode == 2
    assert "argument --budget" in ended.stderr


def test_where_nothing_can_be_written_nothing_is_run() -> None:
    ended = kit("--rehearse", "--output", "/proc/nowhere")
    assert ended.returncode == 2
    assert (
        ended.stderr
        == "nothing can be written into /proc/nowhere: No such file or directory; --output names a folder\n"
    )


def test_records_that_are_kept_are_of_gpus() -> None:
    assert not any(read_record(path).rehearsal for path in hardware_page.RECORDS.glob("*.json"))
