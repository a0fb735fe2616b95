"""torch's debug server, asked for the stacks, flight recorders and wait counters of all ranks of a job, on all its hosts.

What it answers is a stranger's text: nothing in it is followed or believed further than it is shown, and its size, its number of
ranks and the time that it may take are bounded.
"""

__all__ = [
    "pages",
]
