"""Everything that crosses the network, and whom the nodes believe: messages, the hub on node 0, its agents, tokens and limits."""

__all__ = [
    "bounded_lines",
    "messages",
    "order_limits",
]
