"""What the nodes say to each other, and whom they believe: messages, the hub on node 0, its agents, tokens and limits."""

__all__ = [
    "bounded_lines",
    "messages",
    "order_limits",
]
