"""The jobs of this host: which facts are looked at, which checks judge them, and which job a user means by a pid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import Finding, Severity
from ddpdoctor.base.text import clip, listed, pid_named, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination, Verdict
from ddpdoctor.engine.registry import Catalogue, Check, Subject, diagnose
from ddpdoctor.facts.plan import NO_PLAN
from ddpdoctor.facts.processes import Processes, ProcessRole
from ddpdoctor.facts.snapshot import Snapshot
from ddpdoctor.processes.gpu_holders import HeldGpu, holdings
from ddpdoctor.processes.job_words import NOT_RUNNING, Remark, pids_in
from ddpdoctor.processes.jobs import TrainingJob, ancestors, jobs_of
from ddpdoctor.processes.rank_remarks import remarks_on

FAMILY: Final = "processes"
GROUPS_OF_REPORT: Final = ("machine", "container", "gpus", "environment", "processes")
GROUPS_BY_IMPORT: Final = frozenset({"torch", "libraries", "extensions", "toolchain"})
"""Facts that take an import of torch."""
NO_JOB: Final = "No training job runs on this host that this user can see."
_MAX_NAMED = 12


class UnknownJobError(ValueError):
    """No job goes by that name; the message says which there are. launcher: the name is that of a launcher without ranks."""

    def __init__(self, what: str, there: str = "", *, launcher: bool = False) -> None:
        super().__init__(f"{what} {there}".rstrip())
        self.what = what
        self.launcher = launcher


class JobView(msgspec.Struct, frozen=True):
    """One job, with what stands out in it. untold: those remarks that no finding makes."""

    job: TrainingJob
    remarks: tuple[Remark, ...]
    untold: tuple[Remark, ...]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What `ddpdoctor jobs` has to tell. examination: with the findings that concern the chosen job alone, if one is.

    others: findings that were left out for that.
    """

    examination: Examination
    views: tuple[JobView, ...] = ()
    others: int = 0

    @property
    def held(self) -> tuple[HeldGpu, ...]:
        """What all processes hold on the GPUs; () where that isn't known."""
        snapshot = self.examination.snapshot
        if isinstance(snapshot.gpus, Unknown) or isinstance(snapshot.processes, Unknown):
            return ()
        return holdings(snapshot.gpus, snapshot.processes)

    @property
    def verdict(self) -> Verdict:
        """The checks'. Where the processes could be seen and none is a rank, there is nothing that could be wrong."""
        found = self.examination.verdict
        seen = not isinstance(self.examination.snapshot.processes, Unknown)
        return Verdict.OK if found is Verdict.UNKNOWN and seen and not self.views else found


def checks_of_jobs(catalogue: Catalogue) -> tuple[Check, ...]:
    """Pick the checks that judge running jobs."""
    return tuple(
        check
        for check in catalogue.checks
        if (check.family == FAMILY or Subject.RUNNING_JOB in check.judges) and Subject.NEXT_JOB not in check.judges
    )


def groups_of(checks: Sequence[Check]) -> set[str]:
    """Name the facts that checks need, and what the report's heading says; nothing that takes an import of torch."""
    return set(GROUPS_OF_REPORT).union(*(check.groups for check in checks)) - GROUPS_BY_IMPORT


def overview(snapshot: Snapshot, checks: Sequence[Check], name: str | None = None) -> Overview:
    """Judge the jobs of a snapshot. name: the one that is meant, by the pid of any process that belongs to it; None: all.

    Raises:
        UnknownJobError: there is none of that name.
    """
    examination = Examination(snapshot, NO_PLAN, diagnose(snapshot, NO_PLAN, checks))
    processes = snapshot.processes
    if isinstance(processes, Unknown):
        if name is not None:
            raise UnknownJobError(f"{name} can't be looked for: {processes.reason}")
        return Overview(examination=examination)
    jobs = jobs_of(processes)
    if name is None:
        return Overview(examination=examination, views=_views(jobs, examination))
    try:
        job = named_job(name, jobs, processes)
    except UnknownJobError as error:
        hidden = f" {plural(processes.closed, 'process', 'processes')} can't be looked into by this user."
        raise UnknownJobError(f"{error}{hidden if processes.closed else ''}") from None
    own, left_out = _of_job(examination, job)
    return Overview(examination=own, views=_views((job,), own), others=left_out)


def _views(jobs: Sequence[TrainingJob], examination: Examination) -> tuple[JobView, ...]:
    snapshot = examination.snapshot
    assert not isinstance(snapshot.processes, Unknown)
    views = []
    for job in jobs:
        remarks, untold = [], []
        for remark in remarks_on(job, snapshot.processes, snapshot.gpus):
            severity = _severity(remark, job, examination)
            remarks.append(msgspec.structs.replace(remark, severity=severity or Severity.INFO))
            if severity is None:
                untold.append(remarks[-1])
        views.append(JobView(job, tuple(remarks), tuple(untold)))
    return tuple(views)


def _severity(remark: Remark, job: TrainingJob, examination: Examination) -> Severity | None:
    """Rate a remark as the check does that says the same of these processes; None where none does. Of a check that says several things in
    one finding, the remark knows which of them is how bad."""
    pids = set(remark.pids) or {int(job.name)}
    for check, severity, finding in examination.findings:
        if any(topic is remark.oddity for topic in check.stands_for) and names_any(finding, pids):
            return remark.severity if remark.oddity in NOT_RUNNING else severity
    return None


# --- which job is meant -----------------------------------------------------------------------------------------------------


def named_job(name: str, jobs: Sequence[TrainingJob], processes: Processes, *, below: bool = False) -> TrainingJob:
    """Find the job of which the process with that pid is a part: launcher, rank, worker, what one of them has started, or what
    alone has started all of it (a script around torchrun). below: only jobs count that the process has started itself.

    Raises:
        UnknownJobError: there is none, or several.
    """
    pid = pid_named(name)
    if not pid:
        raise UnknownJobError(f"{clip(name)!r} is no pid.", jobs_there(jobs))
    found = [job for job in jobs if pid in members(job)]
    process = processes.get(pid)
    if not found and process:
        above = set() if below else {ancestor.pid for ancestor in ancestors(process, processes)}
        found = [job for job in jobs if above & members(job)] or [job for job in jobs if pid in _above(job, processes)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownJobError(f"pid {pid} has started {len(found)} jobs: name one.", jobs_there(found))
    if process and process.role is ProcessRole.LAUNCHER:
        raise UnknownJobError(
            f"pid {pid} is a launcher ({process.name}), and this user can see none of its ranks: they have ended, or are not "
            f"started yet; its log says which.",
            jobs_there(jobs),
            launcher=True,
        )
    what = f"pid {pid} ({process.name}) belongs to" if process else f"pid {pid} is part of"
    raise UnknownJobError(f"{what} no training job that this user can see.", jobs_there(jobs))


def members(job: TrainingJob) -> set[int]:
    """Collect the pids of a job's launchers, ranks, workers and helpers."""
    return {launcher.pid for launcher in (*job.launchers, *job.ranks, *job.others)}


def _above(job: TrainingJob, processes: Processes) -> set[int]:
    return {ancestor.pid for rank in job.ranks for ancestor in ancestors(rank, processes)} - {1}


def jobs_there(jobs: Sequence[TrainingJob]) -> str:
    """Say which jobs there are: "The jobs here: 4711 (torchrun train.py, 8 ranks) and 5200 (python train.py, 2 ranks)."."""
    if not jobs:
        return NO_JOB
    named = []
    for job in jobs:
        process = job.launcher or job.ranks[0]
        ranks = plural(len(job.ranks), "rank")
        named.append(f"{job.name} ({clip(process.command or process.name, 60)}, {ranks})")
    return f"The job{'s' if len(jobs) > 1 else ''} here: {listed(named, _MAX_NAMED)}."


# --- whose finding it is ----------------------------------------------------------------------------------------------------


def _of_job(examination: Examination, job: TrainingJob) -> tuple[Examination, int]:
    """Leave out the findings that name processes, and none of this job or on its GPUs; count these."""
    processes = examination.snapshot.processes
    assert not isinstance(processes, Unknown)
    own = members(job) | _beside(job, examination.snapshot)
    foreign = {process.pid for process in processes.listed} - own
    left_out = 0
    results = []
    for result in examination.results:
        kept = tuple(
            finding for finding in result.findings if names_any(finding, own) or not names_any(finding, foreign)
        )
        left_out += len(result.findings) - len(kept)
        results.append(msgspec.structs.replace(result, findings=kept))
    return msgspec.structs.replace(examination, results=tuple(results)), left_out


def _beside(job: TrainingJob, snapshot: Snapshot) -> set[int]:
    """Collect the pids of all that is on the GPUs of this job."""
    if isinstance(snapshot.gpus, Unknown) or isinstance(snapshot.processes, Unknown):
        return set()
    own, held = members(job), holdings(snapshot.gpus, snapshot.processes)
    gpus = {held_gpu.gpu.index for held_gpu in held if held_gpu.process and held_gpu.process.pid in own}
    return {held_gpu.holder.pid for held_gpu in held if held_gpu.gpu.index in gpus}


def names_any(finding: Finding, pids: set[int]) -> bool:
    """Whether one of these pids stands in its words."""
    words = " ".join([finding.summary, *(evidence.text for evidence in finding.evidence)])
    return not pids.isdisjoint(pids_in(words))
