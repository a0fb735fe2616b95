"""Finds what a job of Slurm that has just ended left behind on this host, and ends it under the rules of `zombies`.

Root's look takes the job's user for its own: the same doubts, the same two looks. What isn't of this job is not touched, whosever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from ddpdoctor.base.findings import FAIL, WARN, Owner
from ddpdoctor.base.unknown import Maybe, Unknown
from ddpdoctor.engine.registry import Catalogue
from ddpdoctor.facts.processes import Process
from ddpdoctor.fixes import leftovers
from ddpdoctor.gating.gpu_agents import is_agent
from ddpdoctor.gating.outcome import Concern
from ddpdoctor.knowledge.hostlist import expand
from ddpdoctor.processes.jobs import setting
from ddpdoctor.processes.leftovers.ending import Endings, LeftoverLook, end
from ddpdoctor.processes.leftovers.leftover import Leftover
from ddpdoctor.report.reported_leftovers import Certainty, Fate, LeftoverKind

JOB_ID: Final = "SLURM_JOB_ID"
JOB_GPUS: Final = "SLURM_JOB_GPUS"


class FinishedJob(msgspec.Struct, frozen=True):
    """A job of Slurm. gpus: of this host, that it had, as NVML counts them."""

    number: str
    uid: int
    gpus: Maybe[frozenset[int]] = frozenset()


def ended_job(environ: Mapping[str, str]) -> FinishedJob | None:
    """The job that an epilog follows; None where nothing names it."""
    number, uid = environ.get(JOB_ID, ""), environ.get("SLURM_JOB_UID", "")
    if not (number.isdecimal() and uid.isdecimal()):
        return None
    return FinishedJob(number, int(uid), _gpus(environ.get(JOB_GPUS, "")))


def _gpus(text: str) -> Maybe[frozenset[int]]:
    """The GPUs of Slurm's "0,2" or "0-3,5"."""
    try:
        return frozenset(map(int, expand(f"[{text}]") if text else ()))
    except ValueError:
        return Unknown(f"{JOB_GPUS}={text} is no list of numbers")


def look_for(job: FinishedJob, until: float) -> LeftoverLook:
    """Look at this host as the job's user, with the rights that we have. until: when to wait no longer, by the monotonic clock."""
    return as_seen_by(job, leftovers.look(until))


def as_seen_by(job: FinishedJob, look: LeftoverLook) -> LeftoverLook:
    """The same look, in which what is the job's user's counts as the caller's own."""
    if isinstance(look.processes, Unknown):
        return look
    return msgspec.structs.replace(look, processes=msgspec.structs.replace(look.processes, uid=job.uid))


def left_by(job: FinishedJob, look: LeftoverLook, agents: Collection[str] = ()) -> tuple[Leftover, ...]:
    """What of all that is left over is this job's.

    Args:
        job: that has ended.
        look: at this host.
        agents: names of programs that look after the GPUs, beside the usual ones: they are nobody's leftovers.
    """
    return tuple(leftover for leftover in look.leftovers if _is_of(leftover, job, look, agents))


def _is_of(leftover: Leftover, job: FinishedJob, look: LeftoverLook, agents: Collection[str]) -> bool:
    if leftover.kind is LeftoverKind.MEMORY:
        return not isinstance(job.gpus, Unknown) and bool(job.gpus & set(leftover.gpus))
    if leftover.path:
        return leftover.certainty is not Certainty.NOT_OURS
    process = next((process for process in look.listed if process.identity == leftover.identity), None)
    return process is not None and is_of_job(process, job) and not is_agent(process, agents)


def is_of_job(process: Process, job: FinishedJob) -> bool:
    """Whether it ran in the job's cgroup; or, where it is in no job's, is of the job's user and was started with the job's number."""
    if process.unit.startswith("job_"):
        return process.unit == f"job_{job.number}"
    return process.uid == job.uid and setting(process, JOB_ID) == job.number


def end_left(left: Sequence[Leftover], job: FinishedJob, first: LeftoverLook, until: float) -> Endings:
    """End what of it is proven, after a second look some seconds after the first."""
    endings = Endings()
    if proven := [leftover for leftover in left if leftover.proven]:
        end(proven, first, lambda: look_for(job, until), endings)
    return endings


def leftover_concerns(left: Sequence[Leftover], endings: Endings, checks: Catalogue) -> Iterator[Concern]:
    """What is still there. It is the job's user's, but for what doesn't even end when it is killed: that the node holds."""
    fates = {ending.leftover: ending.fate for ending in endings.all}
    for leftover in left:
        fate = fates.get(leftover, Fate.LEFT)
        if fate in (Fate.LEFT, Fate.STAYS):
            (check,) = checks.standing_for(leftover.kind)
            held = fate is Fate.STAYS
            yield Concern(
                slug=check.slug,
                severity=FAIL if held else WARN,
                owner=Owner.NODE if held else Owner.USER,
                summary=f"{'killed, and still there' if held else 'left over'}: {leftover.what}",
                commands=(leftover.command,) if leftover.command else (),
            )
