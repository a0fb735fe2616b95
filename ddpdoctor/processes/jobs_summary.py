"""The words around a job's table: what it is, what could not be seen, and those remarks that no check makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import Severity
from ddpdoctor.base.text import listed, one_line, plural
from ddpdoctor.base.unknown import Unknown
from ddpdoctor.engine.examination import Examination
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.processes import Processes
from ddpdoctor.processes.job_words import Remark
from ddpdoctor.processes.jobs import TrainingJob
from ddpdoctor.processes.overview import JobView, Overview
from ddpdoctor.processes.rank_table import age
from ddpdoctor.report.summary import summary

NO_JOB = "No training job runs on this host that this user can see"


def headline(view: JobView) -> str:
    """ "torchrun --nproc-per-node=8 train.py"."""
    job = view.job
    process = job.launcher or job.ranks[0]
    return one_line(process.command or process.name) or "a process without a name"


def described(job: TrainingJob) -> str:
    """ "alice, 2.1 h, 8 ranks here (0-7) of 16, launcher pid 4711, 16 DataLoader workers"."""
    users = sorted({one_line(rank.user) or str(rank.uid) for rank in job.ranks})
    numbers = {rank.place.rank for rank in job.ranks if rank.place}
    here = plural(len(job.ranks), "rank")
    if job.expected and len(numbers) != len(job.expected):
        here = f"{len(numbers)} of {len(job.expected)} ranks"
    more = job.world_size is not None and job.world_size > len(numbers | set(job.missing))
    parts = [
        listed(users, 3),
        f"up {age(max(rank.age for rank in job.ranks))}",
        f"{here} on this host of {job.world_size} in all" if more else here,
        _launchers(job),
        *_workers(job),
        *(["the order in which they were started is taken for their ranks"] if _guessed(job) else []),
    ]
    containers = sorted({rank.container for rank in job.ranks if rank.container})
    if containers:
        parts.append(f"in container {listed(containers, 3)}")
    return ", ".join(parts)


def _launchers(job: TrainingJob) -> str:
    if not job.launchers:
        return "no launcher here"
    return f"launcher{'' if len(job.launchers) == 1 else 's'} pid {listed((launcher.pid for launcher in job.launchers), 4)}"


def _workers(job: TrainingJob) -> Iterator[str]:
    count = sum(len(job.workers_of(rank)) for rank in job.ranks)
    if count:
        yield plural(count, "DataLoader worker")


def _guessed(job: TrainingJob) -> bool:
    return any(rank.forked for rank in job.ranks)


def in_words(remarks: Sequence[Remark]) -> list[tuple[Severity, str]]:
    """Each as a sentence."""
    return [(remark.severity, one_line(remark.text)) for remark in remarks]


def heading(overview: Overview) -> list[tuple[str, str]]:
    """(label, text): the host and its GPUs, and what of it was seen."""
    rows = [(label, text) for label, text in summary(overview.examination) if label in ("host", "GPUs")]
    return [*rows, ("seen", seen(overview.examination))]


def seen(examination: Examination) -> str:
    """ "214 processes, all of them looked into; watched for 0.3 s"."""
    processes = examination.snapshot.processes
    if isinstance(processes, Unknown):
        return f"no process: {processes.reason}"
    closed = _closed(processes) or ("not all" if processes.spared else "all of them") + " looked into"
    watched = f"; watched for {processes.watched:.1f} s" if processes.watched else ""
    return f"{plural(processes.count, 'process', 'processes')}, {closed}{watched}" + "".join(
        f"; {reason}" for reason in hidden(examination)
    )


def _closed(processes: Processes) -> str:
    if not processes.closed:
        return ""
    why = ", being others': only root may" if processes.uid else ""
    return f"{processes.closed} of which can't be looked into{why}"


def hidden(examination: Examination) -> list[str]:
    """List what could not be seen of processes and GPUs, and why."""
    processes, gpus = examination.snapshot.processes, examination.snapshot.gpus
    said = []
    if isinstance(processes, Processes) and processes.unseen:
        said.append(f"there may be more: {one_line(processes.unseen)}")
    if isinstance(processes, Processes):
        said += [one_line(spared.words) for spared in processes.spared]
    if isinstance(gpus, Unknown):
        said.append(f"who is on which GPU is not known: {one_line(gpus.reason)}")
    elif silent := _silent(gpus):
        said.append(silent)
    return said


def _silent(gpus: Gpus) -> str:
    reasons = {one_line(gpu.holders.reason): gpu.index for gpu in gpus.answering if isinstance(gpu.holders, Unknown)}
    return f"who is on which GPU is not known: {listed(reasons, 2)}" if reasons else ""


def nothing_here(overview: Overview) -> str:
    """Why there is no table."""
    processes = overview.examination.snapshot.processes
    if isinstance(processes, Unknown):
        return f"Whether a training job runs here can't be told: {one_line(processes.reason)}"
    return f"{NO_JOB}."


def looked_for() -> str:
    """By what a rank would have been found."""
    return (
        "A rank is known by its settings (RANK, LOCAL_RANK, a launcher's), by its parent (torchrun, mp.spawn), and by threads "
        "of torch's process groups."
    )
