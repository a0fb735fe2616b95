"""The findings of gpu0-extra-contexts on running jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import WARN, Finding, Fix
from ddpdoctor.base.text import human, plural, ranks_named
from ddpdoctor.checks.processes.gpus import left_finding
from ddpdoctor.facts.snapshot import Gpus, Processes
from ddpdoctor.processes.gpu_holders import (
    ExtraContext,
    ExtraKind,
    extra_contexts,
    holdings,
    left_on_gpus,
    own_jobs,
)
from ddpdoctor.processes.gpu_holders_words import evidence_of, gpus_named
from ddpdoctor.processes.job_words import places
from ddpdoctor.processes.jobs import TrainingJob

CAUSES = {
    ExtraKind.BARE: "So little is a context without tensors: something touched cuda:0 before torch.cuda.set_device(local_rank),"
    " or a library asks every GPU (pin_memory, empty_cache, a look at cuda:0's properties).",
    ExtraKind.TENSORS: "So much is no mere context: tensors are there. torch.load() without map_location puts them on the GPU from"
    " which they were saved, mostly GPU 0.",
    ExtraKind.WORKER: "A DataLoader worker that touches CUDA (a dataset or collate_fn that returns tensors on the GPU) opens a"
    " context of its own on cuda:0.",
}

FIXES = {
    ExtraKind.BARE: (Fix("Call torch.cuda.set_device(local_rank) before anything else that touches CUDA"),),
    ExtraKind.TENSORS: (Fix('Load checkpoints with torch.load(path, map_location="cpu")'),),
    ExtraKind.WORKER: (
        Fix("Keep tensors on the CPU in the dataset and collate_fn, and move the batch in the training loop"),
    ),
}


def of_running_jobs(gpus: Gpus, processes: Processes) -> Iterator[Finding]:
    """A finding for each job and cause; and one for what an old run has left beside a running job."""
    held = holdings(gpus, processes)
    for job in own_jobs(processes):
        extra = extra_contexts(job, held, gpus)
        for kind in ExtraKind:
            if contexts := [context for context in extra if context.kind is kind]:
                yield _of_job(job, kind, contexts)
    yield from (left_finding(left, processes) for left in left_on_gpus(gpus, processes) if left.beside)


def _of_job(job: TrainingJob, kind: ExtraKind, extra: Sequence[ExtraContext]) -> Finding:
    pids = {context.process.pid for context in extra}
    ranks = places([context.process for context in extra])
    who = ranks_named(ranks) if ranks else plural(len(pids), "rank")
    if kind is ExtraKind.WORKER:
        who = plural(len(pids), "DataLoader worker")
    total = sum(context.held.memory for context in extra)
    several = len({context.held.gpu.index for context in extra}) > 1
    whose = f"{'are' if several else 'is'} not {'its' if len(pids) == 1 else 'their'} own"
    return Finding.of(
        f"Job {job.name}: {who} {'holds' if len(pids) == 1 else 'hold'} {human(total) if total else 'a context'} on "
        f"{gpus_named([context.held for context in extra])}, which {whose}",
        evidence_of([context.held for context in extra]),
        FIXES[kind],
        cause=CAUSES[kind],
        severity=WARN,
        rank=ranks[0] if len(ranks) == 1 and kind is not ExtraKind.WORKER else None,
    )
