"""The ranks of a job look at themselves from within, before they train, and agree on one verdict: `preflight()`.

It runs in the user's own training process: torch is imported when it is called, no group, setting, random number or CUDA context of the
process changes, and nothing waits longer than it may. In come the job's store and what each rank says of itself, out goes a
`JobVerdict`, the same on every rank.
"""

__all__ = [
    "exchange",
    "host_look",
    "job_store",
    "judging",
    "messages",
    "own_words",
    "render",
]
