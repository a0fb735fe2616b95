"""What runs that are gone left behind: which processes, GPU memory and segments, how sure that is, and how they are ended."""

__all__ = [
    "all_kinds",
    "ending",
    "leftover",
    "orphans",
    "processes",
    "segments",
]
