"""What the kit tries, by subject. Their order here is that of the run: the most telling first."""

from tests.gpu.parts import machine, host, smoke, jobs, leftovers, logs, checkpoints, network, extensions, figures  # noqa: I001

__all__ = ["checkpoints", "extensions", "figures", "host", "jobs", "leftovers", "logs", "machine", "network", "smoke"]
