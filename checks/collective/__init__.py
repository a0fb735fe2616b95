"""torch's real store and collectives, tried between nodes."""
