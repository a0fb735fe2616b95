"""Which signs of illnesses stand in a log's lines."""

__all__ = [
    "wanted_signs",
]
