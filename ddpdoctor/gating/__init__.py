"""The verdict on a node in the language of whoever asks for it: a scheduler, a monitor, an init container.

In come the findings of a check, and what a job left behind; out go an exit code and a few words by a table of dialects. Here lies also what
is said to Slurm, which checks a fleet has switched off, and the limit that ends a gate whatever hangs.
"""

__all__ = [
    "dialects",
    "gpu_agents",
    "job_leftovers",
    "name_files",
    "nvrx_service",
    "nvsentinel_event",
    "outcome",
    "slurm_node",
    "supervision",
    "switched_off",
]
