"""The start of the ranks: by which launcher, and with which settings."""
