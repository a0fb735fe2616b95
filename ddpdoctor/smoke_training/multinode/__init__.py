"""A smoke training over several hosts: node 0 orders and puts the answers together (`coordinator`), every node runs its own ranks
(`remote_training`). The nodes meet and talk as for netcheck, in `network_check`."""

__all__ = [
    "joint_job",
    "task",
]
