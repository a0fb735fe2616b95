"""What the host gives a job besides GPUs: shared memory, limits, disks, memory, cores."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.base import known
from ddpdoctor.facts.container import Container
from ddpdoctor.facts.plan import Plan
from ddpdoctor.facts.shared_memory import SharedMemory
from ddpdoctor.findings import FAIL, Finding, Fix
from ddpdoctor.registry import LogSign, check
from ddpdoctor.wording import human, plural


@check(
    "shm-too-small",
    severity=FAIL,
    log_signs=(
        LogSign("unable to open shared memory object"),
        LogSign("Error while creating shared memory segment"),
        LogSign("failed to extend /dev/shm/nccl-"),
    ),
)
def shm_too_small(shared_memory: SharedMemory, container: Container, plan: Plan) -> Iterator[Finding]:
    """Shared memory is too small for this many ranks and DataLoader workers.

    ## What breaks
    A worker dies with "Bus error" in the middle of an epoch, and its rank takes the others down.

    ## Why
    Containers get 64 MiB of /dev/shm unless told otherwise; NCCL and every DataLoader worker keep buffers there.

    ## Fix
    Docker: `--ipc=host` or `--shm-size=16g`. Kubernetes: an emptyDir with medium Memory on /dev/shm.
    """
    size = known(shared_memory.size)
    needed = plan.nproc * 128 * 1024**2
    if size < needed:
        yield Finding(
            summary=f"/dev/shm is {human(size)}; {plural(plan.nproc, 'rank')} want about {human(needed)}",
            evidence=(shared_memory.seen("size", human(size)),),
            fixes=(Fix("Start the container with more", ("docker run --shm-size=16g ...",)),),
        )
