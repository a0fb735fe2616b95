"""A run that was ended from outside: by a signal, a scheduler, the one who started it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix
from ddpdoctor.base.text import signal_name
from ddpdoctor.engine.registry import Catalogue, LogSign, SignRole, check, requires
from ddpdoctor.facts.log import Log
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import signal_of
from ddpdoctor.logs.analyze.exceptions import short_name
from ddpdoctor.logs.analyze.false_positives import COMPLETED, TAKEN_BACK
from ddpdoctor.logs.analyze.sightings import NO_LOG, lines, own_line, sightings, where, word
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of

SLURM: Final = "slurm: src/slurmd/slurmstepd/req.c"
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
MOST_RANKS: Final = 8
PASSED_ON: Final = {"HUP": "1", "INT": "2", "QUIT": "3"}


@check(
    "stopped-from-outside",
    severity=FAIL,
    stands_for=(LogTopic.STOPPED,),
    log_signs=(
        LogSign(
            " CANCELLED AT ",
            why="slurmstepd's words as it ends a job or step, with the reason; without one it may be a rank's failure",
            pattern=r"CANCELLED AT \S+ DUE TO (?P<reason>TIME LIMIT|PREEMPTION|NODE FAILURE|JOB REQUEUE)",
            source=SLURM,
        ),
        LogSign(
            "PBS: job killed: walltime",
            why="PBS's and TORQUE's words as they end a job at its time limit",
            pattern=r"PBS: job killed: (?P<pbs>walltime) \d+ exceeded limit \d+",
            source="PBS and TORQUE, as reported in public",
        ),
        LogSign(
            ": job killed ",
            why="LSF's reason, in the report that it writes behind the job's output",
            pattern=r"^\s*(?:Completed <\w+>; )?TERM_(?P<lsf>RUNLIMIT|(?:FORCE_)?(?:OWNER|ADMIN)|PREEMPT): job killed ",
            source="LSF's bjobs and job reports, as reported in public",
        ),
        LogSign(
            "attempting graceful shutdown",
            why="Lightning says so as it gets Ctrl-C",
            pattern=r"Detected (?P<interrupt>KeyboardInterrupt), attempting graceful shutdown",
            source="pytorch-lightning 2.5.5: trainer/call.py",
        ),
        LogSign(
            TAKEN_BACK,
            why="submitit's word as Slurm takes the nodes back",
            pattern=r"Caught signal SIG\w+ on \S+: this job is (?P<submitit>preempted|timed-out)",
            source="submitit 1.5.4: core/job_environment.py",
        ),
        LogSign(
            COMPLETED,
            refutes=(TAKEN_BACK,),
            refutes_earlier=True,
            why="submitit's word on a job that came to its end: one that was taken back before was started again",
            role=SignRole.NOISE,
            source="submitit 1.5.4: core/submission.py",
        ),
        LogSign(
            ":Need to kill Pod",
            why="the kubelet's event as it ends a pod, by order or to save the node",
            role=SignRole.HINTS,
            pattern=r"Killing container with (?:docker )?id \S+:Need to kill Pod",
            source="kubernetes 1.12: pkg/kubelet/kuberuntime/kuberuntime_container.go",
        ),
        LogSign(
            "Evicted",
            why="the kubelet ended the pod to save the node; of what, the event's message says",
            role=SignRole.HINTS,
            pattern=r"\bWarning\s+Evicted\s|^(?:Status|Reason):\s+(?:Failed\s+Reason:\s+)?Evicted\s*$",
            source="kubectl describe and get events, as reported in public",
        ),
        LogSign(
            "death signal, shutting down workers",
            why="torchrun was told to end; Slurm does so, too, where another node's torchrun has failed",
            role=SignRole.HINTS,
            pattern=r"Received (?P<signal>\d+) death signal",
            source="torch 2.13.0: torch/distributed/elastic/agent/server/api.py",
        ),
        *(
            LogSign(
                text,
                why="torchrun passes on the signal that it got itself; where a rank has failed it sends the others SIGTERM",
                pattern=r"(?:Sending process \d+ closing signal|Closing process \d+ via signal) SIG(?P<passed_on>HUP|INT|QUIT)\b",
                source="torch 2.13.0: torch/distributed/elastic/multiprocessing/api.py",
            )
            for text in ("closing signal SIG", "via signal SIG")
        ),
    ),
)
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
        yield Finding(summary=f"Slurm ended the job: {reason.lower()}", evidence=said, fixes=(REASONS[reason], RESUME))
        return
    said_so = word(seen, "pbs") or word(seen, "lsf") or word(seen, "submitit")
    if said_so in ENDED_BY:
        summary, fix = ENDED_BY[said_so]
        yield Finding(summary=summary, evidence=said, fixes=(fix, RESUME))
        return
    if said_so:
        who = "its owner" if said_so.endswith("OWNER") else "an administrator"
        yield Finding(summary=f"The job was ended by {who}, says LSF", evidence=said, fixes=(LSF_WHO, RESUME))
        return
    by_keyboard = (
        signal == "2"
        or bool(word(seen, "interrupt"))
        or (found.raised is not None and short_name(found.raised.exception) == "KeyboardInterrupt")
    )
    interrupted = [
        one for one in log.raised if short_name(one.exception) == "KeyboardInterrupt" and one.line.rank is not None
    ]
    stood = tuple(place for one in interrupted[:MOST_RANKS] for place in own_line(log, one))
    signal = signal or (str(signal_of(found.exited) or "") if found.exited else "")
    how = "by Ctrl-C (SIGINT)" if by_keyboard else f"by {signal_name(int(signal))}" if signal else "by a signal"
    one_alone = found.exited is not None and found.exited.first and bool(found.effects) and found.lead.rank is not None
    who = f"Rank {found.lead.rank}" if one_alone else "The run"
    yield Finding(
        summary=f"{who} was ended from outside, {how}{'; the others only lost it' if one_alone else ''}",
        cause="The lines of the script are where each rank stood: if it hung, what it waited for." if stood else "",
        evidence=(*said, *stood),
        fixes=(RESUME,) if by_keyboard else (WHO_DID_IT, RESUME),
    )
