"""Snapshots out of files, folders and pipes: with launchers' prefixes, cut, foreign, hostile; each costs a line and not the sweep."""

from __future__ import annotations

import io
import itertools
import json
import os
import time
import tracemalloc
from collections.abc import Callable
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


FORMS: dict[str, Callable[[Snapshot], str]] = {
    "one line": lambda snapshot: encode_line(snapshot).decode(),
    "short lines": to_lines,
    "indented": lambda snapshot: encode_snapshot(snapshot).decode(),
}


def launched(launcher: str, form: str) -> tuple[list[str], list[str]]:
    """The lines of two hosts, as the launcher hands them on."""
    first, second = (
        [f"{prefix}{line}" for line in FORMS[form](host(name)).splitlines()]
        for prefix, name in zip(PREFIXES[launcher], ("node01", "node02"), strict=True)
    )
    return first, second


def mixed(first: list[str], second: list[str]) -> str:
    """A line of the one and a line of the other in turn."""
    pairs = itertools.zip_longest(first, second)
    return "\n".join(line for pair in pairs for line in pair if line is not None) + "\n"


@pytest.mark.parametrize("launcher", PREFIXES)
@pytest.mark.parametrize("form", FORMS)
def test_a_pipe_with_a_launchers_prefixes(launcher: str, form: str) -> None:
    first, second = launched(launcher, form)
    # Without prefixes nobody can tell whose an indented line is.
    text = "\n".join([*first, *second]) if (launcher, form) == ("none", "indented") else mixed(first, second)
    sweep = swept("-", stdin=text.encode())
    assert (sorted(sweep.hosts), sweep.problems) == (["node01", "node02"], [])


@pytest.mark.parametrize("launcher", [launcher for launcher in PREFIXES if launcher != "none"])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_host_prints_beside_its_snapshot_is_no_problem(launcher: str, form: str, tmp_path: Path) -> None:
    first, second = launched(launcher, form)
    # To standard error, which mpirun marks.
    noise = [f"{prefix.replace('stdout', 'stderr')}Loading cuda/12.4" for prefix in PREFIXES[launcher]]
    text = mixed([noise[0], *first[:-1], noise[0], first[-1]], [noise[1], *second, noise[1]])
    (tmp_path / "job.out").write_text(text)
    for inputs in (("-",), (str(tmp_path),)):
        sweep = swept(*inputs, stdin=text.encode())
        assert (sorted(sweep.hosts), sweep.problems) == (["node01", "node02"], [])


def test_a_host_that_prints_something_else_alone_is_a_problem() -> None:
    first, _ = launched("pdsh and clush", "indented")
    sweep = swept("-", stdin=("\n".join(first) + "\nnode02: Loading cuda/12.4\n").encode())
    assert list(sweep.hosts) == ["node01"]
    assert sweep.problems == ["standard input, node02: no snapshot, but: Loading cuda/12.4"]


def read_in_chunks(tasks: list[str], size: int) -> str:
    """What `mpirun --tag-output` makes of what its tasks write: so many bytes of one, then of the next, a tag before each and each line in it."""
    chunks = [[text[start : start + size] for start in range(0, len(text), size)] for text in tasks]
    handed_on = ""
    for turn in itertools.zip_longest(*chunks, fillvalue=""):
        for rank, chunk in enumerate(turn):
            handed_on += "".join(f"[1,{rank}]<stdout>:{line}" for line in chunk.splitlines(keepends=True))
    return handed_on


@pytest.mark.parametrize("size", [97, 1000, 4095])
@pytest.mark.parametrize("form", FORMS)
def test_a_launcher_that_cuts_within_lines(form: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = read_in_chunks([FORMS[form](host(name)) for name in ("node01", "node02", "node03")], size)
    sweep = swept("-", stdin=text.encode())
    assert (sorted(sweep.hosts), sweep.problems) == (["node01", "node02", "node03"], [])
    # With too many lines begun, those that were first are cut, and the others named as well.
    monkeypatch.setattr(sources, "MAX_PENDING_BYTES", 2 * size)
    cut = swept("-", stdin=text.encode())
    assert len(cut.hosts) + len(cut.problems) >= 3


BANNERS = {
    "module": "Loading cuda/12.4\n  Loading requirement: gcc/12\n",
    "MPI": "[n1:00123] WARNING: There was an error initializing an OpenFabrics device.\n\n  Local host: n1\n",
    "login": "*" * 70 + "\n* Authorised users only {see policy}. *\n" + "*" * 70 + "\n",
    "escapes": "\x1b[2J\x1b]0;x\x07 welcome\n",
    "brace": "motd {\n",
}


@pytest.mark.parametrize("banner", BANNERS)
@pytest.mark.parametrize("form", FORMS)
def test_a_saved_file_that_begins_with_something_else(form: str, banner: str, tmp_path: Path) -> None:
    (tmp_path / "n1.json").write_text(BANNERS[banner] + FORMS[form](host("n1")))
    sweep = swept(str(tmp_path))
    assert list(sweep.hosts) == ["n1"]
    # It may be all that is left of another host's.
    assert len(sweep.problems) == (banner == "brace")


def test_what_comes_after_a_files_snapshot_and_between_two_is_named(tmp_path: Path) -> None:
    (tmp_path / "after.out").write_text(FORMS["one line"](host("n1")) + "srun: error: n2: task 1: Exited\n")
    first, second = FORMS["indented"](host("n3")), FORMS["one line"](host("n4"))
    (tmp_path / "two.out").write_text(f"lost\n{first}{second}")
    sweep = swept(str(tmp_path))
    assert sorted(sweep.hosts) == ["n1", "n3", "n4"]
    assert [problem.removeprefix(f"{tmp_path}/") for problem in sweep.problems] == [
        "after.out, srun: no snapshot, but: error: n2: task 1: Exited",
        "two.out, line 1: no snapshot, but: lost",
    ]


def test_a_file_without_a_snapshot_is_one_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.log").write_text("".join(f"epoch {number}\n" for number in range(5000)))
    monkeypatch.setattr(sources, "MAX_SNAPSHOT_BYTES", 1 << 16)
    (tmp_path / "large.log").write_bytes((b"\xff\x00\n" * 100_000) + GOOD)
    sweep = swept(str(tmp_path))
    assert [problem.removeprefix(f"{tmp_path}/") for problem in sweep.problems] == [
        "large.log: there is no snapshot in it; it begins: \ufffd\\x00",
        "train.log: there is no snapshot in it; it begins: epoch 0",
    ]


def test_indented_snapshots_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_bytes(b"".join(encode_snapshot(host(name)) for name in ("n1", "n2", "n3")))
    sweep = swept(str(tmp_path))
    assert (sorted(sweep.hosts), sweep.problems) == (["n1", "n2", "n3"], [])


def test_an_indented_snapshot_that_is_cut_costs_no_other_host() -> None:
    first, second = launched("srun", "indented")
    third = [line.replace("1: ", "2: ", 1).replace("node02", "node03") for line in second]
    sweep = swept("-", stdin=mixed(first, [*second[:40], *second, *third[:40]]).encode())
    assert sorted(sweep.hosts) == ["node01", "node02"]
    assert len(sweep.problems) == 2
    assert all("ends too early" in problem for problem in sweep.problems)
    assert "(1)" in sweep.problems[0]
    assert "(2)" in sweep.problems[1]


def test_beginnings_without_an_end_fill_no_memory_and_take_no_longer_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_PENDING_BYTES", 1 << 20)
    body = b"n%d:  " + b"x" * 5000 + b"\n"

    def seconds(hosts: int) -> float:
        lines = b"".join(b"n%d: {\n" % number + body % number for number in range(hosts))
        judge = FleetJudge(())
        began = time.process_time()
        tracemalloc.start()
        try:
            for source in find_sources(["-"], io.BytesIO(lines)):
                judge_all(judge, [source])
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 8 << 20
        assert len(judge.sweep.problems) == hosts
        return time.process_time() - began

    assert seconds(900) < 30 * (seconds(90) + 0.01)


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
