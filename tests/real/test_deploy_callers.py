"""What deploy/ has Slurm, NHC, node-problem-detector, GPUd and soperator call, called as they do it.

Slurm's daemons are the real ones. The others don't run here: what calls in their place follows their contracts.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpdoctor.gating.dialects import DIALECTS
from tests.support.command import ROOT
from tests.support.deployed import DEPLOY, INSTALLED, broken_doctor, deployed, install, noting_doctor, this_doctor
from tests.support.namespaces import Host, network
from tests.support.running_jobs import wait_until
from tests.support.slurm import slurm
from tests.support.waiting import slowdown

SYSTEM = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def doctor(tmp_path: Path) -> Path:
    return this_doctor(tmp_path)


def run(*line: str | Path, seconds: float = 60, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, env=SYSTEM, capture_output=True, text=True, timeout=seconds, check=False, **more)


def test_node_problem_detector(doctor: Path) -> None:
    plugin = json.loads(deployed("node-problem-detector/ddpdoctor-monitor.json", doctor))
    (rule,) = plugin["rules"]
    # It has 4 s on a core of its own.
    ended = run(rule["path"], *rule["args"], "--timeout", f"{DIALECTS['npd'].seconds * slowdown():.1f}")
    # 0: the condition doesn't hold, 1: it does, all else: unknown; the message is cut by bytes.
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    message = ended.stdout.rstrip("\n")
    assert message
    assert "\n" not in message
    assert len(message.encode()) <= plugin["pluginConfig"]["max_output_length"]


def test_nhc(doctor: Path) -> None:
    lines = [line for line in deployed("nhc/nhc.conf", doctor).splitlines() if not line.startswith("#")]
    (export, check) = [line.removeprefix("* || ") for line in lines]
    assert export == "export PET_NNODES=2"
    name, *words = shlex.split(check)
    assert name == "check_cmd_output"
    options = dict(zip(words[:6:2], words[1:6:2], strict=True))
    # The text of a failure is that line.
    assert options["-M"] == "%L"
    ended = run(*words[6:], seconds=float(options["-t"]))
    # NHC takes the node offline unless the code is 0, and no line fits what -m denies.
    assert str(ended.returncode) in ("0", "1"), ended.stderr
    (said,) = ended.stdout.splitlines()
    assert "undecided" not in said
    assert options["-m"].startswith("!/")
    assert bool(re.search(options["-m"].strip("!/"), said)) is (ended.returncode != 0)


def test_gpud(doctor: Path) -> None:
    (plugin,) = yaml.safe_load(deployed("gpud/plugins.yaml", doctor))
    (step,) = plugin["health_state_plugin"]["steps"]
    # Both streams go into one file there, and what follows the first brace is read.
    script = step["run_bash_script"]["script"]
    ended = run("bash", "-c", f"{{ {script}\n}} 2>&1")
    assert ended.returncode in (0, 1), ended.stdout
    assert ended.stdout.startswith("{")
    told, _ = json.JSONDecoder().raw_decode(ended.stdout)
    assert told["result"] != "unknown"
    for path in plugin["health_state_plugin"]["parser"]["json_paths"]:
        value = told[path["query"].removeprefix("$.")]
        assert isinstance(value, str)
        if "expect" in path:
            assert bool(re.search(path["expect"]["regex"], value)) is (ended.returncode == 0)


@pytest.mark.parametrize("name", ["drain", "undrain"])
def test_soperator(name: str, doctor: Path) -> None:
    check = json.loads(deployed(f"soperator/ddpdoctor.{name}.json", doctor))
    reading, writing = os.pipe()
    # Details are read from descriptor 3, and the rest goes to a log.
    line = f"exec {check['command']} 3>&{writing}"
    ended = run("bash", "-c", line, pass_fds=(writing,))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        details = pipe.read()
    assert ended.returncode in (0, 1), ended.stderr
    assert "no verdict" not in ended.stderr
    assert details or name == "undrain" or ended.returncode == 0


def installed(etc: Path, doctor: Path) -> str:
    """Slurm's scripts where docs/deploy.md puts them, and the lines of slurm.conf."""
    for script in (DEPLOY / "slurm").rglob("*.sh"):
        name = script.relative_to(DEPLOY / "slurm")
        install(f"slurm/{name}", doctor, etc / name)
    return (DEPLOY / "slurm" / "slurm.conf").read_text().replace("/etc/slurm", str(etc))


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.tool("slurmctld", "slurmd", "munged")
def test_slurm_runs_each_script_at_its_time(tmp_path: Path) -> None:
    """And a job runs between them."""
    lines = installed(tmp_path / "etc", noting_doctor(tmp_path))
    cluster_folder = tmp_path / "cluster"
    cluster_folder.mkdir()

    def called() -> list[str]:
        file = tmp_path / "called"
        return [line.split()[2] for line in file.read_text().splitlines()] if file.exists() else []

    with network("n1") as (host,), slurm([host], cluster_folder, more=lines) as cluster:
        wait_until(lambda: "slurm-healthcheck" in called(), "the health check of slurmd's start")
        ended = cluster.run("srun", "--nodes=1", "cat", tmp_path / "called")
        assert ended.returncode == 0, ended.stderr
        assert "gate --for slurm-prolog --quick --drain" in ended.stdout
        assert "slurm-epilog" not in ended.stdout
        wait_until(lambda: "slurm-epilog" in called(), "the epilog")
        wait_until(lambda: cluster.idle() == 1, "the node is free again")


def commands_of(section: str) -> list[str]:
    """The lines that a section of docs/deploy.md has in its fences for a shell."""
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"^## {re.escape(section)}$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    return [
        line
        for fence in re.findall(r"^```sh$(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in fence.split("\n")
        if line
    ]


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.tool("slurmctld", "slurmd", "munged")
def test_the_commands_of_the_docs_lead_to_a_drained_sick_node(tmp_path: Path) -> None:
    """Word for word, on daemons that run already; `.ci/run` does the first of the five. The node comes back when it has healed."""
    cluster_folder = tmp_path / "cluster"
    cluster_folder.mkdir()
    doctor = this_doctor(tmp_path)
    copy, look, add, show = commands_of("Slurm: from here to a drained sick node")
    names = ["127.0.0.1 localhost", "10.77.0.11 n1", "10.77.0.12 n2"]
    with network("n1", "n2") as hosts, slurm(hosts, cluster_folder) as cluster:

        def enter(host: Host, line: str) -> subprocess.CompletedProcess[str]:
            """Type it at a prompt of that host's, in the root of the repository."""
            words = host.command("sh", "-c", line)
            return subprocess.run(words, cwd=ROOT, env=cluster.environ, capture_output=True, text=True, check=False)

        for host in hosts:
            assert enter(host, copy).returncode == 0
            assert enter(host, look).stdout == ""
            assert (
                enter(host, f"sed -i s,{INSTALLED},{doctor}, /etc/slurm/healthcheck.sh /etc/slurm/*.d/*").returncode
                == 0
            )
        for host in hosts:
            added = enter(host, add)
            assert added.returncode == 0, added.stderr
        hosts[1].hosts("\n".join([names[0], "127.0.1.1 n2", names[1], ""]))
        cluster.run("sbatch", "--nodes=2", "--nodelist=n1,n2", "--output=/dev/null", "--wrap=hostname")
        told = "n2 ddpdoctor: node: hostname-resolves-loopback: n2 resolves to 127.0.1.1"
        wait_until(lambda: told in enter(hosts[0], show).stdout, "the drain")
        assert cluster.run("srun", "--nodes=1", "hostname").stdout == "n1\n"
        # The page's five minutes are long for a test.
        for host in hosts:
            hastened = enter(
                host,
                "sed -i s/HealthCheckInterval=300/HealthCheckInterval=3/ /etc/slurm/slurm.conf && scontrol reconfigure",
            )
            assert hastened.returncode == 0, hastened.stderr
        cluster.run("scancel", "--user=root")
        hosts[1].hosts("\n".join([*names, ""]))
        wait_until(lambda: cluster.idle() == 2, "n2 comes back")


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("prolog.d/50-ddpdoctor.sh", {40: 0, 41: 1, 1: 0, 2: 0, 127: 0}),
        ("epilog.d/50-ddpdoctor.sh", {40: 0, 41: 1, 1: 0, 2: 0, 127: 0}),
        ("healthcheck.sh", {40: 0, 41: 0, 1: 0, 2: 0, 127: 0}),
    ],
)
def test_only_a_verdict_takes_a_node_out(name: str, codes: dict[int, int], tmp_path: Path) -> None:
    for code, wanted in codes.items():
        launcher = broken_doctor(tmp_path, f"exit {code}")
        script = install(f"slurm/{name}", launcher.with_name("ddpdoctor"), tmp_path / "script")
        assert subprocess.run([script], env={}, check=False).returncode == wanted


@pytest.mark.parametrize("name", ["prolog.d/50-ddpdoctor.sh", "epilog.d/50-ddpdoctor.sh", "healthcheck.sh"])
def test_slurms_scripts_do_their_work_without_path_and_home(name: str, doctor: Path, tmp_path: Path) -> None:
    """Where there is no slurmctld to drain by, a node that is well passes."""
    script = install(f"slurm/{name}", doctor, tmp_path / "script")
    ended = subprocess.run([script], env={}, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in ((0,) if name == "healthcheck.sh" else (0, 1)), ended.stderr
    assert "wrong usage" not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
