"""Reads the logs of a run: files to facts, in one pass over the bytes and constant memory. Knows no illness."""
