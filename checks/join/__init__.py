"""How ranks and nodes find each other: launcher, port, store."""
