"""`ddpdoctor fleet` as a command: its options, and pipes of real launchers, which put words of their own before each line and mix hosts."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command, ddpdoctor, plain_environ
from tests.support.fleet_of_fixtures import fleet_snapshots, host_name

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "--tag-output"]
LAUNCHERS = {
    "mpirun": (MPIRUN, []),
    "pdsh": (["pdsh", "-R", "exec", "-w", "n[1-2]"], ["%h", "--lines"]),
    "clush": (["clush", "-R", "exec", "-w", "n[1-2]"], ["%h", "--lines"]),
}
"""Each with what the task is called with: its host, where the launcher doesn't number tasks, and options of `snapshot`."""


@pytest.mark.root
@pytest.mark.parametrize(
    "launcher", [pytest.param(name, marks=pytest.mark.tool(name.split()[0])) for name in LAUNCHERS]
)
def test_both_hosts_of_a_launcher_arrive_whole(launcher: str, tmp_path: Path) -> None:
    task = tmp_path / "task"
    snapshot = shlex.join(command("snapshot", "--quick"))
    task.write_text(
        f"""#!/bin/sh
        host=${{1:-n$((OMPI_COMM_WORLD_RANK + 1))}}
        [ $# = 0 ] || shift
        exec unshare --uts sh -c 'hostname "$0" && exec {snapshot} "$@"' "$host" "$@"
        """
    )
    task.chmod(0o755)
    words, arguments = LAUNCHERS[launcher]
    with subprocess.Popen([*words, task, *arguments], env=plain_environ(), stdout=subprocess.PIPE) as launched:
        swept = subprocess.run(
            command("fleet", "-", "--json", "--expect", "n[1-2]"),
            env=plain_environ(), stdin=launched.stdout, capture_output=True, timeout=90, check=False,
        )  # fmt: skip
    assert launched.returncode == 0
    report = json.loads(swept.stdout)
    assert (report["problems"], report["fleet"]["absent"]) == ([], "")
    assert [host["host"] for host in report["fleet"]["hosts"]] == ["n1", "n2"]


def test_a_profile_is_saved_and_held_against_the_next_sweep_which_is_compared_with_the_last(tmp_path: Path) -> None:
    def change(number: int, facts: dict[str, Any]) -> None:
        if number == 3:
            facts["shared_memory"]["size"] = facts["shared_memory"]["free"] = 64 * 1024**2

    for name, count, odd in (("yesterday", 3, lambda number, facts: None), ("today", 4, change)):
        (tmp_path / name).mkdir()
        for facts in fleet_snapshots(count, odd):
            (tmp_path / name / f"{facts['host']}.json").write_text(json.dumps(facts))
    alike = ("--group-by", "machine.kernel", "--select", "host")
    first = ddpdoctor("fleet", "yesterday", *alike, "--save-profile", "good.json", "--nodes-out", ".", cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert (tmp_path / "failing_nodes.txt").read_text() == ""
    second = ddpdoctor("fleet", "today", *alike, "--baseline", "good.json", "--since", "yesterday", cwd=tmp_path)
    assert second.returncode == 1, second.stderr
    text = " ".join(second.stdout.split())
    assert "shared_memory.size" in text
    assert host_name(3) in text
    assert host_name(4) in text


def sweep_of_two(folder: Path) -> None:
    (folder / "nodes").mkdir()
    for facts in fleet_snapshots(2):
        (folder / "nodes" / f"{facts['host']}.json").write_text(json.dumps(facts))


def test_what_cannot_be_written_costs_neither_the_report_nor_the_other_files(tmp_path: Path) -> None:
    sweep_of_two(tmp_path)
    ended = ddpdoctor(
        "fleet", "nodes", "--nodes-out", "no/such", "--html", "/dev/full", "--save-profile", "good.json", cwd=tmp_path
    )
    assert ended.returncode == 2
    assert "Of 2 hosts 2 are without findings" in ended.stdout
    early, *late = ended.stderr.splitlines()
    assert early.startswith("no/such/passing_nodes.txt: it cannot be written there: there is no folder no/such")
    assert late == [
        "no/such/passing_nodes.txt: it was not written: there is no folder no/such; make it: mkdir -p no/such",
        "/dev/full: it was not written: No space left on device",
    ]
    assert json.loads((tmp_path / "good.json").read_text())["groups"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["good.json", "nodes"]


@pytest.mark.parametrize(
    ("option", "path"), [("--nodes-out", "nodes/node00001.json"), ("--html", "."), ("--save-profile", "/proc/x")]
)
def test_what_cannot_be_written_is_said_before_anything_is_read(option: str, path: str, tmp_path: Path) -> None:
    sweep_of_two(tmp_path)
    with subprocess.Popen(
        command("fleet", "-", option, path), cwd=tmp_path, env=plain_environ(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as swept:  # fmt: skip
        assert swept.stderr
        assert "cannot be written there" in swept.stderr.readline()
        shown, told = swept.communicate(json.dumps(next(fleet_snapshots(1))), timeout=60)
    assert swept.returncode == 2
    assert "Of 1 host 1 is without findings" in shown
    assert "it was not written" in told


def test_a_reader_that_leaves_costs_no_file(tmp_path: Path) -> None:
    sweep_of_two(tmp_path)
    arguments = shlex.join(command("fleet", "nodes", "-v", "--nodes-out", "."))
    ended = subprocess.run(
        f"{arguments} | true",
        shell=True,
        cwd=tmp_path,
        env=plain_environ(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == b""
    assert (tmp_path / "passing_nodes.txt").read_text().split() == [host_name(1), host_name(2)]


@pytest.mark.parametrize("option", ["--nodes-out", "--html", "--save-profile"])
def test_a_variable_that_is_not_set_is_refused(option: str, tmp_path: Path) -> None:
    ended = ddpdoctor("fleet", "nodes", option, "", cwd=tmp_path)
    assert ended.returncode == 2
    assert f"{option} is empty" in ended.stderr


def test_a_terminal_is_no_pipe(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    ended = subprocess.run(
        command("fleet", "-"),
        env=plain_environ(),
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(terminal)
    os.close(theirs)
    assert ended.returncode == 2
    assert "standard input is a terminal" in ended.stderr
