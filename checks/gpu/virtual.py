"""GPUs that are lent to a virtual machine in parts (vGPU)."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.base.findings import WARN, Evidence, Finding, Fix
from ddpdoctor.base.unknown import known
from ddpdoctor.engine.registry import check, requires
from ddpdoctor.facts.gpus import Gpus
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.torch import Torch
from ddpdoctor.knowledge.evidence import told
from ddpdoctor.knowledge.nvidia import called, nvidia_gpus


@check("nccl-mempool-unsupported", severity=WARN)
def nccl_mempool_unsupported(gpus: Gpus, plan: Plan, torch: Torch) -> Iterator[Finding]:
    """The GPU is a vGPU, on which NCCL may not start.

    ## What breaks
    NCCL 2.26 and later stop when they start, with "operation not supported".

    ## Why
    NCCL makes a CUDA memory pool, which needs unified memory, and that is off in many vGPU profiles.

    ## Fix
    Let the host's administrator set `pciPassthru0.cfg.enable_uvm=1` for the virtual machine, or use NCCL 2.25.
    """
    virtual = tuple(nvidia_gpu for nvidia_gpu in nvidia_gpus(gpus) if nvidia_gpu.virtualization == "vgpu")
    requires(virtual, "the GPUs are not virtual ones (vGPU)")
    requires(plan.nproc > 1, "a single rank needs no NCCL")
    version = known(torch.nccl_version) or ()
    requires(version, "this torch has no NCCL")
    if version < (2, 26):
        return
    yield Finding(
        summary=f"{called(virtual)} {'is a vGPU' if len(virtual) == 1 else 'are vGPUs'}: NCCL 2.26 and later can't start there if "
        "unified memory is off",
        evidence=(
            Evidence(f"{called(virtual)}: {'a vGPU' if len(virtual) == 1 else 'vGPUs'}", "NVML"),
            told(torch, "nccl_version", f"NCCL {'.'.join(map(str, version))}"),
        ),
        fixes=(
            Fix("Ask the host's administrator for `pciPassthru0.cfg.enable_uvm=1` in this virtual machine's settings"),
        ),
    )
