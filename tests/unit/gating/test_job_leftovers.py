"""Which leftovers are a job's, and whose they are to mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpdoctor.base.findings import FAIL, WARN, Owner
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity
from ddpdoctor.gating.gpu_agents import is_agent, read_agents
from ddpdoctor.gating.job_leftovers import (
    FinishedJob,
    as_seen_by,
    ended_job,
    is_of_job,
    left_by,
    leftover_concerns,
)
from ddpdoctor.gating.name_files import NameFile
from ddpdoctor.gating.outcome import weigh_concerns
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverLook
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, Fate, LeftoverKind

JOB = FinishedJob("47", 1000)


def process(uid: int = 1000, unit: str = "", job: str | None = "47") -> Process:
    settings = () if job is None else (Setting("SLURM_JOB_ID", job),)
    return Process(pid=7, start=1, parent=1, uid=uid, unit=unit, settings=settings)


def test_a_process_is_the_jobs_by_its_cgroup_or_by_user_and_number() -> None:
    assert is_of_job(process(unit="job_47", job=None), JOB)
    assert is_of_job(process(), JOB)
    # In another job's cgroup it is that job's, whatever its settings say; so is what has another number.
    assert not is_of_job(process(unit="job_48"), JOB)
    assert not is_of_job(process(unit="job_470"), JOB)
    assert not is_of_job(process(job="48"), JOB)
    assert not is_of_job(process(job=None), JOB)
    # Whoever writes another's number into their settings hands nothing over.
    assert not is_of_job(process(uid=1001), JOB)
    assert not is_of_job(Process(pid=7, start=1, parent=1, uid=1000, settings=Unknown("closed")), JOB)


AGENTS = [
    ("nv-hostengine", "job_47"),
    ("dcgm-exporter", "job_47"),
    ("nvidia-cuda-mps", "job_47"),
    ("own-agent", "job_47"),
]


def held_by(name: str, uid: int, unit: str) -> LeftoverLook:
    """A program without a parent that holds a GPU in the job's cgroup, as the first process of a host adopts it."""
    holder = Process(
        pid=7, start=1, parent=1, uid=uid, unit=unit, name=name, executable=f"/opt/bin/{name}", age=99.0, devices=(0,)
    )
    nothing = Unknown("not asked for")
    init = Process(pid=1, start=0, parent=0, name="systemd")
    processes = Processes(listed=(init, holder), uid=0)
    return as_seen_by(JOB, LeftoverLook(processes=processes, gpus=Gpus(devices=()), shared_memory=nothing, at=0.0))


@pytest.mark.parametrize(("name", "unit"), AGENTS)
def test_who_looks_after_the_gpus_is_no_jobs_leftover(name: str, unit: str) -> None:
    """A prolog may have started it, in the job's own cgroup."""
    agents = ["own-agent"]
    assert left_by(JOB, held_by(name, 0, unit), agents) == ()
    root = FinishedJob("47", 0)
    assert left_by(root, held_by(name, 0, unit), agents) == ()


def test_what_only_calls_itself_so_is_one() -> None:
    (left,) = left_by(JOB, held_by("own-agent", 1000, "job_47"), ["own-agent"])
    assert not left.proven
    (left,) = left_by(JOB, held_by("all_reduce_perf", 1000, "job_47"))
    assert not left.proven


def test_an_agent_is_told_by_what_it_is() -> None:
    def runs(name: str, uid: int = 0, unit: str = "") -> bool:
        return is_agent(Process(pid=7, start=1, parent=1, uid=uid, unit=unit, name=name))

    assert runs("nv-hostengine")
    assert runs("nvidia-persiste", 119)
    assert runs("whatever", unit="telemetry.service")
    assert not runs("python", unit="job_47")
    assert not runs("nv-hostengine", 1000)
    assert not runs("train", 1000, "mine.service")


def test_the_administrators_own_names_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpdoctor.gating.gpu_agents.FILE", str(tmp_path / "gpu-agents"))
    assert read_agents() == NameFile()
    (tmp_path / "gpu-agents").write_text("own-agent  # ours\n")
    assert read_agents().names == ("own-agent",)
    (tmp_path / "gpu-agents").chmod(0o666)
    assert "the list of GPU agents" in read_agents().remarks[0]


def test_slurm_names_the_job() -> None:
    environ = {"SLURM_JOB_ID": "47", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0,3"}
    assert ended_job(environ) == FinishedJob("47", 1000, frozenset({0, 3}))
    assert ended_job({"SLURM_JOB_ID": "47"}) is None
    assert ended_job({"SLURM_JOB_ID": "47", "SLURM_JOB_UID": "-1"}) is None


def test_roots_look_takes_the_user_for_its_own() -> None:
    nothing = Unknown("not asked for")
    look = LeftoverLook(processes=Processes(uid=0), gpus=nothing, shared_memory=nothing, at=0.0)
    seen = as_seen_by(JOB, look).processes
    assert isinstance(seen, Processes)
    assert seen.uid == 1000
    assert left_by(JOB, LeftoverLook(processes=nothing, gpus=nothing, shared_memory=nothing, at=0.0)) == ()


def test_a_leftover_is_its_users_until_it_does_not_even_end_when_it_is_killed() -> None:
    worker = Leftover(
        kind=LeftoverKind.WORKER,
        certainty=Certainty.PROVEN,
        what="worker (pid 7)",
        why="its rank is gone",
        identity=ProcessIdentity(7, 1),
    )
    (left,) = leftover_concerns([worker], Endings(), catalogue())
    assert (left.owner, left.severity) == (Owner.USER, WARN)
    assert weigh_concerns([left], passed=3, why_unknown="").verdict == "ok"
    endings = Endings()
    endings.add(worker, Fate.STAYS)
    (stays,) = leftover_concerns([worker], endings, catalogue())
    assert (stays.owner, stays.severity) == (Owner.NODE, FAIL)
    assert (
        weigh_concerns([stays], passed=3, why_unknown="").line
        == f"node: {stays.slug}: killed, and still there: worker (pid 7)"
    )
    ended = Endings()
    ended.add(worker, Fate.ENDED)
    assert list(leftover_concerns([worker], ended, catalogue())) == []
