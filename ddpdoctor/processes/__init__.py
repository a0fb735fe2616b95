"""The training jobs of this host, who holds its GPUs, and what earlier runs left behind: `ddpdoctor jobs` and `zombies`.

In come the facts of processes and GPUs; out go jobs, remarks and leftovers, and how they are told.
"""

__all__ = [
    "gpu_holders",
    "gpu_holders_words",
    "job_settings",
    "job_words",
    "jobs",
    "leftovers",
    "overview",
    "rank_remarks",
    "render_jobs",
    "render_zombies",
    "signs_of_life",
]
