"""Contents of a Snapshot of a host: typed, frozen groups of facts, one module a group. Nothing here looks or judges."""
