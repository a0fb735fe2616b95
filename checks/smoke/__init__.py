"""The outcome of a smoke training."""
