"""A run that was ended from outside: by a signal, a scheduler, the one who started it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import signal_name
from ddpdoctor.engine.registry import Catalogue, SignRole, check, requires
from ddpdoctor.facts.log import Log
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import signal_of
from ddpdoctor.logs.analyze.sightings import NO_LOG, lines, own_line, sightings, where, word
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.exceptions import short_name

RESUME: Final = Fix("Save checkpoints often enough, and start again from the last one")
WHO_DID_IT: Final = Fix(
    "If nobody did it on purpose, ask the scheduler who did",
    ("sacct -j JOBID -o JobID,State,ExitCode,End", "kubectl describe pod POD"),
)
REASONS: Final = {
    "TIME LIMIT": Fix("Ask for more time, if the partition lets you", ("sbatch --time=2-00:00:00 job.sh",)),
    "PREEMPTION": Fix("Let Slurm start it again by itself, and resume", ("sbatch --requeue job.sh",)),
    "NODE FAILURE": Fix("See which node it was, and leave it out until it is mended", ("sinfo -R", "sbatch --exclude=NODE job.sh")),
    "JOB REQUEUE": Fix("Nothing, if the script resumes: Slurm starts the job again", ("squeue -j JOBID",)),
}  # fmt: skip
MORE_TIME: Final = "Ask for more time, if the queue lets you"
LSF_WHO: Final = Fix("If nobody did it on purpose, ask LSF who ended it", ("bhist -l JOBID",))
OF_GRID_ENGINE: Final = (
    "Grid Engine ended the job: its time was up",
    Fix(MORE_TIME, ("qsub -l h_rt=48:00:00 job.sh",)),
)
_BY_NEPTUNE: Final = (
    "Somebody ended the run in Neptune's web application",
    Fix("Ask the others of the project in Neptune, if it wasn't you"),
)
ENDED_BY: Final = {
    "walltime": ("PBS ended the job: its time was up", Fix(MORE_TIME, ("qsub -l walltime=48:00:00 job.sh",))),
    "cput": ("PBS ended the job: its time on the CPUs was up", Fix(MORE_TIME, ("qsub -l cput=480:00:00 job.sh",))),
    "node": (
        "PBS ended the job: it lost one of its nodes",
        Fix("See which node it was, and leave it out until it is mended", ("pbsnodes -l", "tracejob JOBID")),
    ),
    "RUNLIMIT": ("LSF ended the job: its time was up", Fix(MORE_TIME, ("bsub -W 48:00 < job.sh",))),
    "PREEMPT": (
        "LSF took the nodes for a job of higher priority",
        Fix("Let LSF start it again by itself, and resume", ("bsub -r < job.sh",)),
    ),
    "OWNER": ("The job was ended by its owner, says LSF", LSF_WHO),
    "ADMIN": ("The job was ended by an administrator, says LSF", LSF_WHO),
    "timed-out": ("Slurm ended the job: its time was up", REASONS["TIME LIMIT"]),
    "preempted": ("Slurm took the nodes for a job of higher priority", REASONS["PREEMPTION"]),
    "timeout": (
        "timeout ended the run: the time that its command line gives it was up",
        Fix("Give it more time, or start without timeout", ("timeout -v 48h torchrun ...",)),
    ),
    "terminate": (
        "The cloud took the machine back: it was one of the spot market",
        Fix("Let the script save a checkpoint as the notice comes, and start again elsewhere"),
    ),
    "stop signal": _BY_NEPTUNE,
    "abort signal": _BY_NEPTUNE,
    "KILLED": (
        "OAR killed the job: its walltime was reached, somebody deleted it, or it was a besteffort job whose nodes were taken",
        Fix(
            "See which it was; ask for more time if it was that",
            ("oarstat -f -j JOBID", "oarsub -l nodes=1,walltime=48:00:00 ./job.sh"),
        ),
    ),
    "exceeded hard wallclock time": OF_GRID_ENGINE,
    "h_rt": OF_GRID_ENGINE,
    "qmaster enforced": (
        "Grid Engine ended the job at one of its limits: mostly its time (h_rt) was up",
        Fix("See what it used, and ask for more", ("qacct -j JOBID", "qsub -l h_rt=48:00:00 job.sh")),
    ),
    "Job was aborted": (
        "HTCondor removed the job: somebody did, or a rule of the job or the site",
        Fix("Read the reason below the event, or ask HTCondor", ("condor_history JOBID -af RemoveReason",)),
    ),
    "Job was evicted": (
        "HTCondor took the job's place away, and runs it again when it can",
        Fix(
            "Let the script resume from its last checkpoint; see why it was",
            ("condor_history JOBID -af LastVacateReason",),
        ),
    ),
    "Job was held": (
        "HTCondor took the job down, and keeps it until somebody releases it",
        Fix("Mend what it gives as the reason, then let it run", ("condor_q -hold JOBID", "condor_release JOBID")),
    ),
    "Shadow exception": (
        "HTCondor could not run the job where it wanted to",
        Fix("Mend what it gives as the reason", ("condor_q -better-analyze JOBID",)),
    ),
}
"""What others than Slurm itself say as they end a job, by their word for it."""
REASON_BELOW: Final = ("Job was aborted", "Job was held", "Shadow exception")
MAX_RANKS: Final = 8
PASSED_ON: Final = {"HUP": "1", "INT": "2", "QUIT": "3"}


@check("stopped-from-outside", severity=FAIL, owner=Owner.UNKNOWN, stands_for=(LogTopic.STOPPED,))
def stopped_from_outside(log: Log, catalogue: Catalogue) -> Iterator[Finding]:
    """The run was ended from outside, and not by an error of its own.

    ## What breaks
    All ranks end at once, by SIGTERM, SIGINT or KeyboardInterrupt, often in the middle of a step.

    ## Why
    Somebody pressed Ctrl-C or cancelled the job, the scheduler's time limit was reached, a job of higher priority took its
    place, a pod was evicted, or the terminal or ssh session that it ran in was closed.

    ## Fix
    Ask the scheduler who ended it: `sacct -j JOBID -o JobID,State,ExitCode,End`, `kubectl describe pod POD`. Ask for more time,
    save checkpoints often enough, and resume. Start long runs by sbatch or in tmux, so that they outlive the session.
    """
    requires(log.files, NO_LOG)
    found = verdict_of(log, catalogue)
    if found.outcome is not RunOutcome.STOPPED or found.lead is None:
        return
    seen = [sighting for sighting in sightings(log, "stopped-from-outside") if sighting.role is not SignRole.NOISE]
    said = lines(log, seen) or (Evidence(found.lead.text.strip(), where(log, found.lead)),)
    reason, signal = word(seen, "reason"), word(seen, "signal") or PASSED_ON.get(word(seen, "passed_on"), "")
    if reason:
        yield Finding.of(f"Slurm ended the job: {reason.lower()}", said, REASONS[reason], RESUME)
        return
    if (ended_by := word(seen, "ended_by")) in ENDED_BY:
        summary, fix = ENDED_BY[ended_by]
        below = [Evidence(line.text.strip(), where(log, line)) for sign in seen for line in sign.after[:1]]
        yield Finding.of(summary, said, below[:1] if ended_by in REASON_BELOW else (), fix, RESUME)
        return
    by_keyboard = (
        signal == "2"
        or bool(word(seen, "interrupt"))
        or (found.raised is not None and short_name(found.raised.exception) == "KeyboardInterrupt")
    )
    interrupted = [
        exception
        for exception in log.raised
        if short_name(exception.exception) == "KeyboardInterrupt" and exception.line.rank is not None
    ]
    stood = tuple(place for exception in interrupted[:MAX_RANKS] for place in own_line(log, exception))
    signal = signal or (str(signal_of(found.exited) or "") if found.exited else "")
    how = "by Ctrl-C (SIGINT)" if by_keyboard else f"by {signal_name(int(signal))}" if signal else "by a signal"
    one_alone = found.exited is not None and found.exited.first and bool(found.effects) and found.lead.rank is not None
    who = f"Rank {found.lead.rank}" if one_alone else "The run"
    yield Finding.of(
        f"{who} was ended from outside, {how}{'; the others only lost it' if one_alone else ''}",
        said,
        stood,
        (RESUME,) if by_keyboard else (WHO_DID_IT, RESUME),
        cause="The lines of the script are where each rank stood: if it hung, what it waited for." if stood else "",
    )
