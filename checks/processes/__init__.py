"""Processes that hold what a job needs."""
