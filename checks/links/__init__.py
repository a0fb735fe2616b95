"""How fast the links between nodes are."""
