"""From what a log says to a cause: failures, their order, ranks and verdict. Pure."""

__all__ = [
    "endings",
    "error_meanings",
    "failures",
    "false_positives",
    "good_runs",
    "kernel_kills",
    "script_errors",
    "sightings",
    "verdict",
]
