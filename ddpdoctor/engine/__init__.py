"""From facts and checks to what is said of a host: the registry of checks, examination, plan, redaction, snapshots.

In come a Snapshot and checks; out goes an Examination with findings. It knows no illness.
"""

__all__ = [
    "examination",
    "explanations",
    "log_traits",
    "planning",
    "redaction",
    "registry",
    "sanitize_facts",
    "snapshot_lines",
    "snapshot_series",
    "snapshots",
]
