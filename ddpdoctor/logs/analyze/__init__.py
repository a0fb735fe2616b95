"""From what a log says to a cause: failures, their order, ranks and verdict. Pure."""

__all__ = [
    "endings",
    "exceptions",
    "failures",
    "false_positives",
    "kernel_kills",
    "key_lists",
    "launcher_options",
    "script_errors",
    "settings",
    "sightings",
    "verdict",
]
