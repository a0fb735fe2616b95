"""`ddpdoctor fleet` as a command: its options, and pipes of real launchers, which put words of their own before each line and mix hosts."""

from __future__ import annotations

import json
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
