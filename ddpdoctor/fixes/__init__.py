"""What `check --fix` changes: each fix is shown first, asked for, applied, and proved. Nothing else here changes anything.

In come findings; out goes what became of each fix.
"""

__all__ = [
    "appliable_fixes",
    "applying",
    "choosing",
    "leftovers",
    "proof",
    "render",
    "settings_file",
]
