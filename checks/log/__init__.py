"""Runs that failed without an illness."""
