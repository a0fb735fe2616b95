"""The meaning of a smoke training's facts: which ranks caused its failure, in which words, and the verdict. Pure."""

__all__ = [
    "burn_in",
    "failure_attribution",
    "failure_wording",
    "rank_position",
    "verdict",
]
