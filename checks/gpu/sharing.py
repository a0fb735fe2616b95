"""Whether two ranks would use one GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from ddpdoctor.base.findings import FAIL, WARN, Evidence, Finding, Fix, Owner
from ddpdoctor.base.text import capital, listed, plural, ranks_named
from ddpdoctor.base.unknown import Maybe, Unknown, known, known_or
from ddpdoctor.engine.log_traits import Particulars
from ddpdoctor.engine.registry import LogTraits, Subject, check, requires
from ddpdoctor.facts.environment import value_of
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.preflight import CURRENT_DEVICE, PreflightRank
from ddpdoctor.facts.processes import Process, Processes
from ddpdoctor.facts.snapshot import Environment, Gpus, Preflight, Smoke, Torch
from ddpdoctor.facts.visible import VisibleGpu, selector, visible_gpus
from ddpdoctor.knowledge.evidence import planned
from ddpdoctor.knowledge.gpu_assignment import on_the_cpu, on_the_gpus, one_gpu_each, one_gpu_for_all
from ddpdoctor.logs.analyze.sightings import said
from ddpdoctor.logs.exceptions import LAST_ERROR
from ddpdoctor.processes.gpu_holders import (
    NO_OWN_JOB,
    HeldGpu,
    SharedGpu,
    holdings,
    of_process,
    own_jobs,
    require_known_holders,
    shared_gpus,
)
from ddpdoctor.processes.gpu_holders_words import evidence_of
from ddpdoctor.processes.job_words import Oddity, places
from ddpdoctor.processes.jobs import TrainingJob


def _on_slices(seen: Sequence[SignMatch], log: Log) -> Particulars:
    """Slices of one GPU have the same PCI address."""
    if not said(log, "mig-multi-instance"):
        return Particulars()
    return Particulars(
        "Ranks are on MIG slices of one GPU, which NCCL takes for the same GPU twice",
        (
            Fix("Run one rank on one slice: most releases of NCCL can't connect slices", ("torchrun --nproc-per-node=1 train.py",)),
            Fix("Or have MIG switched off, for ranks on whole GPUs: that ends the slices of everybody on this host", ("sudo nvidia-smi -mig 0",)),
            Fix("Or try an NCCL of 2026, which connects slices with this setting", ("export NCCL_MULTI_RANK_GPU_ENABLE=1",)),
        ),
        "NCCL tells GPUs apart by their PCI addresses, and slices of one GPU have the same.",
    )  # fmt: skip


_INVALID_USAGE: Final = "ncclInvalidUsage: "
"""How the words of torch's begin that two ranks on one GPU may be behind."""
MAX_SHOWN_RANKS: Final = 8
DUPLICATE_GPU: Final = "Duplicate GPU"
LINES_TO_NCCLS_WORD: Final = 2
"""Lines to NCCL's own word."""


def _names_another_refusal(refused: SignMatch, log: Log) -> bool:
    """Whether a sign that guesses at two ranks on one GPU has NCCL's last error right below, and that is something else."""
    if (
        not refused.sign.startswith(_INVALID_USAGE)
        or len(refused.after) < LINES_TO_NCCLS_WORD
        or refused.after[0].text.strip() != LAST_ERROR
    ):
        return False
    told = refused.after[1]
    # Where lines bear no rank, the next one but one is another's, if NCCL's own word is empty.
    right_below = refused.line.rank is not None or told.number - refused.line.number == LINES_TO_NCCLS_WORD
    return right_below and bool(told.text.strip()) and DUPLICATE_GPU not in told.text


@check(
    "duplicate-gpu",
    severity=FAIL,
    owner=Owner.USER,
    log=LogTraits(refuted=_names_another_refusal, particulars=_on_slices),
    stands_for=(Oddity.SHARED_GPU, Oddity.OTHER_GPU),
    judges=(Subject.RUNNING_JOB, Subject.TRAINING_PLAN, Subject.JOB_FROM_WITHIN),
)
def duplicate_gpu(
    gpus: Gpus,
    plan: Plan,
    environment: Maybe[Environment],
    torch: Maybe[Torch],
    smoke: Smoke,
    processes: Maybe[Processes],
    preflight: Preflight,
) -> Iterator[Finding]:
    """Several ranks use the same GPU, or would.

    ## What breaks
    NCCL refuses at the first collective: "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device". Where each rank
    takes the GPU of its local rank, those past the last one die with "invalid device ordinal" before that.

    ## Why
    More ranks than GPUs were started; or every rank takes `cuda:0`, since `torch.cuda.set_device(local_rank)` is missing or
    comes too late; or a launcher shows all ranks the same single GPU by CUDA_VISIBLE_DEVICES.

    ## Fix
    At most as many ranks as GPUs (`torchrun --nproc-per-node=gpu`), and `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`
    before anything else that touches CUDA. To try out several ranks without as many GPUs: the backend gloo on the CPU.
    """
    if preflight.ranks:
        yield from _from_within(preflight)
        return
    if isinstance(processes, Processes):
        yield from _running(gpus, processes)
    if plan.nproc:
        yield from _planned(gpus, plan, environment, torch, smoke)
    else:
        requires(gpus.answering, "no GPU answers" if gpus.devices else "no GPU on this host")
        requires(own_jobs(known(processes)), NO_OWN_JOB)
    if own_jobs(known(processes)):
        require_known_holders(gpus.answering)


def _from_within(preflight: Preflight) -> Iterator[Finding]:
    """Findings on ranks that say themselves on which GPU they are, before they have used it together."""
    requires(any(rank.gpu for rank in preflight.ranks), "no rank has a GPU yet")
    holders: dict[tuple[str, str], list[PreflightRank]] = {}
    for rank in preflight.ranks:
        if rank.gpu:
            holders.setdefault((rank.gpu, rank.gpu_scope), []).append(rank)
    for ranks in holders.values():
        if len(ranks) < 2:
            continue
        source = ranks[0].device_source
        chosen = source != CURRENT_DEVICE
        yield Finding.of(
            f"{capital(ranks_named(rank.rank for rank in ranks))} on {ranks[0].host} are on the same GPU ({ranks[0].device})"
            + ("" if chosen else " as things are"),
            (
                Evidence(f"rank {rank.rank}: {rank.device}, GPU {rank.gpu}", rank.device_source)
                for rank in ranks[:MAX_SHOWN_RANKS]
            ),
            Fix(
                "Let each rank take the GPU of its local rank, before anything else touches CUDA: "
                'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
            ),
            cause=""
            if chosen
            else 'torch.cuda.set_device was not called: whatever is made on "cuda" without a number goes to that GPU.',
            severity=FAIL if chosen else WARN,
        )


def whole_gpus_for_ranks(
    gpus: Gpus, environment: Maybe[Environment], torch: Maybe[Torch], smoke: Maybe[Smoke]
) -> tuple[tuple[VisibleGpu, ...], int]:
    """The GPUs that planned ranks would see, and how many torch counts (0: unknown); ends the check where they take no whole GPU."""
    requires(not on_the_cpu(smoke), "the ranks run on the CPU")
    requires(gpus.devices, "no GPU on this host")
    requires(isinstance(torch, Unknown) or not torch.cpu_only, "torch is a CPU-only build")
    requires(gpus.answering, "no GPU answers")
    seen = visible_gpus(gpus, environment)
    requires(seen, "no GPU is visible to torch")
    requires(not any(shown.slice for shown in seen), "only MIG slices are visible: see mig-multi-instance")
    return seen, 0 if isinstance(torch, Unknown) else known_or(torch.device_count, None) or 0


def _planned(
    gpus: Gpus, plan: Plan, environment: Maybe[Environment], torch: Maybe[Torch], smoke: Smoke
) -> Iterator[Finding]:
    seen, counted = whole_gpus_for_ranks(gpus, environment, torch, smoke)
    # Of a training over NCCL it was seen which GPUs the ranks are shown.
    own = len(seen) == 1 and one_gpu_each(environment) and not on_the_gpus(smoke)
    requires(not own, "Slurm gives each rank a GPU of its own")
    if plan.nproc <= max(len(seen), counted):
        if plan.nproc > counted:
            known(environment)  # It may hide some.
        return
    # With several GPUs it is nproc-exceeds-gpus that speaks, unless ranks are just about to be put on them.
    requires(on_the_gpus(smoke) or one_gpu_for_all(seen, plan), "several GPUs are visible: see nproc-exceeds-gpus")
    yield _shared(gpus, plan, environment, len(seen))


def _running(gpus: Gpus, processes: Processes) -> Iterator[Finding]:
    """Findings on running jobs whose ranks share a GPU for another reason than a missing set_device."""
    held = holdings(gpus, processes)
    for job in own_jobs(processes):
        if shared := [gpu for gpu in shared_gpus(job, held, gpus) if not gpu.unset]:
            yield _runs_on_one(job, shared, held)


def _runs_on_one(job: TrainingJob, shared: Sequence[SharedGpu], held: Sequence[HeldGpu]) -> Finding:
    ranks = [(rank, shared_gpu.gpu) for shared_gpu in shared for rank in shared_gpu.ranks]
    over_nccl = any("nccl" in mark.lower() for rank, _ in ranks for mark in rank.marks)
    where = listed((f"{_named(shared_gpu.ranks)} on GPU {shared_gpu.gpu.index}" for shared_gpu in shared), 3)
    if len(where) > 110:
        where = f"{len(ranks)} ranks on {plural(len(shared), 'GPU')}"
    return Finding.of(
        f"Job {job.name}: {where} {'share a GPU' if len(shared) == 1 else 'share GPUs'}, "
        + ("which NCCL refuses" if over_nccl else "and take turns"),
        evidence_of([found for rank, gpu in ranks for found in of_process(rank, held) if found.gpu == gpu]),
        Fix(
            "Start at most as many ranks as GPUs, and let each rank take the GPU of its local rank: "
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
        ),
        Fix("See which GPUs each rank was shown", (f"ddpdoctor jobs {shlex.quote(job.name)}",)),
        severity=FAIL if over_nccl else WARN,
    )


def _named(ranks: Sequence[Process]) -> str:
    return ranks_named(places(ranks)) if places(ranks) else plural(len(ranks), "rank")


def _shared(gpus: Gpus, plan: Plan, environment: Maybe[Environment], visible: int) -> Finding:
    name = selector(gpus, environment)
    value = value_of(environment, name) if name else ""
    shown = f" ({name}={value})" if value else ""
    short = f"{plan.nproc} ranks are planned on {plural(visible, 'GPU')}"
    summary = f"{short}{shown}: {ranks_named(range(visible, plan.nproc))} would share one, which NCCL refuses"
    widen = Fix(f"Or show the ranks all GPUs, if {name} hides them by mistake", (f"unset {name}",))
    return Finding.of(
        summary if len(summary) <= 160 else short,
        planned(plan),
        Evidence(f"visible GPUs: {visible} of {len(gpus.devices)}{shown}", "NVML and the environment"),
        Fix(
            f"Start {plural(visible, 'rank')} on this host, with torchrun: --nproc-per-node={visible}",
            (f"ddpdoctor smoke --nproc {visible}",),
        ),
        widen if value and len(gpus.answering) > visible else None,
        Fix(
            "Or try as many ranks on the CPU, over gloo: that tests everything except the GPUs",
            (f"ddpdoctor smoke --nproc {plan.nproc} --backend gloo",),
        ),
    )
