"""How the ranks are started, by which launcher and with which settings."""
