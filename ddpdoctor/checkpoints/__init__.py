"""Checkpoint files: read as data, never executed, and rewritten without losing a byte: `ddpdoctor fix-checkpoint`.

In come paths; out goes what lies in the files, and for a fix the edits and the journal that can undo them.
"""

__all__ = [
    "errors",
    "finding_words",
    "fixing",
    "kinds",
    "model_wrappers",
    "named_paths",
    "pickles",
    "render",
    "render_json",
    "shard_index_copies",
    "weights_only",
    "writing",
]
