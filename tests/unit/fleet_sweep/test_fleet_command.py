"""`fleet` as programs and people call it: who passes, the baseline, what changed, who did not answer, and each form of the report."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ddpdoctor
from ddpdoctor.engine.examination import Verdict
from ddpdoctor.engine.snapshot_lines import to_lines
from ddpdoctor.engine.snapshots import encode_line, encode_snapshot
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.fleet_sweep import sweeping
from ddpdoctor.knowledge.hostlist import FAILING_NODES, PASSING_NODES, expand
from tests.support.fixture_hosts import to_snapshot
from tests.support.fleet_of_fixtures import fleet_snapshots, host_name
from tests.support.report_schema import check_against_schema

Change = Callable[[int, dict[str, Any]], object]


def sick(number: int, facts: dict[str, Any]) -> None:
    if number == 2:
        facts["shared_memory"]["size"] = facts["shared_memory"]["free"] = 64 * 1024**2
    if number == 3:
        facts["driver"]["kernel_version"] = facts["driver"]["module_on_disk"] = "570.124.06"
    if number == 4:
        facts["environment"]["settings"].append({"name": "OMP_PLACES", "value": f"on {host_name(4)}"})


def written(folder: Path, count: int = 8, change: Change = sick) -> str:
    folder.mkdir()
    for facts in fleet_snapshots(count, change):
        (folder / f"{facts['host']}.json").write_text(json.dumps(facts))
    return str(folder)


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    return written(tmp_path / "nodes")


def test_who_passes_and_who_fails(fleet: str, tmp_path: Path) -> None:
    result = ddpdoctor.fleet([fleet], expect="node[00001-00010]")
    assert result.verdict is Verdict.FAIL
    assert result.failing == (host_name(2), host_name(9), host_name(10))
    assert len(result.passing) == 7
    result.write_nodes(tmp_path)
    assert (tmp_path / FAILING_NODES).read_text().split() == list(result.failing)
    assert (tmp_path / PASSING_NODES).read_text().split() == list(result.passing)
    assert set(result.outcome.odd_hosts) == {host_name(2), host_name(3), host_name(4)}
    text = result.to_text(width=200)
    assert "2 more did not answer" in text
    assert "Put no job on: node[00002,00009-00010]\n" in text
    assert "driver.kernel_version: node00003: 570.124.06, not 580.95.05 as on 7 of 8\n" in text


@pytest.mark.parametrize("euid", [0, 1000])
def test_the_lists_are_for_all_and_the_page_is_not(
    fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, euid: int
) -> None:
    result = ddpdoctor.fleet([fleet])
    (tmp_path / PASSING_NODES).touch(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    for path in result.write_nodes(tmp_path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o644  # noqa: PTH116
    result.write_html(tmp_path / "fleet.html")
    assert (stat.S_IMODE((tmp_path / "fleet.html").stat().st_mode) == 0o600) is (euid == 0)


def test_a_users_own_fault_takes_no_host_out(tmp_path: Path) -> None:
    def change(number: int, facts: dict[str, Any]) -> None:
        if number == 1:
            for setting in facts["environment"]["settings"]:
                if setting["name"] == "CUDA_VISIBLE_DEVICES":
                    setting["value"] = "0,1,2,3,4,5,6,9"

    result = ddpdoctor.fleet([written(tmp_path / "nodes", change=change)])
    assert {(finding.owner.value, finding.severity.value) for finding in result.findings} == {("user", "fail")}
    assert result.failing == ()
    assert result.exit_code() == 1


def test_expected_hosts_in_a_file(fleet: str, tmp_path: Path) -> None:
    (tmp_path / "nodes.txt").write_text("# all but one\nnode[00001-00007]  # of partition a\n\nlogin1\n")
    result = ddpdoctor.fleet([fleet], expect=str(tmp_path / "nodes.txt"))
    assert result.outcome.absent == ("login1",)
    assert result.outcome.unexpected == (host_name(8),)


@pytest.mark.parametrize(
    ("names", "expect", "absent", "unexpected"),
    [
        (["n1.a.org", "n2.a.org"], "n[1-2]", (), ()),
        (["n1", "n2"], "n1.a.org,n2.a.org,n3.a.org", ("n3.a.org",), ()),
        (["n1.a.org", "n1.b.org"], "n1", ("n1",), ("n1.a.org", "n1.b.org")),
        (["n1.a.org"], "n1.b.org", ("n1.b.org",), ("n1.a.org",)),
        (["n1", "n1.a.org"], "n1", (), ("n1.a.org",)),
        (["n1"], "n1.a.org,n1.b.org", ("n1.a.org", "n1.b.org"), ("n1",)),
    ],
)
def test_a_host_may_be_expected_by_its_short_name(
    names: list[str], expect: str, absent: tuple[str, ...], unexpected: tuple[str, ...]
) -> None:
    lines = "".join(
        json.dumps({**facts, "host": name}) + "\n"
        for name, facts in zip(names, fleet_snapshots(len(names)), strict=True)
    )
    outcome = ddpdoctor.fleet(["-"], expect=expect, select=["host"], stdin=io.BytesIO(lines.encode())).outcome
    assert (outcome.absent, outcome.unexpected) == (absent, unexpected)


@pytest.mark.parametrize("expect", ["node[1-", "./missing.txt", ","])
def test_expectations_that_make_no_sense(fleet: str, expect: str) -> None:
    with pytest.raises(ddpdoctor.UsageError, match="--expect"):
        ddpdoctor.fleet([fleet], expect=expect)


def test_a_saved_profile_must_hold(fleet: str, tmp_path: Path) -> None:
    healthy = written(tmp_path / "healthy", change=lambda number, facts: None)
    profile = tmp_path / "good.json"
    ddpdoctor.fleet([healthy]).write_profile(profile)
    assert ddpdoctor.fleet([healthy], baseline=str(profile)).outcome.held.deviations == ()  # type: ignore[union-attr]
    result = ddpdoctor.fleet([fleet], baseline=str(profile))
    held = result.outcome.held
    assert held is not None
    assert {fact.path: fact.hosts for fact in held.deviations} == {
        "shared_memory.size": (host_name(2),),
        "driver.kernel_version": (host_name(3),),
        "driver.module_on_disk": (host_name(3),),
    }
    assert result.failing == (host_name(2), host_name(3))
    assert "other than the baseline: driver.kernel_version" in result.outcome.exclusions[host_name(3)]


def test_what_a_sweep_writes_beside_the_snapshots_spoils_no_later_one(tmp_path: Path) -> None:
    folder = written(tmp_path / "nodes", 3, change=lambda number, facts: None)
    result = ddpdoctor.fleet([folder])
    result.write_nodes(folder)
    result.write_profile(tmp_path / "nodes" / "good.json")
    again = ddpdoctor.fleet([folder], since=folder)
    assert (again.verdict, len(again.passing)) == (Verdict.OK, 3)
    assert again.outcome.problems == ()
    # By a shell's pattern, the same.
    assert ddpdoctor.fleet(sorted(map(str, (tmp_path / "nodes").iterdir()))).verdict is Verdict.OK
    # A host doesn't hide behind it.
    hidden = next(fleet_snapshots(1)) | {"host": "n9", "ddpdoctor_profile": 1}
    (tmp_path / "nodes" / "n9.json").write_text(json.dumps(hidden))
    assert "n9" in ddpdoctor.fleet([folder]).passing


def test_a_profile_cut_down_by_hand_says_no_more_than_it_says(fleet: str, tmp_path: Path) -> None:
    profile = tmp_path / "good.json"
    profile.write_text(
        json.dumps({"ddpdoctor_profile": 1, "groups": {"NVIDIA H100 80GB HBM3": {"machine.kernel": "6.8.0"}}})
    )
    held = ddpdoctor.fleet([fleet], baseline=str(profile)).outcome.held
    assert held is not None
    assert [(fact.path, len(fact.hosts)) for fact in held.deviations] == [("machine.kernel", 8)]


def test_a_baseline_of_other_hosts_gives_no_verdict_and_lets_nobody_pass(tmp_path: Path) -> None:
    healthy = written(tmp_path / "healthy", change=lambda number, facts: None)
    profile = tmp_path / "other.json"
    profile.write_text(json.dumps({"ddpdoctor_profile": 1, "groups": {"NVIDIA A100": {"machine.kernel": "6.8.0"}}}))
    result = ddpdoctor.fleet([healthy], baseline=str(profile))
    assert (result.verdict, result.exit_code(), result.passing) == (Verdict.UNKNOWN, 2, ())
    assert len(result.outcome.held.without) == len(result.failing) == 8  # type: ignore[union-attr]
    assert result.outcome.exclusions[host_name(1)] == "the baseline has no word of hosts like it"
    for text in (result.to_text(width=200), result.to_text(width=200, quiet=True)):
        assert "baseline has no word of hosts like" in text
        assert "8 could not be held against the baseline" in text


@pytest.mark.parametrize("group", ["nccl", "gpus"])
def test_what_is_unknown_on_a_host_is_not_held_against_the_baseline(tmp_path: Path, group: str) -> None:
    healthy = written(tmp_path / "healthy", change=lambda number, facts: None)
    profile = tmp_path / "good.json"
    ddpdoctor.fleet([healthy]).write_profile(profile)

    def change(number: int, facts: dict[str, Any]) -> None:
        if number == 5:
            facts[group] = {"type": "unknown", "reason": "it hung"}

    result = ddpdoctor.fleet(
        [written(tmp_path / "now", change=change)], baseline=str(profile), select=["shm-too-small"]
    )
    assert result.outcome.held.deviations == ()  # type: ignore[union-attr]
    assert (result.verdict, result.failing) == (Verdict.UNKNOWN, (host_name(5),))
    assert result.outcome.exclusions[host_name(5)] == f"unknown, and so not held against the baseline: {group}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"ddpdoctor_profile": 99, "groups": {}}', "a profile of version 99, and this ddpdoctor reads version 1"),
        (b'{"ddpdoctor_profile": 99, "groups": []}', "a profile of version 99"),
        (b'{"ddpdoctor_profile": 1, "groups": {"x": {"a": "\\ud800"}}}', "not a whole profile"),
        (b'{"ddpdoctor_profile": 1, "groups": {"x": {"a": 1e999}}}', "not a whole profile"),
        (b'{"ddpdoctor_profile": 1, "groups": {"x": ', "not a whole profile"),
    ],
)
def test_profiles_that_cannot_be_read(fleet: str, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(ddpdoctor.UsageError, match=words):
        ddpdoctor.fleet([fleet], baseline=str(tmp_path / "bad.json"))


def test_the_snapshot_of_a_good_host_is_a_baseline(fleet: str) -> None:
    good = f"{fleet}/{host_name(1)}.json"
    held = ddpdoctor.fleet([fleet], baseline=good).outcome.held
    assert held is not None
    assert {name for fact in held.deviations for name in fact.hosts} == {host_name(2), host_name(3)}


def test_no_baseline_at_all(fleet: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for baseline in (tmp_path / "x.json", tmp_path / "missing.json", tmp_path):
        with pytest.raises(ddpdoctor.UsageError, match="--baseline"):
            ddpdoctor.fleet([fleet], baseline=str(baseline))
    with pytest.raises(ddpdoctor.UsageError, match=f"ddpdoctor fleet {tmp_path} --save-profile"):
        ddpdoctor.fleet([fleet], baseline=str(tmp_path))


def test_what_changed_since_the_last_sweep(fleet: str, tmp_path: Path) -> None:
    def today(number: int, facts: dict[str, Any]) -> None:
        if number == 5:
            facts["shared_memory"]["size"] = facts["shared_memory"]["free"] = 64 * 1024**2
        if number in (6, 7):
            facts["machine"]["kernel"] = "6.8.0"

    now = written(tmp_path / "today", 9, today)
    found = ddpdoctor.fleet([now], since=fleet).outcome.changes
    assert found is not None
    told = {(change.kind.value, change.what): change.hosts for change in found}
    assert told[("new fault", "shm-too-small")] == (host_name(5),)
    assert told[("healed", "shm-too-small")] == (host_name(2),)
    assert told[("changed fact", "machine.kernel")] == (host_name(6), host_name(7))
    assert told[("new host", "")] == (host_name(9),)
    assert ("gone", "") not in told
    assert ddpdoctor.fleet([fleet], since=fleet).outcome.changes == ()


@pytest.mark.parametrize("count", [10, 300, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_the_report_fits_the_terminal(count: int) -> None:
    def change(number: int, facts: dict[str, Any]) -> None:
        if number % 3 == 0:
            facts["limits"]["nofile_soft"] = 4096
        if number == 2:
            facts["shared_memory"]["size"] = facts["shared_memory"]["free"] = 64 * 1024**2

    snapshots = fleet_snapshots(count, change, "cpu-laptop")
    lines = io.BytesIO("".join(json.dumps(facts) + "\n" for facts in snapshots).encode())
    result = ddpdoctor.fleet(["-"], select=["host"], stdin=lines)
    for width in (60, 80, 120):
        text = result.to_text(width=width)
        assert max(map(len, text.splitlines())) <= width
        assert len(text.splitlines()) < 45
        assert "limits.nofile_soft" in text
        assert "more" in text or count == 10


def test_json_is_of_the_contract_and_its_lists_can_be_written_out(fleet: str) -> None:
    result = ddpdoctor.fleet([fleet], expect="node[00001-00009]")
    report = json.loads(result.to_json())
    check_against_schema(report)
    assert expand(report["fleet"]["absent"]) == (host_name(9),)
    (finding,) = [finding for finding in report["findings"] if finding["severity"] == "fail"]
    assert (finding["slug"], finding["nodes"]) == ("shm-too-small", host_name(2))
    assert [host["host"] for host in report["fleet"]["hosts"] if host["fail"]] == [host_name(2)]
    odd = {fact["path"]: fact for fact in report["fleet"]["odd"]}
    assert odd["driver.kernel_version"] | {"group": ""} == {
        "group": "", "path": "driver.kernel_version", "value": "570.124.06", "expected": "580.95.05",
        "hosts": host_name(3), "agreeing": 7, "of": 8,
    }  # fmt: skip


def test_markdown_names_no_host(fleet: str, tmp_path: Path) -> None:
    (tmp_path / "nodes" / "cut.json").write_text("{")
    text = ddpdoctor.fleet([fleet], expect="node[00001-00009]").to_markdown()
    assert "node0" not in text.replace(str(tmp_path), "")
    assert "host2" in text
    assert "shm-too-small" in text


def test_one_host_that_cannot_be_judged_leaves_no_verdict_on_the_whole(tmp_path: Path) -> None:
    folder = written(tmp_path / "nodes", change=lambda number, facts: None)
    (tmp_path / "nodes" / "cut.json").write_text("{")
    result = ddpdoctor.fleet([folder])
    assert result.verdict is Verdict.UNKNOWN
    assert result.exit_code() == 2


def test_groups_by_partition_and_by_fact(tmp_path: Path) -> None:
    def change(number: int, facts: dict[str, Any]) -> None:
        facts["environment"]["settings"].append(
            {"name": "SLURM_JOB_PARTITION", "value": "old" if number < 4 else "new"}
        )
        if number < 4:
            facts["machine"]["kernel"] = "5.4.0"

    folder = written(tmp_path / "nodes", change=change)
    by_partition = ddpdoctor.fleet([folder], group_by="partition").outcome
    assert [(group.label, len(group.hosts), group.odd) for group in by_partition.groups] == [
        ("new", 5, ()),
        ("old", 3, ()),
    ]
    assert len(ddpdoctor.fleet([folder], group_by="machine.kernel").outcome.groups) == 2
    with pytest.raises(ddpdoctor.UsageError, match="no host has a fact"):
        ddpdoctor.fleet([folder], group_by="machine.kernal")
    assert len(ddpdoctor.fleet([folder]).outcome.groups[0].odd) == 1


CUT = 2000


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("copy.json", lambda text: text[:CUT]),
        ("node00004.json", lambda text: ""),
        ("node00004.json", lambda text: text[:5]),
        ("node00004.log", lambda text: "bash: line 1: ddpdoctor: command not found\n"),
        ("node00004.json", lambda text: text.replace('"host": "node00004"', '"host": ""')),
        ("node00004.json", lambda text: text.replace('"ddpdoctor_snapshot": 1', '"ddpdoctor_snapshot": 99')),
    ],
    ids=["its own word", "empty", "a few bytes", "no snapshot", "nameless", "newer"],
)
def test_a_host_whose_snapshot_cannot_be_read_is_not_passing(
    tmp_path: Path, name: str, content: Callable[[str], str]
) -> None:
    folder = written(tmp_path / "nodes", change=lambda number, facts: None)
    whole = tmp_path / "nodes" / f"{host_name(4)}.json"
    text = whole.read_text()
    whole.unlink()
    (tmp_path / "nodes" / name).write_text(content(text))
    result = ddpdoctor.fleet([folder], expect="node[00001-00008]")
    assert (result.verdict, result.failing, len(result.passing)) == (Verdict.FAIL, (host_name(4),), 7)
    assert "1 host sent no snapshot that could be read: node00004" in result.to_text()
    result = ddpdoctor.fleet([folder])
    assert (result.verdict, result.failing, len(result.passing)) == (Verdict.UNKNOWN, (host_name(4),), 7)
    assert "; 1 more could not be read." in result.to_text(width=200)
    assert json.loads(result.to_json())["fleet"]["unjudged"] == host_name(4)
    assert '"name":"node00004","verdict":"unknown"' in result.to_html()
    assert host_name(4) not in result.to_markdown().replace(str(tmp_path / "nodes" / name), "")
    # Taken again, it is judged.
    whole.write_text(text)
    (tmp_path / "nodes" / "new.json").write_text(text)
    assert host_name(4) in ddpdoctor.fleet([folder]).passing


def as_line(number: int, snapshot: Snapshot) -> list[str]:
    return [encode_line(snapshot).decode()[: CUT if number == 2 else None]]


def as_indented(number: int, snapshot: Snapshot) -> list[str]:
    return encode_snapshot(snapshot).decode().splitlines()[: 40 if number == 2 else None]


def as_short_lines(number: int, snapshot: Snapshot) -> list[str]:
    return to_lines(snapshot).splitlines()[: -2 if number == 2 else None]


def without_its_first_line(number: int, snapshot: Snapshot) -> list[str]:
    return to_lines(snapshot).splitlines()[1 if number == 2 else 0 :]


def altered(number: int, snapshot: Snapshot) -> list[str]:
    return to_lines(snapshot).replace("A", "B" if number == 2 else "A").splitlines()


def as_nothing(number: int, snapshot: Snapshot) -> list[str]:
    return ["bash: ddpdoctor: command not found"] if number == 2 else [encode_line(snapshot).decode()]


@pytest.mark.parametrize(
    ("form", "needs_label"),
    [
        (as_line, False),
        (as_indented, False),
        (as_short_lines, False),
        (without_its_first_line, True),
        (altered, True),
        (as_nothing, True),
    ],
)
@pytest.mark.parametrize("launcher", ["pdsh", "srun"])
def test_a_host_that_is_cut_in_a_pipe_is_not_passing(
    form: Callable[[int, Snapshot], list[str]], needs_label: bool, launcher: str
) -> None:
    text = "clush: login1: exited with exit code 1\n"
    for number, facts in enumerate(fleet_snapshots(3), 1):
        prefix = f"{facts['host']}: " if launcher == "pdsh" else f"{number}: "
        text += "".join(f"{prefix}{line.rstrip()}\n" for line in form(number, to_snapshot(facts)))
    result = ddpdoctor.fleet(["-"], stdin=io.BytesIO(text.encode()))
    assert result.passing == (host_name(1), host_name(3))
    # A number is no host's name, and neither is a program's.
    assert result.failing == (() if needs_label and launcher == "srun" else (host_name(2),))
    assert result.exit_code() == 2


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_hosts_that_a_process_takes_with_it_are_not_passing(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    lines = "".join(f"{facts['host']}: {json.dumps(facts)}\n" for facts in fleet_snapshots(30))
    monkeypatch.setattr(sweeping, "_WORKER", program)
    monkeypatch.setattr(sweeping, "BATCH", 1)
    monkeypatch.setattr(sweeping, "MIN_FOR_WORKERS", 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    result = ddpdoctor.fleet(["-"], stdin=io.BytesIO(lines.encode()))
    assert result.exit_code() == 2
    assert len(result.problems) == 2
    assert all("nothing is known of these" in problem for problem in result.problems)
    assert len(result.failing) >= 2
    # What they were not given is judged all the same.
    assert result.passing
    assert sorted((*result.passing, *result.failing)) == [host_name(number) for number in range(1, 31)]


def test_what_is_said_of_many_hosts_is_said_once() -> None:
    lines = [
        f"{facts['host']}: {json.dumps(facts)[: CUT if number > 3 else None]}\n"
        for number, facts in enumerate(fleet_snapshots(40), 1)
    ]
    result = ddpdoctor.fleet(["-"], stdin=io.BytesIO("".join(lines).encode()))
    assert len(result.failing) == len(result.problems) == 37
    for quiet in (False, True):
        text = " ".join(result.to_text(width=80, quiet=quiet).split())
        assert text.count("ends too early") == 1
        assert "line 6 (node00006) and 34 more: ends too early; was it copied whole?" in text
        assert "37 problems with what was read" in text
    assert result.to_text(width=200, verbose=True).count("ends too early") == 37


def test_a_host_that_is_cut_has_neither_come_nor_gone(tmp_path: Path) -> None:
    cut, whole = written(tmp_path / "cut", change=sick), written(tmp_path / "whole", change=sick)
    (tmp_path / "cut" / f"{host_name(4)}.json").write_text("{")
    for before, after in ((cut, whole), (whole, cut)):
        assert ddpdoctor.fleet([after], since=before).outcome.changes == ()


@pytest.mark.parametrize(
    ("names", "expect", "words"),
    [
        ("n[1-2].a.org", "n[1-2].b.org", "n1.b.org was expected, and n1.a.org answered (and 1 more host alike)"),
        ("n[1-2]", "gpu[1-4]", "not one of the hosts that answered is in --expect"),
        ("n[1-2]", "nodelist", "there is no file nodelist, so --expect took it for the name of a host"),
        ("n[1-2]", "n[1-3]", ""),
        ("n[1-2]", "n1", ""),
    ],
)
def test_why_those_who_answer_are_not_those_who_should(names: str, expect: str, words: str) -> None:
    hosts = zip(expand(names), fleet_snapshots(2), strict=True)
    lines = "".join(json.dumps({**facts, "host": name}) + "\n" for name, facts in hosts)
    result = ddpdoctor.fleet(["-"], expect=expect, stdin=io.BytesIO(lines.encode()))
    text = " ".join(result.to_text(width=400).split())
    assert words in text
    assert ("--expect" in text) is bool(words)


def test_the_last_line_speaks_of_the_baseline(fleet: str, tmp_path: Path) -> None:
    healthy = written(tmp_path / "healthy", change=lambda number, facts: None)
    profile = str(tmp_path / "good.json")
    ddpdoctor.fleet([healthy]).write_profile(profile)

    def last_line(*inputs: str, baseline: str | None = None) -> str:
        lines = ddpdoctor.fleet(inputs, baseline=baseline).to_text(width=300).splitlines()
        return next(line for line in lines if " Of 8 hosts " in line)

    assert "baseline" not in last_line(healthy)
    assert last_line(healthy, baseline=profile).endswith("; none differs from the baseline.")
    told = "; 2 differ from the baseline: driver.kernel_version, driver.module_on_disk and shared_memory.size."
    assert last_line(fleet, baseline=profile).endswith(told)


def test_a_profile_of_nothing_is_no_baseline(fleet: str, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"ddpdoctor_profile": 1}')
    with pytest.raises(ddpdoctor.UsageError, match="a profile of no hosts"):
        ddpdoctor.fleet([fleet], baseline=str(tmp_path / "empty.json"))


@pytest.mark.parametrize("last", ["missing", "empty"])
def test_no_last_sweep_costs_the_changes_alone(fleet: str, tmp_path: Path, last: str) -> None:
    (tmp_path / "empty").mkdir()
    result = ddpdoctor.fleet([fleet], since=str(tmp_path / last))
    assert result.outcome.changes is None
    assert (result.verdict, len(result.passing)) == (Verdict.FAIL, 7)
    of_last, changes = result.problems
    assert of_last.startswith(f"of the last sweep: {tmp_path}/{last}: ")
    assert "leave --since out" in changes


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_pipe_in_which_nothing_comes(content: bytes) -> None:
    result = ddpdoctor.fleet(["-"], stdin=io.BytesIO(content))
    assert (result.verdict, result.exit_code()) == (Verdict.UNKNOWN, 2)
    (problem,) = result.problems
    assert problem.startswith("standard input: nothing arrived: the command before the | has failed")
    assert "nothing could be judged" in result.to_text()
    absent = ddpdoctor.fleet(["-"], expect="n1", stdin=io.BytesIO(content))
    assert (absent.verdict, absent.failing) == (Verdict.FAIL, ("n1",))
    assert "FAIL  No host could be judged; 1 did not answer." in absent.to_text(width=200)


def test_a_sweep_that_knows_of_no_host_leaves_what_the_last_one_wrote(fleet: str, tmp_path: Path) -> None:
    result = ddpdoctor.fleet([fleet])
    lists = result.write_nodes(tmp_path)
    result.write_profile(tmp_path / "good.json")
    files = [tmp_path / "good.json", *map(Path, lists)]
    before = [file.read_bytes() for file in files]
    nothing = ddpdoctor.fleet(["-"], stdin=io.BytesIO(b""))
    with pytest.raises(ddpdoctor.WriteError, match="knows of no host"):
        nothing.write_nodes(tmp_path)
    with pytest.raises(ddpdoctor.WriteError, match="no host could be judged"):
        nothing.write_profile(tmp_path / "good.json")
    assert [file.read_bytes() for file in files] == before
