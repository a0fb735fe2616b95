"""Facts that a Snapshot of a host holds: typed, frozen groups, one module a group. Nothing here looks or judges.

In comes what probes have learned; out go structs that checks read and that a file can hold.
"""
