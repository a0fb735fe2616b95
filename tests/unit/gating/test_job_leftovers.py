"""Which leftovers are a job's, and whose they are to mend."""

from __future__ import annotations

from ddpdoctor.base.findings import FAIL, WARN, Owner
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.facts.environment import Setting
from ddpdoctor.facts.processes import Process, Processes, ProcessIdentity
from ddpdoctor.gating.job_leftovers import (
    FinishedJob,
    as_seen_by,
    ended_job,
    is_of_job,
    left_by,
    leftover_concerns,
)
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
