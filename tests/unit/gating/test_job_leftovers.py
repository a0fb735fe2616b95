"""Which leftovers are a job's, and whose they are to mend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ddpdoctor.base.findings import FAIL, WARN, Owner
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.gpus import Gpu, GpuHolder, Gpus
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity
from ddpdoctor.facts.shared_memory import Segment, SharedMemory
from ddpdoctor.gating.gpu_agents import is_agent, read_agents
from ddpdoctor.gating.job_leftovers import (
    FinishedJob,
    as_seen_by,
    end_left,
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


GIB = 1 << 30
INIT = Process(pid=1, start=0, parent=0, name="systemd")


def gpu(index: int, *holders: GpuHolder, used: int = 30 * GIB) -> Gpu:
    return Gpu(index=index, memory_total=80 * GIB, memory_used=used, holders=holders)


def seen(*gpus: Gpu, segments: Sequence[Segment] = ()) -> LeftoverLook:
    """On a host without a process of the job, as root sees it."""
    shared_memory = SharedMemory(
        size=GIB, free=GIB, stale=tuple(segment.path for segment in segments), segments=tuple(segments)
    )
    processes = Processes(listed=(INIT,), uid=0)
    return as_seen_by(
        JOB, LeftoverLook(processes=processes, gpus=Gpus(devices=gpus), shared_memory=shared_memory, at=0.0)
    )


def test_memory_is_the_jobs_on_the_gpus_that_it_had() -> None:
    gone = GpuHolder(pid=99_999, memory=30 * GIB)
    look = seen(gpu(0), gpu(1, used=0), gpu(2), gpu(3, gone))
    assert [leftover.gpus for leftover in look.leftovers] == [(0,), (2,), (3,)]
    job = FinishedJob("47", 1000, frozenset({0, 1, 3}))
    left = left_by(job, look)
    assert [leftover.gpus for leftover in left] == [(0,), (3,)]
    # Nobody knows whom to end for it, so it is named, as the user's, and the node stays in.
    assert not any(leftover.proven for leftover in left)
    concerns = list(leftover_concerns(left, end_left(left, job, look, until=0.0), catalogue()))
    assert {(concern.slug, concern.owner, concern.severity) for concern in concerns} == {
        ("gpu-memory-unowned", Owner.USER, WARN)
    }
    assert [concern.summary for concern in concerns] == ["left over: GPU 0", "left over: GPU 3"]
    assert left_by(JOB, look) == ()
    assert left_by(FinishedJob("47", 1000, Unknown("no list of numbers")), look) == ()


def test_a_segment_is_the_jobs_users() -> None:
    names = {"nccl-3XkQz1": 1000, "nccl-3XkQz2": 1001, "nccl-3XkQz3": 0, "psm_1a2b3c4d": 1000}
    segments = [
        Segment(path=f"/dev/shm/{name}", size=4096, uid=uid, age=99.0, device=1, inode=number)
        for number, (name, uid) in enumerate(names.items(), 1)
    ]
    left = left_by(JOB, seen(segments=segments))
    # Python's own may be meant to stay: named, and not ended.
    assert {leftover.path: leftover.proven for leftover in left} == {
        "/dev/shm/nccl-3XkQz1": True,
        "/dev/shm/psm_1a2b3c4d": False,
    }
    concerns = list(leftover_concerns(left, Endings(), catalogue()))
    assert {(concern.slug, concern.owner, concern.severity) for concern in concerns} == {
        ("shm-stale-segments", Owner.USER, WARN)
    }
    assert concerns[0].commands == ("rm -f /dev/shm/nccl-3XkQz1",)


def test_slurm_names_the_job() -> None:
    environ = {"SLURM_JOB_ID": "47", "SLURM_JOB_UID": "1000"}
    assert ended_job(environ) == FinishedJob("47", 1000, frozenset())
    for text, gpus in (("0,3", {0, 3}), ("0-3", {0, 1, 2, 3}), ("0-1,6", {0, 1, 6}), ("", set())):
        assert ended_job({**environ, "SLURM_JOB_GPUS": text}) == FinishedJob("47", 1000, frozenset(gpus))
    for text in ("GPU-1a2b", "3-0", "0]n[1"):
        job = ended_job({**environ, "SLURM_JOB_GPUS": text})
        assert job is not None
        assert job.gpus == Unknown(f"SLURM_JOB_GPUS={text} is no list of numbers")
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
