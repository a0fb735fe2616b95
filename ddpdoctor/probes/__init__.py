"""Probes learn and never judge: one module a group of facts, each with `probe(context)` that returns the group.

A module may set `DEADLINE` (seconds). A probe that crashes or misses its deadline gives `Unknown`, and the others go on.
"""

__all__ = [
    "cgroup",
    "context",
    "driver",
    "environment",
    "files",
    "gang",
    "proc",
    "processes",
    "programs",
    "py_spy",
    "run_as",
    "runner",
    "session",
    "smoke_notes",
    "subprocesses",
    "taken_ports",
    "target_python",
    "waiting",
]
