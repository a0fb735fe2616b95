"""Snapshots out of files, folders and pipes: with launchers' prefixes, cut, foreign, hostile; each costs a line and not the sweep."""

from __future__ import annotations

import io
import json
import os
import time
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from ddpdoctor.base.findings import FAIL, Finding, Owner
from ddpdoctor.checks.catalogue import select
from ddpdoctor.engine.snapshot_lines import to_lines
from ddpdoctor.engine.snapshots import encode_line, encode_snapshot
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.fleet_sweep import sources
from ddpdoctor.fleet_sweep.judging import FleetJudge
from ddpdoctor.fleet_sweep.sources import SnapshotSource, find_sources, read_source
from ddpdoctor.fleet_sweep.sweep import MAX_WORDINGS, FleetFinding, Sweep, SweepBuilder
from ddpdoctor.fleet_sweep.sweeping import judge_all, sweep_over
from tests.support.fixture_hosts import healthy_facts, to_snapshot


def host(name: str) -> Snapshot:
    return msgspec.structs.replace(to_snapshot(healthy_facts("cpu-laptop")), host=name)


def swept(*inputs: str, stdin: bytes = b"") -> Sweep:
    judge = FleetJudge(())
    judge_all(judge, list(find_sources(inputs, io.BytesIO(stdin))))
    return judge.sweep


PREFIXES = {
    "none": ("", ""),
    "srun": ("0: ", "1: "),
    "srun of many": (" 0: ", "10: "),
    "mpirun": ("[1,0]<stdout>:", "[1,1]<stdout>:"),
    "pdsh and clush": ("node01: ", "node02: "),
    "kubectl": ("[pod/snapshots-0-abcde/main] ", "[pod/snapshots-1-fghij/main] "),
}


@pytest.mark.parametrize("launcher", PREFIXES)
@pytest.mark.parametrize("form", ["one line", "short lines"])
def test_a_pipe_with_a_launchers_prefixes(launcher: str, form: str) -> None:
    texts = [
        (encode_line(host(name)).decode() if form == "one line" else to_lines(host(name))).splitlines()
        for name in ("node01", "node02")
    ]
    labelled = [[f"{prefix}{line}" for line in lines] for prefix, lines in zip(PREFIXES[launcher], texts, strict=True)]
    mixed = [line for pair in zip(*labelled, strict=False) for line in pair]
    rest = [line for lines in labelled for line in lines[min(map(len, labelled)) :]]
    sweep = swept("-", stdin="\n".join([*mixed, *rest]).encode())
    assert (sorted(sweep.hosts), sweep.problems) == (["node01", "node02"], [])


def test_indented_snapshots_one_after_the_other() -> None:
    sweep = swept("-", stdin=encode_snapshot(host("n1")) + encode_snapshot(host("n2")))
    assert (sorted(sweep.hosts), sweep.problems) == (["n1", "n2"], [])


GOOD = encode_line(host("good"))
BAD = {
    "truncated": (GOOD[: len(GOOD) // 2], "ends too early"),
    "foreign": (b'{"name": "x"}\n', "not a snapshot"),
    "lone brace": (b"{\n", "ends too early"),
    "lone brace, then words": (b"{\n  retrying\n", "not valid JSON"),
    "cut indented": (encode_snapshot(host("n9"))[:500] + b"\n", "ends too early"),
    "newer": (GOOD.replace(b'"ddpdoctor_snapshot":1', b'"ddpdoctor_snapshot":99'), "newer ddpdoctor"),
    "deep": (b'{"ddpdoctor_snapshot":1,"extra":' + b"[" * 200_000 + b"\n", "not valid JSON"),
    "noise": (
        b"node07: bash: line 1: ddpdoctor: command not found\n",
        "node07: no snapshot, but: bash: line 1: ddpdoctor",
    ),
    "controls": (GOOD.replace(b'"host":"good"', b'"host":"\\u001b[31mgood\\u0007"'), "no host is called"),
    "nameless": (GOOD.replace(b'"host":"good"', b'"host":""'), "which host"),
    "long name": (GOOD.replace(b'"host":"good"', b'"host":"' + b"n" * 100_000 + b'"'), "no host is called"),
    "escapes": (b"\x1b[2J\x1b]0;x\x07 boo\n", "no snapshot"),
    "not UTF-8": (b'{"ddpdoctor_snapshot":1,"host":"\xff\xfe"}\n', ""),
    "lost line": (to_lines(host("n9")).encode().partition(b"\n")[2], "didn't arrive"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_bad_is_named_and_costs_no_other_host(kind: str) -> None:
    line, words = BAD[kind]
    line = line if line.endswith(b"\n") else line + b"\n"
    sweep = swept("-", stdin=encode_line(host("n1")) + line + encode_line(host("n2")))
    assert sorted(sweep.hosts) == ["n1", "n2"]
    (problem,) = sweep.problems
    assert words in problem
    assert problem.isprintable()
    assert len(problem) < 600


@pytest.mark.parametrize("prefix", ["", "node02: ", "[pod/snapshots-1-fghij/main] "])
@pytest.mark.parametrize("form", ["one line", "short lines"])
def test_a_lone_brace_costs_no_host_that_comes_after_it(prefix: str, form: str) -> None:
    text = encode_line(host("n1")).decode() if form == "one line" else to_lines(host("n1"))
    lines = "".join(f"{prefix}{line}\n" for line in text.splitlines())
    sweep = swept("-", stdin=f"{{\n{lines}".encode())
    assert list(sweep.hosts) == ["n1"]
    assert len(sweep.problems) == 1


def test_a_lone_brace_before_an_indented_snapshot() -> None:
    sweep = swept("-", stdin=b"{\n" + encode_snapshot(host("n1")))
    assert (list(sweep.hosts), len(sweep.problems)) == (["n1"], 1)


def test_many_lines_after_a_brace_take_no_longer_each() -> None:
    def seconds(lines: int) -> float:
        began = time.process_time()
        assert len(swept("-", stdin=b"{\n" + b"\n" * lines).problems) == 1
        return time.process_time() - began

    # Ten times as many take a hundred times as long where each line looks at all before it.
    assert seconds(20_000) < 30 * (seconds(2_000) + 0.01)


def test_a_saved_output_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_SNAPSHOT_BYTES", 1 << 20)
    line = b'{"ddpdoctor_snapshot":1,"x":"' + b"x" * 100_000 + b'"}\n'
    with (tmp_path / "srun.out").open("wb") as file:
        file.writelines(line for _ in range(100))
    tracemalloc.start()
    try:
        found = sum(1 for _ in read_source(SnapshotSource("srun.out", path=str(tmp_path / "srun.out"))))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == 100
    assert most < 5 << 20


def test_a_duplicate_is_named() -> None:
    sweep = swept("-", stdin=GOOD + GOOD)
    assert list(sweep.hosts) == ["good"]
    assert "two snapshots are of this host" in sweep.problems[0]


def test_a_line_that_never_ends_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_SNAPSHOT_BYTES", 1 << 20)
    sweep = swept("-", stdin=b'{"ddpdoctor_snapshot":1,"x":"' + b"x" * (5 << 20) + b'"}\n' + GOOD)
    assert list(sweep.hosts) == ["good"]
    assert len(sweep.problems) == 1
    assert "larger than 1 MiB" in sweep.problems[0]


def test_noise_of_many_hosts_is_one_line() -> None:
    lines = "".join(f"node{number:02}: bash: ddpdoctor: command not found\n" for number in range(64))
    assert swept("-", stdin=lines.encode()).problems == [
        "standard input, node00, node01, node02 and others: no snapshot, but: bash: ddpdoctor: command not found"
    ]


def test_a_folder_with_all_sorts_of_things(tmp_path: Path) -> None:
    (tmp_path / "n1.json").write_bytes(encode_snapshot(host("n1")))
    (tmp_path / "n2.json").write_bytes(encode_line(host("n2")))
    (tmp_path / "srun.out").write_text("".join(f"0: {line}\n" for line in to_lines(host("n3")).splitlines()))
    (tmp_path / "notes.md").write_text("not looked at")
    (tmp_path / "cut.json").write_bytes(encode_snapshot(host("n4"))[:500])
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    sweep = swept(str(tmp_path), str(tmp_path / "missing.json"))
    assert sorted(sweep.hosts) == ["n1", "n2", "n3"]
    assert [Path(problem.partition(": ")[0]).name for problem in sweep.problems] == [
        "cut.json", "folder.json", "loop.json", "pipe.json", "missing.json",
    ]  # fmt: skip


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    assert "there is no file in it" in swept(str(tmp_path)).problems[0]


def test_two_processes_come_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.fleet_sweep.sweeping.MIN_FOR_WORKERS", 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    for number in range(40):
        (tmp_path / f"n{number:02}.json").write_bytes(encode_line(host(f"n{number:02}")))
    (tmp_path / "cut.json").write_bytes(GOOD[:500])

    checks = select(["host"])
    many = sweep_over(find_sources([str(tmp_path)], None), checks, None)
    judge = FleetJudge(checks)
    judge_all(judge, list(find_sources([str(tmp_path)], None)))
    assert many.problems == judge.sweep.problems
    assert many.read == judge.sweep.read == 41
    for name, alone in judge.sweep.hosts.items():
        other = many.hosts[name]
        assert (other.verdict, other.states, other.source) == (alone.verdict, alone.states, alone.source)
        assert dict(many.facts_of(other)) == dict(judge.sweep.facts_of(alone))
        assert [found.slug for found in many.findings_of(other)] == [
            found.slug for found in judge.sweep.findings_of(alone)
        ]


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.fleet_sweep.sweeping.MIN_FOR_WORKERS", 16)
    monkeypatch.setattr("ddpdoctor.fleet_sweep.sweeping._WORKER", "import os; os.kill(os.getpid(), 9)")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    for number in range(40):
        (tmp_path / f"n{number:02}.json").write_bytes(encode_line(host(f"n{number:02}")))
    sweep = sweep_over(find_sources([str(tmp_path)], None), (), None)
    assert sweep.hosts == {}
    assert all("was ended by SIGKILL" in problem for problem in sweep.problems)


def test_whose_a_finding_is_is_kept_where_there_are_too_many_wordings() -> None:
    builder = SweepBuilder(())

    def owner_of(number: int, owner: Owner) -> Owner:
        text = f"wording {number}"
        found = FleetFinding(
            key=text, slug="made-up", family="", severity=FAIL, owner=owner, finding=Finding(text), docs="", host="n"
        )
        return builder.sweep.findings[builder.finding(found)].owner

    assert {owner_of(number, Owner.USER) for number in range(2 * MAX_WORDINGS)} == {Owner.USER}
    assert owner_of(0, Owner.NODE) is owner_of(10 * MAX_WORDINGS, Owner.NODE) is Owner.NODE
    assert len(builder.sweep.findings) == MAX_WORDINGS + 2


def test_json_of_a_line_is_that_of_the_file() -> None:
    assert json.loads(encode_line(host("n1"))) == json.loads(encode_snapshot(host("n1")))
    assert encode_line(host("n1")).count(b"\n") == 1
