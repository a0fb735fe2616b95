"""Tools for every room: findings, others' text, time limits, signals, files of others. It knows no subject.

Nothing of ddpdoctor is imported here but this room.
"""

__all__ = [
    "async_work",
    "error_lines",
    "findings",
    "lazy_patterns",
    "log_signs",
    "ownership",
    "private_folders",
    "regular_files",
    "shell",
    "signals",
    "status_line",
    "terminal",
    "text",
    "time_limit",
    "unknown",
    "version",
]
