"""Checkpoints: can they be read, and where do they load."""
