"""The use that ranks of a running job make of the GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpdoctor.base.findings import WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import listed, ranks_named, spans
from ddpdoctor.base.unknown import Maybe
from ddpdoctor.checks.processes.full_gpus import memory_of_ranks, with_ranks_told_from_others
from ddpdoctor.engine.registry import LogTraits, check, leave_untested, requires
from ddpdoctor.facts.snapshot import Gpus, Processes, Torch
from ddpdoctor.knowledge.gpu_assignment import lacks_nccl, own_gpu
from ddpdoctor.knowledge.nvidia import nvidia_gpus
from ddpdoctor.processes.gpu_holders import (
    HeldGpu,
    SharedGpu,
    holdings,
    of_process,
    own_jobs_of_several,
    require_known_holders,
    require_known_settings,
    shared_gpus,
)
from ddpdoctor.processes.gpu_holders_words import evidence_of
from ddpdoctor.processes.job_words import Oddity, places
from ddpdoctor.processes.jobs import TrainingJob


@check(
    "missing-set-device",
    severity=WARN,
    owner=Owner.USER,
    log=LogTraits(revises=with_ranks_told_from_others, particulars=memory_of_ranks),
    stands_for=(Oddity.SHARED_GPU, Oddity.OTHER_GPU, Oddity.ON_CPU),
)
def missing_set_device(gpus: Gpus, processes: Processes) -> Iterator[Finding]:
    """Ranks of a running job are all on GPU 0, although each has a GPU of its own.

    ## What breaks
    GPU 0 runs out of memory while the others idle. NCCL refuses ("Duplicate GPU detected"), or hangs in its first barrier.

    ## Why
    Until `torch.cuda.set_device(local_rank)` is called, "cuda" means cuda:0 in every rank: `.cuda()`, `.to("cuda")` and NCCL's
    barrier all go there. The call is missing, or comes after the model was moved.

    ## Fix
    `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` as the first line that touches CUDA; with torch 2.3 or newer also
    `init_process_group(device_id=torch.device("cuda", local_rank))`.
    """
    nvidia_gpus(gpus)
    jobs = own_jobs_of_several(processes)
    held = holdings(gpus, processes)
    for job in jobs:
        for shared_gpu in shared_gpus(job, held, gpus):
            if shared_gpu.unset:
                yield _all_on_one(job, shared_gpu, held, gpus)
    require_known_holders(gpus.devices)
    require_known_settings(jobs)


def _all_on_one(job: TrainingJob, shared: SharedGpu, held: Sequence[HeldGpu], gpus: Gpus) -> Finding:
    ranks = places(shared.ranks)
    own = listed(spans(at for rank in shared.ranks if (at := own_gpu(rank, gpus)) is not None), 8)
    return Finding.of(
        f"Job {job.name}: {ranks_named(ranks)} all work on GPU {shared.gpu.index}; by their local ranks GPUs {own} "
        "are theirs",
        evidence_of(
            [held_gpu for rank in shared.ranks for held_gpu in of_process(rank, held) if held_gpu.gpu == shared.gpu]
        ),
        Fix('Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else that touches CUDA'),
        Fix("See it in a training that does so", (f"ddpdoctor smoke --nproc {len(job.ranks)}",)),
    )


@check("backend-gloo-on-gpu", severity=WARN, owner=Owner.USER, stands_for=(Oddity.ON_CPU,))
def backend_gloo_on_gpu(gpus: Gpus, processes: Processes, torch: Maybe[Torch]) -> Iterator[Finding]:
    """The ranks of a running job compute on GPUs, and talk over gloo alone.

    ## What breaks
    Mostly nothing fails: every gradient goes through the host's memory and a TCP socket instead of NVLink or PCIe, and with
    several GPUs the training is often slower than with one. What gloo lacks does fail: `barrier(device_ids=...)`, and up to
    torch 2.1 FSDP's "_allgather_base".

    ## Why
    `init_process_group("gloo")` was left in from a test on the CPU, or a framework fell back to gloo since NCCL was not
    available.

    ## Fix
    `init_process_group("nccl")`, or `"cpu:gloo,cuda:nccl"` where tensors on the CPU are sent as well.
    """
    nvidia_gpus(gpus)
    requires(not lacks_nccl(torch), "torch has no NCCL here: see nccl-not-built")
    held = holdings(gpus, processes)
    jobs = own_jobs_of_several(processes)
    unnamed = False
    for job in jobs:
        on = [(rank, contexts[0]) for rank in job.ranks if not rank.has_ended and (contexts := of_process(rank, held))]
        if len(on) < 2 or shared_gpus(job, held, gpus):
            continue  # Ranks that share a GPU have no other way: NCCL refuses that.
        marks = [{_backend(mark) for mark in rank.marks} for rank, _ in on]
        if any("nccl" in backends for backends in marks):
            continue
        if all("gloo" in backends for backends in marks):
            yield Finding.of(
                f"Job {job.name}: {ranks_named(places([rank for rank, _ in on]))} are on GPUs, and talk over gloo alone: "
                "NCCL is many times faster",
                evidence_of([context for _, context in on][:4]),
                Evidence(
                    f"threads of process groups: {listed(sorted({mark for rank, _ in on for mark in rank.marks}))}; "
                    "none of NCCL's",
                    "/proc/PID/task/*/comm",
                ),
                Fix('Start the process group with init_process_group("nccl"), or "cpu:gloo,cuda:nccl"'),
                Fix("See whether NCCL works on this host", ("ddpdoctor smoke --backend nccl",)),
            )
        else:
            unnamed = True
    require_known_holders(gpus.devices)
    if unnamed:
        leave_untested("the ranks' threads have no names by which their backend could be told")


def _backend(mark: str) -> str:
    """ "gloo", "nccl" or "", by the name of a thread. Names of torch are cut to 15 letters."""
    return next((name for name in ("nccl", "gloo") if name in mark.lower()), "")
