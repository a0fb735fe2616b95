"""Checkpoint files: read as data, never executed, and rewritten without losing a byte.

In come the paths that a user names; out come facts about them for the checks, and the outcome of fix-checkpoint for each file.
kinds/ recognises files and folders, formats/ knows where the bytes lie, pickles/ reads and edits what is pickled, and writing/
changes files in place or writes new ones.
"""
