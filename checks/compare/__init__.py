"""Nodes of one job held against each other."""
