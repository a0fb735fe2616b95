"""The fleet: reading, comparing, telling."""
