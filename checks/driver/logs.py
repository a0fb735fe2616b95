"""A driver that NCCL can't work with, told from the log."""

from __future__ import annotations

from collections.abc import Sequence

from ddpdoctor.base.findings import FAIL, Finding, Fix
from ddpdoctor.checks.log_check import log_check
from ddpdoctor.facts.log import Log, SignMatch
from ddpdoctor.logs.analyze.sightings import said_by, word


@log_check("nccl-cuda-driver-mismatch", severity=FAIL)
def nccl_cuda_driver_mismatch(log: Log, seen: Sequence[SignMatch]) -> Finding:
    """NCCL calls functions that this driver doesn't have.

    ## What breaks
    The first collective fails with "unhandled cuda error" (ncclUnhandledCudaError), although torch computes on the GPU.

    ## Why
    torch's wheel brings an NCCL that was built for a newer CUDA than the driver is of. CUDA itself runs by its minor-version
    compatibility; the functions that only NCCL uses don't. Virtual GPUs lack some whatever the version.

    ## Fix
    Update the driver, or take a torch wheel of an older CUDA. Where it is about shared buffers, `NCCL_CUMEM_ENABLE=0` (and
    `NCCL_NVLS_ENABLE=0`) keeps NCCL from asking.
    """
    return Finding(
        summary=f'NCCL asked the driver for what it hasn\'t got: "{word(seen, "said")}"',
        fixes=(
            Fix(
                "Compare what torch was built for with what the driver can",
                ("ddpdoctor check --select driver-too-old",),
            ),
            Fix("Try without NCCL's newer ways to share memory", ("export NCCL_CUMEM_ENABLE=0 NCCL_NVLS_ENABLE=0",)),
            Fix("Else update the driver, or install a torch wheel of the driver's CUDA or an older one"),
        ),
        rank=said_by(seen),
    )
