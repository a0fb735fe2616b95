"""Why the ranks don't meet: `ddpdoctor netcheck`. A small hub on the job's real port, agents on every node, and phases.

In come the job's address and the nodes that come; out goes the fleet: who reaches whom, how fast, and what each phase said. `protocol/` is what
crosses the network, `phases/` what is tried, `analysis/` what its facts mean (pure).
"""

__all__ = [
    "analysis",
    "job",
    "listen_address",
    "node_session",
    "progress",
    "protocol",
    "render",
    "results",
    "run",
    "task",
]
