"""Containers and their GPUs."""
