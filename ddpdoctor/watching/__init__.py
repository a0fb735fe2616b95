"""Running jobs, looked at for as long as they run, and told of when one has stopped moving: `ddpdoctor watch`.

In come the kernel's counters, every few seconds, and the ranks' stacks where these look still; out go events, and the evidence of each
alarm as a folder.
"""

__all__ = [
    "alarm",
    "events",
    "evidence_folder",
    "follow_up",
    "job_track",
    "metrics",
    "session",
]
