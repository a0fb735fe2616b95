"""Whether two ranks would use one GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.base import Maybe, Unknown, known
from ddpdoctor.facts.environment import Environment
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.smoke import Smoke
from ddpdoctor.facts.torch import Torch
from ddpdoctor.facts.visible import selector, visible_gpus
from ddpdoctor.findings import FAIL, Evidence, Finding, Fix
from ddpdoctor.knowledge.evidence import planned
from ddpdoctor.knowledge.sharing import on_the_cpu, on_the_gpus, one_gpu_each, one_gpu_for_all
from ddpdoctor.registry import LogSign, check, requires
from ddpdoctor.wording import plural, ranks_named


@check(
    "duplicate-gpu",
    severity=FAIL,
    log_signs=(
        LogSign("Duplicate GPU detected : rank"),
        LogSign("ncclInvalidUsage: This usually reflects invalid usage of NCCL library"),
    ),
)
def duplicate_gpu(
    gpus: Gpus, plan: Plan, environment: Maybe[Environment], torch: Maybe[Torch], smoke: Smoke
) -> Iterator[Finding]:
    """Several ranks would use the same GPU.

    ## What breaks
    NCCL refuses at the first collective: "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device". Where each rank
    takes the GPU of its local rank, those past the last one die with "invalid device ordinal" before that.

    ## Why
    More ranks than GPUs were started; or every rank takes `cuda:0`, since `torch.cuda.set_device(local_rank)` is missing or
    comes too late; or a launcher shows all ranks the same single GPU by CUDA_VISIBLE_DEVICES.

    ## Fix
    At most as many ranks as GPUs (`torchrun --nproc-per-node=gpu`), and `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`
    as the first that touches CUDA. To try out several ranks without as many GPUs: the backend gloo on the CPU.
    """
    requires(not on_the_cpu(smoke), "the ranks run on the CPU")
    requires(gpus.devices, "no GPU on this host")
    requires(isinstance(torch, Unknown) or not torch.cpu_only, "torch is a CPU-only build")
    seen = visible_gpus(gpus, environment)
    requires(seen, "no GPU is visible to torch")
    requires(not any(one.slice for one in seen), "only MIG slices are visible: see mig-multi-instance")
    # Of a training over NCCL it was seen which GPUs the ranks are shown.
    own = len(seen) == 1 and one_gpu_each(environment) and not on_the_gpus(smoke)
    requires(not own, "Slurm gives each rank a GPU of its own")
    counted = torch.device_count if isinstance(torch, Torch) and isinstance(torch.device_count, int) else 0
    if plan.nproc <= max(len(seen), counted):
        if plan.nproc > counted:
            known(environment)  # It may hide some.
        return
    # With several GPUs it is nproc-exceeds-gpus that speaks, unless ranks are just about to be put on them.
    requires(on_the_gpus(smoke) or one_gpu_for_all(seen, plan), "several GPUs are visible: see nproc-exceeds-gpus")
    yield _shared(gpus, plan, environment, len(seen))


def _shared(gpus: Gpus, plan: Plan, environment: Maybe[Environment], visible: int) -> Finding:
    name = selector(gpus, environment)
    value = "" if isinstance(environment, Unknown) or name is None else environment.get(name)
    shown = f" ({name}={value})" if value else ""
    without = ranks_named(range(visible, plan.nproc))
    summary = f"{plan.nproc} ranks are planned on {plural(visible, 'GPU')}{shown}: {without} would share one, which NCCL refuses"
    widen = Fix(f"Or show the ranks all GPUs, if {name} hides them by mistake", (f"unset {name}",))
    return Finding(
        summary=summary if len(summary) <= 160 else f"{plan.nproc} ranks are planned on {plural(visible, 'GPU')}",
        evidence=(
            planned(plan),
            Evidence(f"visible GPUs: {visible} of {len(gpus.devices)}{shown}", "NVML and the environment"),
        ),
        fixes=(
            Fix(
                f"Start {plural(visible, 'rank')} on this host, with torchrun: --nproc-per-node={visible}",
                (f"ddpdoctor smoke --nproc {visible}",),
            ),
            *((widen,) if value and len(gpus.answering) > visible else ()),
            Fix(
                "Or try so many ranks on the CPU, over gloo: that tests all but the GPUs",
                (f"ddpdoctor smoke --nproc {plan.nproc} --backend gloo",),
            ),
        ),
    )
