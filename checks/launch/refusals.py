"""Jobs, and steps of jobs, that a scheduler refuses or finds no place for, before anything of them has begun."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ddpdoctor.base.findings import FAIL, Evidence, Finding, Fix, Owner
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.engine.log_traits import LogTraits
from ddpdoctor.facts.log import Log, LogLine, SignMatch
from ddpdoctor.logs.analyze.sightings import lines, where

PARTITIONS: Final = 'sinfo -o "%P %G %m %c %l %D"'
NODES_HAVE: Final = Fix(
    "See what nodes each partition has (GPUs, memory in MB, cores, the longest time, how many), and ask for no more of one than it has",
    (PARTITIONS,),
)
LIMITS: Final = Fix(
    "See the partition's limits (MaxTime, MaxNodes, AllowAccounts, AllowGroups, AllowQos)",
    ("scontrol show partition NAME",),
)
ACCOUNTS: Final = Fix(
    "See with which accounts, partitions and QOS you may run, and name one of those: --account=, --partition=, --qos=",
    ("sacctmgr show assoc user=$USER format=account,partition,qos",),
)
NAMES_OF_PARTITIONS: Final = Fix("See which partitions there are, and name one of those: --partition=", (PARTITIONS,))
GPUS: Final = Fix(
    "See which GPUs each partition has, by their names, and name them so: --gres=gpu:N, --gres=gpu:TYPE:N",
    (PARTITIONS,),
)
FILE: Final = Fix("See whether the file is there, and begins with #!/bin/bash", ("ls -l *.sh *.sbatch",))
OPTIONS: Final = Fix("See how that option is written", ("man sbatch",))
DAEMON: Final = Fix("See whether Slurm's controller answers, and try again", ("scontrol ping",))
ARRIVED: Final = Fix("See whether the job got there nevertheless, before you send it again", ("squeue --me",))
PBS_QUEUES: Final = Fix(
    "See which queues there are, who may use them and what they allow", ("qstat -Q", "qstat -Qf NAME")
)
PBS_NODES: Final = Fix("See what the nodes have", ("pbsnodes -a",))
LSF_QUEUES: Final = Fix("See which queues you may use, and what they allow", ("bqueues -u $USER", "bqueues -l NAME"))
LSF_NODES: Final = Fix("See what the nodes have", ("lshosts -w",))
GRID_ENGINE: Final = Fix(
    "See which queues, projects and parallel environments there are, and what they allow",
    ("qstat -g c", "qconf -sprjl", "qconf -spl"),
)
OF_THE_JOB: Final = Fix(
    "See what the job itself has: a step gets no more than that, and what it doesn't name is the job's",
    ("scontrol show job $SLURM_JOB_ID",),
)
STEP_BINDS: Final = Fix(
    "Give srun the job's own numbers of tasks and cores, which it doesn't always take over by itself, or let it bind nothing",
    ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "srun --cpu-bind=none ..."),
)
KUBERNETES_NODES: Final = Fix(
    "See what the nodes have, what of it is taken, and which taints they bear",
    (
        "kubectl describe nodes | grep -E '^(Name|Taints)|nvidia.com/gpu'",
        "kubectl describe pod POD",
    ),
)
KUBERNETES_QUOTA: Final = Fix(
    "See what the quota allows, and which pods use it", ("kubectl describe quota", "kubectl get pods")
)
RAY_NODES: Final = Fix(
    "See what each node has, and ask for no more of one than that: ScalingConfig(resources_per_worker=...), num_gpus=; a bundle can't span two nodes",
    ("ray status",),
)
CLOUD_QUOTA: Final = Fix(
    "Ask for machines of another kind, region or zone, or have the quota raised in the cloud's console: that of GPUs mostly begins at 0"
)
ASK: Final = Fix("If that doesn't tell why, ask those who run the cluster, with this line and the whole command")
MESSAGE: Final = re.compile(r"(?:sbatch|srun|salloc): error: (?P<text>.*\S)")
"""Of Slurm's commands; a submit filter's own words come so, too."""


class Reason(NamedTuple):
    """text: in a scheduler's words, in small letters. plain: the same as people say it. vague: another line tells more, if there is one."""

    text: str
    plain: str
    fixes: tuple[Fix, ...]
    vague: bool = False


OF_SLURM: Final = (
    Reason(
        "memory specification can not be satisfied",
        "it asks for more memory than any node of the partition has",
        (NODES_HAVE, Fix("Or ask for all of a node's memory, however much that is: --mem=0")),
    ),
    Reason(
        "cpu count per node can not be satisfied",
        "it asks for more cores of a node than any has (--ntasks-per-node times --cpus-per-task)",
        (NODES_HAVE,),
    ),
    Reason(
        "requested node configuration is not available",
        "no node of the partition has what it asks for (GPUs, memory or cores of one node)",
        (NODES_HAVE, GPUS),
        vague=True,
    ),
    Reason(
        "more processors requested than permitted",
        "it asks for more nodes or cores than the partition has",
        (NODES_HAVE, LIMITS),
    ),
    Reason("node count specification invalid", "it asks for more or fewer nodes than the partition allows", (LIMITS,)),
    Reason(
        "invalid generic resource (gres) specification",
        "it asks for GPUs by a name that this cluster doesn't have",
        (GPUS,),
    ),
    Reason(
        "invalid account or account/partition",
        "that account isn't yours, or isn't allowed in that partition",
        (ACCOUNTS, LIMITS),
    ),
    Reason("invalid partition", "this cluster has no partition of that name", (NAMES_OF_PARTITIONS,)),
    Reason("invalid qos specification", "that QOS isn't there, or your account may not use it", (ACCOUNTS,)),
    Reason(
        "job violates accounting/qos policy",
        "it goes beyond what your account or its QOS may have (jobs, GPUs, time), or names no account",
        (
            ACCOUNTS,
            Fix("See which of your jobs count already", ("squeue --me",)),
            Fix("See the limits of each QOS", ("sacctmgr show qos format=name,maxwall,maxtrespu,maxsubmitpu,grptres",)),
        ),
    ),
    Reason(
        "requested time limit is invalid",
        "it asks for more time than the partition allows, or for none where one has to be named (--time=)",
        (NODES_HAVE, LIMITS),
    ),
    Reason(
        "user's group not permitted to use this partition",
        "that partition isn't open to your group",
        (LIMITS, ACCOUNTS),
    ),
    Reason(
        "invalid feature specification",
        "no node has the feature that --constraint= names",
        (Fix("See which features nodes have", ('sinfo -o "%P %f %D"',)),),
    ),
    Reason(
        "invalid node name specified",
        "a node that --nodelist= or --exclude= names isn't there",
        (Fix("See which are", ("sinfo -N",)),),
    ),
    Reason(
        "required partition not available",
        "the partition takes no jobs now",
        (Fix("See which do, and in which state its nodes are", ("sinfo",)),),
    ),
    Reason(
        "requested reservation is invalid",
        "that reservation isn't there, is over, or isn't yours",
        (Fix("See which there are, from when to when, and for whom", ("scontrol show reservation",)),),
    ),
    Reason(
        "unable to satisfy cpu bind request",
        "the step asks for cores that the job doesn't have",
        (OF_THE_JOB, STEP_BINDS),
    ),
    Reason("requested nodes are busy", "the nodes that the step asks for are taken", (OF_THE_JOB,)),
    Reason("step completing or completed", "the job was over by then", (Fix("See how it ended", ("sacct -j JOBID",)),)),
    Reason(
        "invalid job id specified",
        "SLURM_JOB_ID names a job that is over, or that another cluster has",
        (
            Fix("Forget the variables of that job, and ask for nodes anew", ("unset ${!SLURM_@}", "salloc --nodes=1")),
            Fix("See which jobs you have", ("squeue --me",)),
        ),
    ),
    Reason(
        "munge encode failed",
        "Slurm can't prove who you are, since its service munge doesn't run here, or its socket isn't in the container",
        (
            Fix("See whether it runs", ("systemctl status munge", "munge -n")),
            Fix(
                "In a container bind its folder, or call Slurm from outside of it",
                ("apptainer exec --bind /run/munge ...",),
            ),
        ),
    ),
    Reason("unable to contact slurm controller", "Slurm's controller didn't answer", (DAEMON,)),
    Reason("socket timed out on send/recv", "Slurm's controller didn't answer in time", (ARRIVED, DAEMON)),
    Reason("unable to open file", "the batch script isn't there", (FILE,)),
    Reason(
        "dos line breaks",
        "the batch script has the line ends of Windows",
        (Fix("Write it with those of Unix", ("sed -i 's/\\r$//' JOB_SCRIPT",)),),
    ),
    Reason(
        "this does not look like a batch script", "the file doesn't begin with #!, as a batch script has to", (FILE,)
    ),
    Reason("invalid --", "the value of one of its options can't be read", (OPTIONS,)),
    Reason("unspecified error", "it doesn't say why: a filter of this site", (LIMITS, ACCOUNTS), vague=True),
)
OF_PBS: Final = (
    Reason("unknown queue", "there is no queue of that name", (PBS_QUEUES,)),
    Reason("access to queue is denied", "that queue isn't open to you", (PBS_QUEUES,)),
    Reason("queue is not enabled", "that queue takes no jobs now", (PBS_QUEUES,)),
    Reason("unauthorized request", "you may not submit from here, to that queue, or for that project", (PBS_QUEUES,)),
    Reason("unknown resource", "this PBS doesn't know a resource that -l names", (PBS_NODES,)),
    Reason(
        "illegal attribute or resource value",
        "the value of one of its options isn't valid (-l select=, walltime=)",
        (PBS_NODES,),
    ),
    Reason("invalid account", "that account isn't valid (-A)", ()),
    Reason(
        "maximum number of jobs", "too many jobs are in the queue already", (Fix("See yours", ("qstat -u $USER",)),)
    ),
    Reason(
        "would exceed",
        "it goes beyond what you or your group may have",
        (Fix("See yours", ("qstat -u $USER",)), PBS_QUEUES),
    ),
    Reason("resource limits", "it asks for more, or for less, than the queue allows", (PBS_QUEUES, PBS_NODES)),
    Reason("job rejected by all possible destinations", "no queue takes what it asks for", (PBS_QUEUES,)),
)
OF_LSF: Final = (
    Reason("request aborted by esub", "a filter of this site rejects it", (LSF_QUEUES,), vague=True),
    Reason("no such queue", "there is no queue of that name", (LSF_QUEUES,)),
    Reason("bad queue name", "there is no queue of that name", (LSF_QUEUES,)),
    Reason("user cannot use the queue", "that queue isn't open to you", (LSF_QUEUES,)),
    Reason("queue has been closed", "that queue takes no jobs now", (LSF_QUEUES,)),
    Reason("too many processors requested", "it asks for more cores than the queue allows", (LSF_QUEUES, LSF_NODES)),
    Reason("cannot exceed queue's", "it asks for more time or memory than the queue allows", (LSF_QUEUES,)),
    Reason(
        "user not in the specified user group",
        "you aren't in the group that -G names",
        (Fix("See which ones you are in", ("bugroup -w",)),),
    ),
    Reason("resource requirement syntax", "what -R or -gpu asks for can't be read", (LSF_NODES,)),
    Reason("bad resource name", "there is no resource of that name", (LSF_NODES,)),
)
OF_A_STEP: Final = (
    Reason(
        "more processors requested than permitted", "it asks for more nodes or tasks than the job has", (OF_THE_JOB,)
    ),
    Reason(
        "requested node configuration is not available",
        "no node of the job has what it asks for (GPUs, memory or cores of one node)",
        (OF_THE_JOB,),
        vague=True,
    ),
    Reason(
        "invalid generic resource (gres) specification", "it asks for GPUs that the job doesn't have", (OF_THE_JOB,)
    ),
    Reason("memory required by task is not available", "it asks for more memory than the job has", (OF_THE_JOB,)),
    *OF_SLURM,
)
OF_GRID_ENGINE: Final = (
    Reason("requested project", "there is no project of that name (-P)", (GRID_ENGINE,)),
    Reason("unknown resource", "there is no resource of that name (-l)", (Fix("See which there are", ("qconf -sc",)),)),
    Reason("parallel environment", "there is no parallel environment of that name (-pe)", (GRID_ENGINE,)),
    Reason("no suitable queues", "no queue has what it asks for", (GRID_ENGINE,)),
)
OF_KUBERNETES: Final = (
    Reason("exceeded quota", "the quota of its namespace doesn't have that much left", (KUBERNETES_QUOTA,)),
    Reason(
        "insufficient nvidia.com/gpu",
        "no node has as many free GPUs as it asks for, or bears no taint that it doesn't tolerate",
        (KUBERNETES_NODES, Fix("Ask for no more GPUs than a node has, or wait until others are done")),
    ),
    Reason(
        "nodes are available",
        "no node fits it",
        (KUBERNETES_NODES,),
    ),
)
OF_RAY: Final = (Reason("", "no kind of node in Ray's cluster has what it asks for", (RAY_NODES,)),)
OF_CLOUDS: Final = (
    Reason("insufficientinstancecapacity", "the cloud has no such machine free there now", (CLOUD_QUOTA,)),
    Reason("", "the account's quota doesn't allow that many machines of that kind there", (CLOUD_QUOTA,)),
)
SCHEDULERS: Final = {
    "Unable to create step": OF_A_STEP,
    "Task launch for": OF_A_STEP,
    "Application launch failed": OF_A_STEP,
    "qsub": OF_PBS,
    "Job not submitted": OF_LSF,
    "Unable to run job": OF_GRID_ENGINE,
    "exceeded quota": OF_KUBERNETES,
    "FailedScheduling": OF_KUBERNETES,
    "No available node types": OF_RAY,
    "exceeding approved": OF_CLOUDS,
    "when calling the RunInstances operation": OF_CLOUDS,
}
"""Whose reasons they are, by words of the sign; Slurm's of any other."""


def _is_of_a_later_job(one: SignMatch, log: Log) -> bool:
    """Whether a job that has trained wanted to have another one started."""
    return any(step is not None and step.order < one.line.order for step in (log.trains, log.recurs))


@log_check("job-refused", severity=FAIL, owner=Owner.USER, log=LogTraits(refuted=_is_of_a_later_job))
def job_refused(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """The scheduler refuses the job, or a step of it, or has no place for it: it was never started.

    ## What breaks
    `sbatch`, `srun`, `salloc`, `qsub` or `bsub` ends at once with an error, and there is neither a job nor a log of one: "Batch job submission
    failed: Requested node configuration is not available". A step of a job that runs (`srun` within it) may be refused as well; Kubernetes and Ray
    leave what fits nowhere waiting; and a cloud whose quota is used up starts no machine.

    ## Why
    A scheduler looks at what a job asks for before it takes it: whether any node has so many GPUs, so much memory and so many cores, whether
    the partition or queue is there and open to that account, and whether the time and the number of nodes are within its limits. Many sites have
    rules of their own beside that, whose words stand in the line before.

    ## Fix
    Compare what the job asks for (its #SBATCH lines, and the options of the command, which have the last word) with what there is:
    `sinfo -o "%P %G %m %c %l %D"` tells each partition's GPUs, memory, cores, longest time and nodes, `scontrol show partition NAME` its limits, and
    `sacctmgr show assoc user=$USER format=account,partition,qos` with which accounts and QOS you may run. A step can ask for no more than its job has:
    `scontrol show job $SLURM_JOB_ID`. In Kubernetes `kubectl describe pod POD` tells what no node has, in Ray `ray status`.
    """
    sure = [match for match in seen if match.words.get("reason")]
    if not sure:
        text = seen[0].words.get("text", "").strip()
        known = _known(text, OF_SLURM)
        return Finding.of(
            f"The scheduler refuses the job: {known.plain if known else _quoted(text)}",
            *(known.fixes if known else (NODES_HAVE, ACCOUNTS)),
            Fix("See whether the job is there nevertheless", ("squeue --me",)),
        )
    # Of Slurm's lines on one step the first that is known tells most.
    first = next((match for match in sure if _known(match.words["reason"], _reasons_of(match))), sure[0])
    reason = first.words["reason"].strip()
    reasons = _reasons_of(first)
    generic = _known(reason, reasons)
    beside = _beside(first)
    detail = _text_of(beside) if beside else ""
    known = generic
    if detail and (generic is None or generic.vague):
        known = _known(detail, reasons) or generic
    plain = known.plain if known else _quoted(reason)
    if detail and (known is generic or known is None):
        plain = f"in its words {_quoted(detail)}" if generic and generic.vague else f"{plain} ({_quoted(detail)})"
    of_it = Evidence(beside.text.strip(), where(log, beside)) if beside else None
    return Finding.of(
        f"{_refuses(first)}: {plain}",
        of_it,
        lines(log, sure),
        *(known.fixes if known else _fixes_for(reasons)),
        ASK if known is None or known.vague else None,
    )


def _reasons_of(seen: SignMatch) -> tuple[Reason, ...]:
    return next((reasons for words, reasons in SCHEDULERS.items() if words in seen.sign), OF_SLURM)


def _refuses(seen: SignMatch) -> str:
    reasons = _reasons_of(seen)
    if reasons is OF_A_STEP:
        return "Slurm can't start the job's step"
    if reasons is OF_CLOUDS:
        return "The cloud starts no machine"
    waits = reasons is OF_RAY or "FailedScheduling" in seen.sign
    return "The scheduler has no place for the job" if waits else "The scheduler refuses the job"


def _fixes_for(reasons: tuple[Reason, ...]) -> tuple[Fix, ...]:
    return {OF_PBS: (PBS_QUEUES,), OF_LSF: (LSF_QUEUES,), OF_GRID_ENGINE: (GRID_ENGINE,)}.get(
        reasons, (NODES_HAVE, ACCOUNTS)
    )


def _known(text: str, reasons: tuple[Reason, ...]) -> Reason | None:
    said = text.lower()
    return next((reason for reason in reasons if reason.text in said), None)


def _beside(seen: SignMatch) -> LogLine | None:
    """The line directly before it, where that is of the same command: Slurm's, or what esub has printed."""
    before = seen.before[-1] if seen.before else None
    if before is None or not before.text.strip() or before.number != seen.line.number - 1:
        return None
    if "esub" in seen.words.get("reason", ""):
        return before
    return before if MESSAGE.search(before.text) and MESSAGE.search(seen.line.text) else None


def _text_of(line: LogLine) -> str:
    message = MESSAGE.search(line.text)
    return message["text"] if message else line.text.strip()


def _quoted(text: str) -> str:
    return f'"{text[:200]}"'
