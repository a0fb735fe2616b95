"""Ranks of a job that is about to train, by their own words."""
