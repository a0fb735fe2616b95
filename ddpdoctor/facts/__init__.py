"""What a Snapshot of a host holds: typed, frozen groups of facts, one module a group. Nothing here looks or judges."""
