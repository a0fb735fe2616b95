"""A run that was ended from outside: by a signal, a scheduler, the one who started it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import signal_name
from ddpdoctor.engine.registry import Catalogue, SignRole, check, requires
from ddpdoctor.facts.log import Log
from ddpdoctor.knowledge.log_topics import LogTopic
from ddpdoctor.logs.analyze.endings import CANCELLED, signal_of
from ddpdoctor.logs.analyze.sightings import NO_LOG, job_of_slurm, lines, own_line, sightings, where, word
from ddpdoctor.logs.analyze.verdict import RunOutcome, verdict_of
from ddpdoctor.logs.exceptions import short_name

RESUME: Final = Fix("Save checkpoints often enough, and start again from the last one")
WHO_DID_IT: Final = Fix(
    "If nobody did it on purpose, ask the scheduler who did",
    ("sacct -j JOBID -o JobID,State,ExitCode,End", "kubectl describe pod POD"),
)
PREEMPTED: Final = "Another job with a higher priority needed the place: who asks for this partition, queue or priority class has to expect it."
TIME: Final = "The run took longer than the job had asked for, or than the queue or partition gives to any job."
MORE_TIME: Final = "Ask for more time, if the queue lets you"
NODE_LOST: Final = (
    "A node of the job was rebooted, crashed, or could not be reached any more, and the scheduler ended what ran there."
)
LEAVE_IT_OUT: Final = "See what the node has, and leave it out until it is mended"
BY_ITS_OWN_RULE: Final = "The reason stands in the event itself, or below it."


class Ending(NamedTuple):
    """What others say as they end a job, by one of their words: in a sentence, why they do so, and what to do."""

    summary: str
    cause: str
    fix: Fix


OF_SLURM_TIME: Final = Ending(
    "Slurm ended the job: its time was up", TIME, Fix(MORE_TIME, ("sbatch --time=2-00:00:00 job.sh",))
)
OF_SLURM_PREEMPTION: Final = Ending(
    "Slurm took the nodes for a job of higher priority",
    PREEMPTED,
    Fix("Let Slurm start it again by itself, and resume", ("sbatch --requeue job.sh",)),
)
OF_GRID_ENGINE: Final = Ending(
    "Grid Engine ended the job: its time was up", TIME, Fix(MORE_TIME, ("qsub -l h_rt=48:00:00 job.sh",))
)
LSF_WHO: Final = Fix("If nobody did it on purpose, ask LSF who ended it", ("bhist -l JOBID",))
_BY_NEPTUNE: Final = Ending(
    "Somebody ended the run in Neptune's web application",
    "Neptune passes on a stop, or an abort, that somebody has clicked there.",
    Fix("Ask the others of the project in Neptune, if it wasn't you"),
)
ENDED_BY: Final = {
    "TIME LIMIT": OF_SLURM_TIME,
    "timed-out": OF_SLURM_TIME,
    "PREEMPTION": OF_SLURM_PREEMPTION,
    "preempted": OF_SLURM_PREEMPTION,
    "NODE FAILURE": Ending(
        "Slurm ended the job: it lost one of its nodes",
        NODE_LOST,
        Fix(LEAVE_IT_OUT, ("sinfo -R", "sbatch --exclude=NODE job.sh")),
    ),
    "JOB REQUEUE": Ending(
        "Slurm ended the job to start it again",
        "Somebody, or a rule of the site, put the job back into the queue (scontrol requeue).",
        Fix("Nothing, if the script resumes: Slurm starts the job again", ("squeue -j JOBID",)),
    ),
    "walltime": Ending(
        "PBS ended the job: its time was up", TIME, Fix(MORE_TIME, ("qsub -l walltime=48:00:00 job.sh",))
    ),
    "cput": Ending(
        "PBS ended the job: its time on the CPUs was up",
        "All processes of the job together took more time on the CPUs than it had asked for.",
        Fix(MORE_TIME, ("qsub -l cput=480:00:00 job.sh",)),
    ),
    "node": Ending(
        "PBS ended the job: it lost one of its nodes", NODE_LOST, Fix(LEAVE_IT_OUT, ("pbsnodes -l", "tracejob JOBID"))
    ),
    "RUNLIMIT": Ending("LSF ended the job: its time was up", TIME, Fix(MORE_TIME, ("bsub -W 48:00 < job.sh",))),
    "PREEMPT": Ending(
        "LSF took the nodes for a job of higher priority",
        PREEMPTED,
        Fix("Let LSF start it again by itself, and resume", ("bsub -r < job.sh",)),
    ),
    "OWNER": Ending(
        "The job was ended by its owner, says LSF", "Who had started the job ended it, as bkill does.", LSF_WHO
    ),
    "ADMIN": Ending(
        "The job was ended by an administrator, says LSF",
        "An administrator of the cluster ended it, as bkill does.",
        LSF_WHO,
    ),
    "timeout": Ending(
        "timeout ended the run: the time that its command line gives it was up",
        "The command was started by timeout, with fewer seconds than it needed.",
        Fix("Give it more time, or start without timeout", ("timeout -v 48h torchrun ...",)),
    ),
    "terminate": Ending(
        "The cloud took the machine back: it was one of the spot market",
        "Machines of the spot market are cheap since the cloud may take them back at any time, with a notice of two minutes.",
        Fix("Let the script save a checkpoint as the notice comes, and start again elsewhere"),
    ),
    "stop signal": _BY_NEPTUNE,
    "abort signal": _BY_NEPTUNE,
    "KILLED": Ending(
        "OAR killed the job: its walltime was reached, somebody deleted it, or it was a besteffort job whose nodes were taken",
        "OAR says the same of all three.",
        Fix(
            "See which it was; ask for more time if it was that",
            ("oarstat -f -j JOBID", "oarsub -l nodes=1,walltime=48:00:00 ./job.sh"),
        ),
    ),
    "exceeded hard wallclock time": OF_GRID_ENGINE,
    "h_rt": OF_GRID_ENGINE,
    "qmaster enforced": Ending(
        "Grid Engine ended the job at one of its limits: mostly its time (h_rt) was up",
        TIME,
        Fix("See what it used, and ask for more", ("qacct -j JOBID", "qsub -l h_rt=48:00:00 job.sh")),
    ),
    "Job was aborted": Ending(
        "HTCondor removed the job: somebody did, or a rule of the job or the site",
        BY_ITS_OWN_RULE,
        Fix("Read the reason below the event, or ask HTCondor", ("condor_history JOBID -af RemoveReason",)),
    ),
    "Job was evicted": Ending(
        "HTCondor took the job's place away, and runs it again when it can",
        PREEMPTED,
        Fix(
            "Let the script resume from its last checkpoint; see why it was",
            ("condor_history JOBID -af LastVacateReason",),
        ),
    ),
    "Job was held": Ending(
        "HTCondor took the job down, and keeps it until somebody releases it",
        BY_ITS_OWN_RULE,
        Fix("Mend what it gives as the reason, then let it run", ("condor_q -hold JOBID", "condor_release JOBID")),
    ),
    "Shadow exception": Ending(
        "HTCondor could not run the job where it wanted to",
        BY_ITS_OWN_RULE,
        Fix("Mend what it gives as the reason", ("condor_q -better-analyze JOBID",)),
    ),
    "active": Ending(
        "Kubernetes ended the job: its time was up",
        "The pod or Job ran for longer than its activeDeadlineSeconds allows.",
        Fix(
            "Raise activeDeadlineSeconds in the Job's or pod's spec, or leave it out, and start it again",
            ("kubectl get jobs,pods -o yaml | grep -n activeDeadlineSeconds",),
        ),
    ),
    "Preempted": Ending(
        "Kubernetes took the pod's place for one of higher priority",
        PREEMPTED,
        Fix("Give the pods a priority class that isn't preempted, if you may", ("kubectl get priorityclasses",)),
    ),
    "Evicted": Ending(
        "Kubernetes evicted the pod",
        "The kubelet ended it to save its node, which ran out of memory, disk or process numbers, or somebody asked for it.",
        Fix("See the reason, which stands in the pod's message", ("kubectl describe pod POD",)),
    ),
    "shut": Ending(
        "Kubernetes ended the pod: its node was shut down",
        "Somebody shut the node down or rebooted it, the autoscaler removed it, or the cloud took it back.",
        Fix("Start it again on another node; see which are ready", ("kubectl get nodes",)),
    ),
    "Marking for deletion": Ending(
        "Kubernetes deleted the pod: its node had a taint that no pod there may have",
        "Mostly the node was not ready, or could not be reached for five minutes; or somebody emptied it.",
        Fix("See which nodes are not ready; what is left of the job, start again on others", ("kubectl get nodes",)),
    ),
}
"""By their word for it."""
BY_SLURM: Final = Ending(
    "The run was ended from outside: somebody cancelled it (scancel), or Slurm did",
    "Slurm gives no reason, as it does for the time limit, a preemption and a lost node: mostly somebody ran scancel.",
    Fix(
        "If nobody did it on purpose, ask Slurm: State is CANCELLED by the number of who did",
        ("sacct -j JOBID -o JobID,State,ExitCode,End",),
    ),
)
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
    signal = word(seen, "signal") or PASSED_ON.get(word(seen, "passed_on"), "")
    names = {"JOBID": job_of_slurm(seen, log), "NODE": word(seen, "node")}
    if (ended_by := word(seen, "ended_by")) in ENDED_BY:
        ending = ENDED_BY[ended_by]
        below = [Evidence(line.text.strip(), where(log, line)) for sign in seen for line in sign.after[:1]]
        yield Finding.of(
            ending.summary,
            said,
            below[:1] if ended_by in REASON_BELOW else (),
            _filled(ending.fix, names),
            RESUME,
            cause=ending.cause,
        )
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
    if not by_keyboard and not one_alone and any(CANCELLED in end.line.text for end in log.exited):
        yield Finding.of(BY_SLURM.summary, said, stood, _filled(BY_SLURM.fix, names), RESUME, cause=BY_SLURM.cause)
        return
    who = f"Rank {found.lead.rank}" if one_alone else "The run"
    yield Finding.of(
        f"{who} was ended from outside, {how}{'; the others only lost it' if one_alone else ''}",
        said,
        stood,
        (RESUME,) if by_keyboard else (WHO_DID_IT, RESUME),
        cause="The lines of the script are where each rank stood: if it hung, what it waited for." if stood else "",
    )


def _filled(fix: Fix, names: Mapping[str, str]) -> Fix:
    """Put what the log names into the commands, in the place of the words that stand for it."""
    commands = fix.commands
    for placeholder, name in names.items():
        if name:
            commands = tuple(command.replace(placeholder, shlex.quote(name)) for command in commands)
    return msgspec.structs.replace(fix, commands=commands)
