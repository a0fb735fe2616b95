"""What the logs of a failed run say: `ddpdoctor diagnose-log`. Read (parse), recognised (match), judged (analyze), told (render).

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
    "site_signs",
]
