"""Reports tell: a `Document`, which each subject builds, on a terminal and as Markdown; and the JSON contract. No subject is known here.

In come documents, findings and examinations; out goes text.
"""

__all__ = [
    "check_results",
    "contract",
    "document",
    "examined_hosts",
    "live",
    "markdown",
    "merged_findings",
    "metrics",
    "progress",
    "reported_checkpoints",
    "reported_fixes",
    "reported_fleet",
    "reported_gate",
    "reported_jobs",
    "reported_leftovers",
    "reported_log",
    "reported_scripts",
    "sparkline",
    "summary",
    "terminal",
]
