"""What the kit tries, by subject, and in which order: the most telling first."""

from tests.gpu.kit import PARTS
from tests.gpu.parts import checkpoints, extensions, figures, host, jobs, leftovers, logs, machine, network, smoke

__all__ = [
    "checkpoints", "extensions", "figures", "host", "jobs", "leftovers", "logs", "machine", "network", "smoke",
]  # fmt: skip

# Neighbours may run at the same time, where both say so. What makes a GPU's kernels fail or hang runs alone.
ORDER: list[str] = """
check
snapshot architecture gpu-modes nvidia-smi driver nvml-errors nccl-library nccl-interface toolchain other-user
smoke
smoke-all
context-memory
jobs
zombies
smoke-illegal-access
xid
extension checkpoint checkpoint-pinned smoke-amp data-parallel smoke-more-ranks smoke-out-of-memory smoke-kill run-out-of-memory
smoke-hold-gil smoke-stop smoke-leave smoke-fail run-fail
hang-ras
hang-recorder hang-sleep hang-stopped hang-healthy
hang-endless-kernel
smoke-endless-kernel
run-illegal-access
extra-contexts
zombies-own-pids
zombies-at-work zombies-endless-kernel
jobs-killed-rank
netcheck
scaling
speed
nothing-left
""".split()  # noqa: SIM905 (so it is read by lines)

PARTS.sort(key=lambda part: ORDER.index(part.name))
