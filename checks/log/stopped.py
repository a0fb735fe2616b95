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
ENDED_BY: Final = {
    "walltime": ("PBS ended the job: its time was up", Fix(MORE_TIME, ("qsub -l walltime=48:00:00 job.sh",))),
    "RUNLIMIT": ("LSF ended the job: its time was up", Fix(MORE_TIME, ("bsub -W 48:00 < job.sh",))),
    "PREEMPT": (
        "LSF took the nodes for a job of higher priority",
        Fix("Let LSF start it again by itself, and resume", ("bsub -r < job.sh",)),
    ),
    "timed-out": ("Slurm ended the job: its time was up", REASONS["TIME LIMIT"]),
    "preempted": ("Slurm took the nodes for a job of higher priority", REASONS["PREEMPTION"]),
}
"""What other schedulers than Slurm itself say, by their word for it."""
LSF_WHO: Final = Fix("If nobody did it on purpose, ask LSF who ended it", ("bhist -l JOBID",))
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
    said_so = word(seen, "pbs") or word(seen, "lsf") or word(seen, "submitit")
    if said_so in ENDED_BY:
        summary, fix = ENDED_BY[said_so]
        yield Finding.of(summary, said, fix, RESUME)
        return
    if said_so:
        who = "its owner" if said_so.endswith("OWNER") else "an administrator"
        yield Finding.of(f"The job was ended by {who}, says LSF", said, LSF_WHO, RESUME)
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
