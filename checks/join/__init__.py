"""The meeting of ranks and nodes: launcher, port, store."""
