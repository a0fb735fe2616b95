"""Which signs of illnesses stand in a log's lines."""

__all__ = [
    "gathering",
    "shape_tally",
    "wanted_signs",
]
