"""The Python in which training runs."""
