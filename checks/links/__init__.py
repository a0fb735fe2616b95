"""The speed of the links between nodes."""
