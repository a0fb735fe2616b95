"""What the logs of a failed run say: `ddpdoctor diagnose-log`. Read (parse/), recognised (match/), judged (analyze/), told (render_*).

In come files; out goes which rank failed first, and of what.
"""

__all__ = [
    "analyze",
    "comparing",
    "diagnosis",
    "exceptions",
    "match",
    "reading",
    "render",
    "render_comparison",
    "render_json",
    "render_signs",
    "render_words",
    "site_signs",
]
