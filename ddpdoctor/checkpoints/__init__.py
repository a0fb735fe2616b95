"""Checkpoint files: read as data, never executed, and rewritten without losing a byte."""
