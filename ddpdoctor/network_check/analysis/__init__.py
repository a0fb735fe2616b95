"""The way from what the nodes found out to verdicts and advice. Pure: nothing here looks at the world."""

__all__ = [
    "admission_errors",
    "collective_failures",
    "fault_location",
    "install_same_torch",
    "link_quality",
    "node_facts",
    "node_lists",
    "tried_addresses",
    "way_to_master",
]
