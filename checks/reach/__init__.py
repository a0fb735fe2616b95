"""The ways between the nodes: open, filtered, or behind NAT."""
