"""Which signs of illnesses stand in a log's lines."""

__all__ = [
    "gathering",
    "wanted_signs",
]
