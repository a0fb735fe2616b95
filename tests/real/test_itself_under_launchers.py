"""ddpdoctor under a launcher: what it starts on its own account inherits the settings of a rank, and is none.

On an otherwise idle host each command says what it says without a launcher. All of them run at once there, as each of two ranks:
every one sees the inquiries of all the others.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.fleet_sweep.sweeping import MIN_FOR_WORKERS
from tests.support.command import ROOT, command, plain_environ
from tests.support.fleet_of_fixtures import fleet_snapshots
from tests.support.nvml import FakeNvidia
from tests.support.own_pids import OwnPids, own_pids

pytestmark = pytest.mark.root

PORT = 29517
ROUNDS = 20
"""Of the thorough test."""

MASTER = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={PORT}"
SETTINGS = {
    "torchrun's settings": f"WORLD_SIZE=2 RANK=$rank LOCAL_RANK=$rank LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x {MASTER}",
    "settings by hand": f"WORLD_SIZE=2 RANK=$rank LOCAL_RANK=$rank {MASTER}",
    "Slurm's settings": "SLURM_NTASKS=2 SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NNODES=1"
    " SLURM_NODEID=0 SLURM_JOB_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2",
    "Open MPI's settings": "OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$rank"
    " OMPI_COMM_WORLD_LOCAL_SIZE=2",
}
"""Each starts two ranks, the second a moment later."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={PORT}", "--no-python"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2",
          "--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]  # fmt: skip
LAUNCHES = {
    "torchrun": [*TORCHRUN, "sh"],
    "mpirun": [*MPIRUN, "sh"],
    **{
        name: ["sh", "-c", f'for rank in 0 1; do env {settings} sh "$0" & sleep 0.2; done; wait']
        for name, settings in SETTINGS.items()
    },
}
"""Each runs a shell script as two ranks."""
CHANGED = {name: {"omp-threads"} for name in ("mpirun", "Slurm's settings", "Open MPI's settings")}
"""Checks of which a launcher changes what they judge: torchrun sets OMP_NUM_THREADS for its ranks, these don't."""

LOG = ROOT / "fixtures" / "logs" / "gpu-memory-held-by-others" / "sick-first-use.log"
COMMANDS = {
    "check": ("check", "--json"),
    "quick": ("check", "--json", "--quick"),
    "jobs": ("jobs", "--json"),
    "hang": ("jobs", "--json", "--hang"),
    "zombies": ("zombies", "--json"),
    "gate": ("gate", "--for=gpud", "--quick", "--timeout=120"),
    "log": ("diagnose-log", "--json", "--here", LOG),
    # Not a Python: that would be a rank indeed.
    "run": ("run", "sh", "-c", f"cat {LOG} >&2; exit 1"),
    "netcheck": ("netcheck", "--json", "--quick", "--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={PORT}"),
    "smoke": ("smoke", "--json", "--backend=gloo", "--stages=all_reduce"),
}
MEETING = ("smoke", "netcheck")
"""Commands whose ranks meet at one port, so that these run in turn."""
AT_RANK_1 = {
    "netcheck": "Local rank 1: local rank 0 speaks for this node.\n",
    "smoke": "",
    "run": "FAIL  gpu-memory-held-by-others: The first failure (output:10); most likely: other jobs' or other users' processes hold"
    " much of a GPU that this job would use\n",
}
"""What the second rank says, where it needn't repeat what the first does."""
NO_FINDING = {"verdict": "ok", "findings": [], "problems": []}


@pytest.fixture(scope="module")
def alone() -> Iterator[OwnPids]:
    """Nobody else's ranks run here."""
    with own_pids() as made:
        yield made


@pytest.fixture(scope="module")
def slow(fake_nvidia: FakeNvidia) -> Mapping[str, str]:
    """A driver that takes seconds to start, in which the other rank looks around."""
    return fake_nvidia.environ(gpus=2, base=plain_environ(), cuda_does="slow", init_does="slow")


def script_of(names: Sequence[str], folder: Path) -> Path:
    """A shell script that runs these commands at once, but for those that would want the same port."""
    runs = {
        name: f'{{ {shlex.join(command(*COMMANDS[name]))} >"{folder}/{name}.$rank"; code=$?; [ $code -le 2 ] || echo "exit code $code"; }} 2>&1'
        f' | cat >"{folder}/{name}.$rank.err"'
        for name in names
    }
    in_turn = "; ".join(runs.pop(name) for name in MEETING if name in runs) or ":"
    script = folder / "commands.sh"
    rank = "rank=${OMPI_COMM_WORLD_RANK:-${RANK:-${SLURM_PROCID:-0}}}"
    script.write_text("\n".join([rank, *(f"{run} &" for run in runs.values()), in_turn, "wait"]))
    return script


Told = dict[str, Any] | str


def told_by(name: str, rank: int, folder: Path, changed: Collection[str] = ()) -> Told:
    """What a command has said: the whole verdict, but for the checks of which a launcher changes what they judge."""
    out, err = ((folder / f"{name}.{rank}{ending}").read_text() for ending in ("", ".err"))
    if name == "run":
        return re.sub(r" after \d+ s|^ddpdoctor, (rank|task) 1 on \S+: ", "", err.replace(LOG.read_text(), ""))
    if not out:
        return err
    report = json.loads(out)
    # A gate answers with its caller's keys, and this among them.
    report = report.get("report", report)
    findings = sorted(
        (finding["slug"], finding["severity"], finding["summary"])
        for finding in report["findings"]
        if finding["slug"] not in changed
    )
    more = {key: report[key] for key in ("problems", "jobs", "leftovers") if key in report}
    return {"verdict": report["verdict"], "findings": findings, **more}


@pytest.fixture(scope="module")
def without(alone: OwnPids, slow: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """What each command says where no launcher has started it; of smoke that is known."""
    folder = tmp_path_factory.mktemp("without")
    names = [name for name in COMMANDS if name != "smoke"]
    alone.run("sh", str(script_of(names, folder)), environ=dict(slow))
    return {"smoke": dict(NO_FINDING), **{name: told_by(name, 0, folder) for name in names}}


def differences(
    alone: OwnPids,
    slow: Mapping[str, str],
    without: Mapping[str, Told],
    folder: Path,
    launcher: str,
    names: Sequence[str],
) -> list[tuple[str, int, Told]]:
    """Runs these commands as two ranks of that launcher: what they say that they don't say without it."""
    alone.run(*LAUNCHES[launcher], str(script_of(names, folder)), environ=dict(slow))
    told = {(name, rank): told_by(name, rank, folder, CHANGED.get(launcher, ())) for name in names for rank in range(2)}
    return [
        (name, rank, words)
        for (name, rank), words in told.items()
        if words not in (without[name], AT_RANK_1.get(name) if rank else None)
    ]


def test_without_a_launcher_the_host_has_no_job(without: dict[str, Told]) -> None:
    """What the others are compared with."""
    verdicts = {name: told if isinstance(told, str) else told["verdict"] for name, told in without.items()}
    assert "[gpu-memory-held-by-others]" in verdicts.pop("run")
    assert verdicts == {
        "check": "warn", "quick": "warn", "jobs": "ok", "hang": "unknown", "zombies": "ok", "log": "fail",
        "netcheck": "ok", "smoke": "ok", "gate": "ok",
    }  # fmt: skip


EVERY_COMMAND = tuple(COMMANDS)
LOOKS_AT_PROCESSES = ("quick", "jobs", "zombies")


@pytest.mark.parametrize(
    ("launcher", "names"),
    [
        ("torchrun", EVERY_COMMAND),
        ("mpirun", LOOKS_AT_PROCESSES),
        ("settings by hand", LOOKS_AT_PROCESSES),
        ("Slurm's settings", LOOKS_AT_PROCESSES),
    ],
)
def test_as_two_ranks_with_a_slow_driver(
    alone: OwnPids,
    slow: Mapping[str, str],
    without: dict[str, Told],
    tmp_path: Path,
    launcher: str,
    names: tuple[str, ...],
) -> None:
    assert differences(alone, slow, without, tmp_path, launcher, names) == []


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("launcher", LAUNCHES)
def test_every_command_under_every_launcher_again_and_again(
    alone: OwnPids, slow: Mapping[str, str], without: dict[str, Told], tmp_path: Path, launcher: str
) -> None:
    found = []
    for number in range(ROUNDS):
        (folder := tmp_path / str(number)).mkdir()
        found += [(number, *told) for told in differences(alone, slow, without, folder, launcher, EVERY_COMMAND)]
    assert found == [], found


def test_beside_a_running_smoke(alone: OwnPids, slow: Mapping[str, str], tmp_path: Path) -> None:
    """Its ranks are ddpdoctor's, and no job that could be missing a rank, or lie in somebody's way."""
    smoke, jobs = (
        shlex.join(command(*words)) for words in (("smoke", "--nproc", "2", "--timeout", "6"), ("jobs", "--json"))
    )
    driver = shlex.join(f"{name}={slow[name]}" for name in ("LD_LIBRARY_PATH", "FAKE_NVML", "FAKE_CUDA"))
    look = f"while kill -0 $!; do env {driver} {jobs} >>{tmp_path}/jobs; echo >>{tmp_path}/jobs; done"
    fault = json.dumps({"rank": 1, "stage": "training", "kind": "sleep"})
    alone.run("sh", "-c", f"{smoke} >{tmp_path}/smoke 2>&1 & {look}", environ={"DDPDOCTOR_SMOKE_FAULT": fault})
    assert "training" in (tmp_path / "smoke").read_text()
    looks = [json.loads(text)["jobs"] for text in (tmp_path / "jobs").read_text().split("\n\n") if text.strip()]
    assert len(looks) > 2
    assert looks == [[]] * len(looks)


RANK_ZERO = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}


def test_beside_a_sweep_over_a_fleet(alone: OwnPids, tmp_path: Path) -> None:
    """The processes that help it inherit the settings of a rank."""
    lines = "".join(f"{json.dumps(facts)}\n" for facts in fleet_snapshots(2 * MIN_FOR_WORKERS))
    (tmp_path / "snapshots").write_text(lines)
    settings, fleet, jobs = (
        shlex.join(words)
        for words in (
            [f"{name}={value}" for name, value in RANK_ZERO.items()],
            command("fleet", "-"),
            command("jobs", "--json"),
        )
    )
    look = (
        "until pgrep -f fleet_sweep.worker >workers; do sleep 0.05; done; "
        + jobs
        + " >jobs; pgrep -f fleet_sweep.worker >workers"
    )
    feed = "{ cat snapshots; while [ ! -e looked ]; do sleep 0.05; done; }"
    script = f"cd {tmp_path}; {feed} | env {settings} {fleet} >fleet 2>&1 & {{ {look}; }}; touch looked; wait"
    alone.run("sh", "-c", script)
    assert (tmp_path / "workers").read_text(), "it did not run while `jobs` looked"
    assert json.loads((tmp_path / "jobs").read_text())["jobs"] == []
    assert f"{2 * MIN_FOR_WORKERS} hosts" in (tmp_path / "fleet").read_text()


LOOK_AGAIN = f"""
import os
from ddpdoctor.fixes.proof import look_again
os.environ |= {RANK_ZERO}
print([process.command for process in look_again([], "", None, []).snapshot.processes.listed if process.place])
"""


def test_the_look_that_proves_a_fix_is_no_rank(alone: OwnPids) -> None:
    """It inherits the settings of the rank as which `check --fix` was started."""
    looked = alone.run(sys.executable, "-c", LOOK_AGAIN)
    assert (looked.stdout, looked.stderr) == ("[]\n", "")
