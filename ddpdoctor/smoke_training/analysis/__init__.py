"""What the facts of a smoke training mean: which ranks caused its failure, in which words, and the verdict. Pure."""

__all__ = [
    "failure_attribution",
    "failure_wording",
    "rank_position",
    "verdict",
]
