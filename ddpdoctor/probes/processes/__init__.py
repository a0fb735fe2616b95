"""Processes of this host as /proc tells of them: what each is, which rank of which job, and what it holds.

`listing.probe(context)` gives the facts, but for the stacks of quiet orphans, which `ddpdoctor/processes/probe.py` adds.
"""

__all__ = [
    "command_lines",
    "description",
    "listing",
    "open_files",
    "process_tree",
    "roles",
    "tcp_sockets",
]
