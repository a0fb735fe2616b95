"""The pickle in a checkpoint: read by a symbolic machine, edited as text is, and proven."""

__all__ = [
    "editing",
    "machine",
    "nodes",
    "opcodes",
]
