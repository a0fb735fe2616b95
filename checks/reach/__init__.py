"""Who reaches whom between the nodes."""
