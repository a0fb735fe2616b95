"""Many hosts' snapshots judged one by one and compared with one another: `fleet`.

In come files, folders and a pipe; out goes a `Sweep`: what each host is like, and which are the odd ones out.
"""

__all__ = [
    "changes",
    "comparison",
    "judging",
    "outcome",
    "profiles",
    "render",
    "render_html",
    "render_json",
    "sources",
    "sweep",
    "sweeping",
]
