"""Mistakes of the training script that a log shows."""
