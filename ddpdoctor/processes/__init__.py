"""The training jobs of this host, who holds its GPUs, and what earlier runs left behind: `ddpdoctor jobs` and `zombies`.

In come the facts of processes and GPUs; out go jobs, remarks and leftovers, and how they are told.
"""
